"""The jobs of a sweep side by side, best first, and those that have no results with the reason.

Runs that answer different questions stand in the order of their names: no table can rank them.
"""

from collections.abc import Sequence

from spec_harness.analysis.comparable import unlike
from spec_harness.analysis.jobs import Job, varying
from spec_harness.evaluation.block import Block, Line, Tone
from spec_harness.evaluation.formats import number, percent, rate, together
from spec_harness.evaluation.results import RunResults

_LENGTH = "proposal.max_proposal_len"
_SHOWN = 4  # keys that tell runs apart


def sweep_headline(jobs: Sequence[Job], *, name: str) -> list[Line]:
    """How many jobs, and the best of them."""
    done, total = ranked(jobs), len(jobs)
    lines = [Line(f"{name}: {total} job{'' if total == 1 else 's'}, {len(done)} with results")]
    obstacles = unlike([job.results for job in done if job.results is not None])
    best = done[0].results if done and not obstacles else None
    speedup = best.timing.speedup if best is not None and best.timing is not None else None
    if speedup is not None and speedup.value is not None:
        settings = _settings(done[0], varying([job.overrides for job in jobs]))
        which = f"job {done[0].name}" + (f" ({settings})" if settings else "")
        interval = "" if speedup.ci95 is None else " ({:.2f} to {:.2f})".format(*speedup.ci95)
        clear = speedup.ci95 is None or speedup.ci95[0] > 1
        tone: Tone = "good" if speedup.value > 1 and clear else "caution"
        lines.append(Line(f"Fastest: {which}, {speedup.value:.2f}x plain decoding{interval}.", tone))
    if obstacles:
        shown = ", ".join(obstacles[:_SHOWN]) + ", ..." * (len(obstacles) > _SHOWN)
        lines.append(Line(f"Not ranked: these runs answer different questions, they differ in {shown}.", "caution"))
    if len(done) < total:
        lines.append(Line(f"{total - len(done)} without results, see below.", "alarm"))
    return lines


def sweep_blocks(jobs: Sequence[Job]) -> list[Block]:
    """One row per job. Without any speed-up, jobs are ranked by their tokens per second."""
    keys = varying([job.overrides for job in jobs])
    done = ranked(jobs)
    compared = any(job.speedup is not None for job in done)
    columns = ("settings", "speed-up" if compared else "tokens/s", "acceptance rate", "coverage", "per pass")
    rows = [
        (job.name, _settings(job, keys), *_figures(job.results, compared=compared))
        for job in done
        if job.results is not None
    ]
    parts = ["k: max_proposal_len"] * (_LENGTH in keys)
    parts += ["speed-up: over plain decoding in the same run" if compared else "tokens/s: of the speculative run"]
    hint = "; ".join([*parts, "in brackets: 95 % intervals", "per pass: tokens a pass of the target"])
    blocks = [Block(title="Job", columns=columns, rows=rows, hint=hint)] if rows else []
    failed = [(job.name, _settings(job, keys), job.state, job.error or "") for job in jobs if job.results is None]
    return blocks + ([Block(title="No results", columns=("settings", "", "why"), rows=failed)] if failed else [])


def ranked(jobs: Sequence[Job]) -> list[Job]:
    """Jobs with results: best speed-up first, then those without one by their speed. Unlike ones stay as they are."""
    done = [job for job in jobs if job.results is not None]
    if unlike([job.results for job in done if job.results is not None]):
        return done
    return sorted(done, key=lambda job: (-(job.speedup or 0.0), -(_tokens_per_second(job.results) or 0.0)))


def _tokens_per_second(results: RunResults | None) -> float | None:
    timing = None if results is None else results.timing
    return None if timing is None else timing.speculative_tokens_per_second.value


def _settings(job: Job, keys: Sequence[str]) -> str:
    """What the sweep varied, in this job; the last part of a key says enough in a table."""
    return ", ".join(f"{_short(key)}={job.overrides[key]}" for key in keys if key in job.overrides)


def _short(key: str) -> str:
    return "k" if key == _LENGTH else key.rpartition(".")[2]


def _figures(results: RunResults, *, compared: bool) -> tuple[str, str, str, str]:
    proposal, timing, speed = results.proposal, results.timing, "n/a"
    if timing is not None and compared:
        speed = together(*number(timing.speedup, unit="x"))
    elif timing is not None:
        speed = together(*number(timing.speculative_tokens_per_second, digits=1))
    return (
        speed,
        together(*rate(proposal.acceptance_rate)),
        percent(proposal.coverage.value),
        number(proposal.tokens_per_target_pass)[0],
    )
