"""From finished sequences to a ``RunResults``: at the end of a run, or from the log of one that was killed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from spec_harness.errors import UserError
from spec_harness.metrics.breakdowns import breakdowns
from spec_harness.metrics.counts import ProposalCounts, counts_by_request
from spec_harness.metrics.estimates import proposal_results
from spec_harness.requests import RequestRecord
from spec_harness.results.round_log import ROUND_LOG, LoggedRuns, RunHeader
from spec_harness.results.schema import IntegrityResults, RunResults
from spec_harness.results.timing import TimedRun, timing_results


def run_results(
    header: RunHeader,
    runs: Sequence[TimedRun],
    *,
    status: Literal["done", "failed", "partial", "interrupted"],
    duration_s: float,
    notes: Sequence[str] = (),
    integrity: Mapping[str, Any] | None = None,
    timing: Mapping[str, Any] | None = None,
    **sections: Any,
) -> RunResults:
    """The results of the first run; ``integrity`` and ``timing`` are further fields of these sections."""
    k, records = header.max_proposal_len, runs[0].records
    per_request = list(counts_by_request(records, max_proposal_len=k).values())
    return RunResults(
        status=status,
        mode="run",
        config=header.config,
        provenance=header.provenance.model_copy(update={"duration_s": max(0.0, duration_s)}),
        integrity=IntegrityResults.model_validate({"level": header.integrity} | dict(integrity or {})),
        proposal=proposal_results(sum(per_request, ProposalCounts(max_proposal_len=k)), per_request),
        timing=timing_results(runs, **(timing or {})),
        breakdowns=breakdowns(records, max_proposal_len=k),
        notes=[*header.notes, *notes],
        **{"kv": header.kv, **sections},
    )


@dataclass(frozen=True)
class _LoggedRun:
    """What is left of an engine run that was killed. Its sequences' shares of the engine's time are its wall time: that
    of the sequences then in flight is not in it, as their tokens are not."""

    name: str
    records: list[RequestRecord]
    stage_s: None = None

    @property
    def wall_s(self) -> float:
        return sum((record.engine_s for record in self.records), 0.0)


def interrupted_results(run_dir: Path) -> RunResults:
    """The figures of exactly the sequences that had finished in the first run when its process was killed.

    Raises ``UserError`` without a readable round log. No speed-up: other requests may have finished in the baseline.
    """
    log = LoggedRuns(run_dir / ROUND_LOG)
    header, (records, last) = log.header, log.all()
    first = _LoggedRun(header.runs[0], records.get(header.runs[0], []))
    started = header.provenance.started_at
    ended = started if last is None else datetime.fromtimestamp(last, UTC)
    note = (
        f"Interrupted: these are the figures of the {len(first.records)} of {header.num_sequences} sequences that had "
        "finished. Speeds are over their shares of the engine's time; there is no speed-up."
    )
    spent = (ended - started).total_seconds()
    try:
        return run_results(header, [first], status="interrupted", duration_s=spent, notes=[note])
    except ValueError as error:  # the figures of a damaged line
        raise UserError(f"{run_dir / ROUND_LOG} is damaged: {error}") from error
