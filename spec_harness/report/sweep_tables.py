"""The jobs of a sweep side by side, best first, and those that have no results with the reason.

Runs that answer different questions stand in the order of their names: no table can rank them.
"""

from collections.abc import Sequence

from spec_harness.report.comparable import incomparable_keys, speed
from spec_harness.report.formats import number, percent, rate, together
from spec_harness.report.jobs import Job, varying
from spec_harness.report.pooled_baseline import PooledBaseline, disagrees_with_prediction, pooled_baseline, speedup_over
from spec_harness.report.round_cost import decoding_speedup, round_cost
from spec_harness.report.table import MEANING, Line, Table
from spec_harness.report.tables import conditions
from spec_harness.results.schema import RunResults

_LENGTH = "proposal.max_proposal_len"
_SHOWN = 4  # keys that tell runs apart
_DOUBTFUL = "?"


def sweep_headline(jobs: Sequence[Job], *, name: str) -> list[Line]:
    """How many jobs, on what, and whether they can be ranked at all."""
    done, total = _done(jobs), len(jobs)
    lines = [Line(f"{name}: {total} job{'' if total == 1 else 's'}, {len(done)} with results")]
    obstacles = incomparable_keys([results for _, results in done])
    if obstacles:
        shown = ", ".join(obstacles[:_SHOWN]) + ", ..." * (len(obstacles) > _SHOWN)
        lines.append(Line(f"Not ranked: these runs answer different questions, they differ in {shown}.", "caution"))
    elif done:
        swept = {key.split(".")[0] for key in varying([job.overrides for job in jobs])}
        lines.append(Line(conditions(done[0][1], leave_out=swept)))
    if len(done) < total:
        lines.append(Line(f"{total - len(done)} without results, see below.", "alarm"))
    return lines


def sweep_tables(jobs: Sequence[Job]) -> list[Table]:
    """One row per job; what the rounds cost; and the jobs without results."""
    keys = varying([job.overrides for job in jobs])
    done = _done(jobs)
    pooled = pooled_baseline([results for _, results in done])
    blocks = [_figures(_ranked(done), keys, pooled)] if done else []
    blocks += [_costs(done, keys, pooled)] if any(round_cost(results) for _, results in done) else []
    failed = [(job.name, _settings(job, keys), job.state, job.error or "") for job in jobs if job.results is None]
    return blocks + ([Table(title="No results", columns=("settings", "", "why"), rows=failed)] if failed else [])


def _done(jobs: Sequence[Job]) -> list[tuple[Job, RunResults]]:
    return [(job, job.results) for job in jobs if job.results is not None]


def _ranked(done: Sequence[tuple[Job, RunResults]]) -> list[tuple[Job, RunResults]]:
    """Fastest first. Unlike ones stay as they are."""
    if incomparable_keys([results for _, results in done]):
        return list(done)
    return sorted(done, key=lambda item: -(speed(item[1]).value or 0.0))


def _figures(done: Sequence[tuple[Job, RunResults]], keys: Sequence[str], pooled: PooledBaseline | None) -> Table:
    """Columns that say the same of all jobs go below the table."""
    columns: dict[str, list[str]] = {"settings": [_settings(job, keys) for job, _ in done]}
    speedups = [speedup_over(pooled, results) for _, results in done]
    if any(speedup.value is not None for speedup in speedups):
        cells = [together(*number(speedup, unit="x")) for speedup in speedups]
        marks = [_DOUBTFUL * doubt for doubt in disagrees_with_prediction([results for _, results in done], pooled)]
        columns["speed-up"] = [cell + mark for cell, mark in zip(cells, marks, strict=True)]
    columns["tokens/s"] = [number(speed(results), digits=0)[0] for _, results in done]
    columns["acceptance rate"] = [together(*rate(results.proposal.acceptance_rate)) for _, results in done]
    columns["coverage"] = [percent(results.proposal.coverage.value) for _, results in done]
    columns["per pass"] = [number(results.proposal.tokens_per_target_pass)[0] for _, results in done]
    rooms = [results.kv.num_blocks * results.kv.block_size if results.kv else 0 for _, results in done]
    if any(key.startswith("kv_cache.") for key in keys):
        columns["room"] = [f"{room:,} tokens" for room in rooms]
    if any(results.kv is not None and results.kv.preemptions for _, results in done):
        columns["preempted"] = [f"{results.kv.preemptions or 0:,}" if results.kv else "n/a" for _, results in done]
    same = [name for name, cells in columns.items() if name != "settings" and len(done) > 1 and len(set(cells)) == 1]
    shared = [f"{name} {columns.pop(name)[0]}" for name in same]
    hint = _hint(columns, shared, lengths=_LENGTH in keys, pooled=pooled)
    rows = list(zip([job.name for job, _ in done], *columns.values(), strict=True))
    spare = (MEANING, "per pass", "tokens/s")  # also in the table below, and in speed-ups
    return Table(title="Job", columns=tuple(columns), rows=rows, hint=hint, dispensable=spare)


def _hint(columns: dict[str, list[str]], shared: Sequence[str], *, lengths: bool, pooled: PooledBaseline | None) -> str:
    """What the columns mean that are there."""
    over = "plain decoding in the same run" if pooled is None else "plain decoding's median over the jobs"
    parts = [f"the same in all: {', '.join(shared)}"] if shared else []
    parts += ["k: max_proposal_len"] if lengths else []
    if "speed-up" in columns:
        parts.append(f"speed-up: over {over}")
        if any(cell.endswith(_DOUBTFUL) for cell in columns["speed-up"]):
            parts.append("?: other than its acceptance and step times predict, so repeat it")
    parts += ["in brackets: 95 % intervals"]
    parts += ["per pass: tokens a pass of the target"] if "per pass" in columns else []
    parts += ["room: tokens that the pool holds"] if "room" in columns else []
    parts += ["preempted: times a sequence gave its blocks back"] if "preempted" in columns else []
    return "; ".join(parts)


def _costs(done: Sequence[tuple[Job, RunResults]], keys: Sequence[str], pooled: PooledBaseline | None) -> Table:
    """What a round yields and costs, and what that makes of decoding alone; in the order of the jobs."""
    rows = []
    for job, results in done:
        speedup = speedup_over(pooled, results).value
        cost, decoding = round_cost(results, speedup), decoding_speedup(results, speedup)
        if cost is None or decoding is None or results.timing is None:
            continue
        proposing, scoring, *rest = cost.values()
        predicted = results.timing.predicted_speedup
        rows.append(
            (
                _settings(job, keys) or job.name,
                number(results.proposal.tokens_per_target_pass)[0],
                f"{proposing:.2f}",
                f"{scoring:.2f}",
                f"{sum(rest):.2f}",
                f"{sum(cost.values()):.2f}",
                f"{decoding:.2f}x",
                "n/a" if predicted is None else f"{predicted:.2f}x",
            )
        )
    hint = (
        "times in plain steps (plain decoding's time for a token); decoding: tokens / all, the speed-up without the "
        "prefill that both pay; predicted: the same from acceptance and single step times"
    )
    columns = ("tokens", "proposing", "scoring", "rest", "all", "decoding", "predicted")
    return Table(title="A round", columns=columns, rows=rows, hint=hint)


def _settings(job: Job, keys: Sequence[str]) -> str:
    """What the sweep varied, in this job; the last part of a key says enough in a table."""
    return ", ".join(f"{_short(key)}={job.overrides[key]}" for key in keys if key in job.overrides)


def _short(key: str) -> str:
    return "k" if key == _LENGTH else key.rpartition(".")[2]
