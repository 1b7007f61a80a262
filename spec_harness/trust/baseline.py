"""Greedy output against the baseline's: the same, a numerical tie, or a fault.

Greedy speculative decoding is lossless, so outputs may differ only where the two largest logits are as close as the
rounding of two differently shaped forwards. A first difference is therefore teacher-forced through the dense model and
judged by its margin.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import dense_logits
from spec_harness.requests import RequestRecord

Verdict = Literal["equal", "tie", "fault"]
Key = tuple[str, int, int]


def record_key(record: RequestRecord) -> Key:
    """What identifies a sequence: request id, turn, sample."""
    return record.request_id, record.turn, record.sample


def judge(target: LoadedModel, record: RequestRecord, baseline: RequestRecord) -> Verdict | None:
    """``None`` if the prompts differ already, as the second turn's may after a tie in the first."""
    if record.prompt_token_ids != baseline.prompt_token_ids:
        return None
    ours, theirs = record.token_ids, baseline.token_ids
    if ours == theirs:
        return "equal"
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if at is None:  # one goes on where the other stopped
        return "fault"
    logits = dense_logits(target.model, record.prompt_token_ids + ours[:at])[-1].float()
    best = float(logits.max())
    margin = best - min(float(logits[ours[at]]), float(logits[theirs[at]]))
    return "tie" if margin <= target.check.tie_tolerance else "fault"


def judge_all(
    target: LoadedModel, records: Iterable[RequestRecord], baseline: Mapping[Key, RequestRecord]
) -> dict[Verdict, int]:
    """Sets ``baseline_verdict`` of each record and counts the verdicts."""
    counts: dict[Verdict, int] = {"equal": 0, "tie": 0, "fault": 0}
    for record in records:
        other = baseline.get(record_key(record))
        record.baseline_verdict = None if other is None else judge(target, record, other)
        if record.baseline_verdict is not None:
            counts[record.baseline_verdict] += 1
    return counts
