"""The first lines of a run's summary: who ran on what, and the one answer."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from spec_harness.report.formats import plural, tokens
from spec_harness.report.table import Line
from spec_harness.results.schema import Estimate, ProposerIdentity, RunResults


def headline(results: RunResults) -> list[Line]:
    """Who ran, and the one answer; what forbids believing the figures comes before it."""
    proposal = results.proposal
    target = f"target {results.provenance.target.name}"
    longest = tokens(len(proposal.accepted_length_histogram) - 1)
    who = f"{named_proposer(results.provenance.proposer)}, {target}, up to {longest} proposed a round"
    return [Line(who if proposal.num_drafts else target), *_answers(results), Line(conditions(results))]


def _answers(results: RunResults) -> Iterator[Line]:
    yield from state(results)
    yield from distrust(results)
    equality = results.integrity.baseline_equality
    if equality is not None and equality.fault:
        return
    if results.proposal.num_drafts == 0 and results.proposal.num_requests:  # else nothing had finished
        yield Line("Nothing was proposed: plain decoding by the target alone, no rates.", "caution")
    speedup = results.timing.speedup if results.timing else None
    if speedup is not None and speedup.value is not None:
        yield _speed_verdict(speedup)


def state(results: RunResults) -> Iterator[Line]:
    """What else than finished a run is."""
    finished = plural(results.proposal.num_requests, "request")
    if results.status == "failed":
        yield Line("The run FAILED: do not use its figures.", "alarm")
    elif results.status == "interrupted":
        yield Line(f"INTERRUPTED: figures of the {finished} that had finished.", "alarm")
    elif results.status == "partial":
        yield Line(f"PARTIAL: figures of the first {finished} only, as configured.", "caution")


def distrust(results: RunResults, of: str = "these figures") -> Iterator[Line]:
    """What forbids using ``of``."""
    failed = [check.name for check in results.integrity.checks if check.verdict == "fail"]
    if failed:
        yield Line(f"Do not use {of}: an integrity check failed ({', '.join(failed)}).", "alarm")
    equality = results.integrity.baseline_equality
    if equality is not None and equality.fault:
        differ = f"{plural(equality.fault, 'output')} differ{'s' * (equality.fault == 1)}"
        yield Line(f"Do not use {of}: {differ} from plain decoding by more than rounding.", "alarm")


def named_proposer(identity: ProposerIdentity) -> str:
    return f"draft {identity.label}" if identity.name == "draft_model" else identity.label


def origin(results: RunResults) -> str:
    """When, where and by which code the figures were made."""
    source, versions = results.provenance, results.provenance.versions
    return (
        f"Started {source.started_at:%Y-%m-%d %H:%M}, {source.duration_s:.0f} s on {source.device}"
        f"{_threads(results)}. spec_harness {versions.spec_harness}, torch {versions.torch}."
    )


def conditions(results: RunResults, *, leave_out: Collection[str] = ()) -> str:
    """What the figures were measured on and with. ``leave_out``: sections of the configuration to say nothing of."""
    source, config = results.provenance, results.config
    sampling: Any = config.get("sampling") or {}
    asked = results.proposal.num_requests
    parts = [plural(asked, "prompt")] * ("data" not in leave_out)
    if "sampling" not in leave_out and sampling:
        parts.append(f"at most {sampling.get('max_new_tokens')} new tokens each, {_drawn(sampling)}")
    if "max_num_seqs" not in leave_out and "max_num_seqs" in config:
        parts.append(f"up to {config['max_num_seqs']} at a time")
    return ", ".join([*parts, f"{source.target.dtype} on {source.device}{_threads(results)}"])


def _threads(results: RunResults) -> str:
    threads = results.provenance.threads
    return f" ({plural(threads, 'thread')})" if threads else ""


def _drawn(sampling: Mapping[str, Any]) -> str:
    if not sampling.get("temperature"):
        return "greedy"
    samples = f", {sampling['n']} samples" if (sampling.get("n") or 1) > 1 else ""
    return f"temperature {sampling['temperature']:g}{samples}"


def _speed_verdict(speedup: Estimate) -> Line:
    """Faster or slower only where the interval says so."""
    value, interval = speedup.value or 0.0, ""
    if speedup.ci95 is not None:
        interval = " ({:.2f} to {:.2f})".format(*speedup.ci95)
        if speedup.ci95[0] <= 1 <= speedup.ci95[1]:
            return Line(f"No clear difference from plain decoding here: {value:.2f}x its speed{interval}.", "caution")
    else:
        text = f"{value:.2f}x plain decoding's tokens per second here; too few requests to say whether it is faster."
        return Line(text, "caution")
    verdict = "faster than" if value > 1 else "slower than" if value < 1 else "as fast as"
    text = f"Speculative decoding is {verdict} plain decoding here: {value:.2f}x its tokens per second{interval}."
    return Line(text, "good" if value > 1 else "caution")
