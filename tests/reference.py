"""The one reference for all proposal statistics: a naive loop over rounds, by the definitions."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from spec_harness.metrics.counts import ProposalCounts
from spec_harness.metrics.estimates import proposal_results
from spec_harness.metrics.statistics import RANK_BINS
from spec_harness.results.schema import Estimate, ProposalResults
from tests.factories import round_of


def quotient(above: float, below: float, offset: float = 0.0) -> float | None:
    return offset + above / below if below else None


def naive(rounds: Sequence[dict[str, Any]], k: int, outputs: dict[str, int]) -> dict[str, Any]:
    """Every pooled figure, by one loop over the rounds and the definitions. ``outputs``: tokens by request."""
    n: dict[str, float] = defaultdict(float)
    skipped: dict[str, int] = defaultdict(int)
    histogram, ranks = [0] * (k + 1), [0] * len(RANK_BINS)
    beyond, proposed, reached = [0] * k, [0] * k, [0] * k
    own: dict[str, list[int]] = defaultdict(list)
    for row in rounds:
        length, accepted = row["proposal_len"], row["num_accepted"]
        n["rounds"] += 1
        n["l"] += length
        n["a"] += accepted
        n["n"] += row["num_aligned"]
        n["e"] += row["num_emitted"]
        n["past_end"] += row["num_draft_tokens_past_end"]
        n["eos"] += row["ended_by_accepted_eos"]
        n["overlap"] += sum(row["expected_acceptance"])
        n["judged"] += len(row["expected_acceptance"])
        for name in ("draft_entropy", "target_entropy", "kl_target_draft"):
            n[name] += sum(row[name])
        for rank in row["target_rank_in_draft"]:
            n["compared"] += 1
            ranks[max(i for i, low in enumerate(RANK_BINS) if rank >= low)] += 1
        if length == 0:
            skipped[row["skip_reason"]] += 1
            continue
        n["drafts"] += 1
        histogram[accepted] += 1
        own[row["request_id"]].append(accepted)
        for i in range(k):
            proposed[i] += length > i
            beyond[i] += accepted > i
            reached[i] += length > i and accepted >= i
    lengths = {key: 1 + sum(values) / len(values) for key, values in own.items()}
    weight = sum(outputs[key] for key in lengths)
    return {
        "num_rounds": n["rounds"],
        "num_drafts": n["drafts"],
        "num_draft_tokens": n["l"],
        "num_accepted_tokens": n["a"],
        "num_aligned_tokens": n["n"],
        "num_emitted_tokens": n["e"],
        "num_draft_tokens_past_end": n["past_end"],
        "rounds_ended_by_accepted_eos": n["eos"],
        "skipped": dict(skipped),
        "accepted_length_histogram": histogram,
        "coverage": quotient(n["drafts"], n["rounds"]),
        "acceptance_rate": quotient(n["a"], n["l"]),
        "mean_acceptance_length": quotient(n["a"], n["drafts"], 1.0),
        "tokens_per_target_pass": quotient(n["e"], n["rounds"]),
        "acceptance_rate_per_position": [quotient(a, b) for a, b in zip(beyond, proposed, strict=True)],
        "acceptance_rate_per_position_unconditional": [quotient(a, n["drafts"]) for a in beyond],
        "conditional_acceptance_per_position": [quotient(a, b) for a, b in zip(beyond, reached, strict=True)],
        "aligned_rate": quotient(n["n"], n["l"]),
        "system_efficiency": quotient(n["e"], n["l"] + n["rounds"]),
        "expected_acceptance_rate": quotient(n["overlap"], n["judged"]),
        "draft_entropy": quotient(n["draft_entropy"], n["compared"]),
        "target_entropy": quotient(n["target_entropy"], n["compared"]),
        "kl_target_draft": quotient(n["kl_target_draft"], n["compared"]),
        "target_rank_in_draft": ranks,
        "macro_mean_acceptance_length": quotient(sum(lengths.values()), len(lengths)),
        "token_weighted_mean_acceptance_length": quotient(
            sum(length * outputs[key] for key, length in lengths.items()), weight
        ),
    }


def plain(name: str, section: ProposalResults) -> Any:
    value = getattr(section, name)
    if name == "skipped":
        return {reason: count for reason, count in value.items() if count}
    if isinstance(value, list):
        return [item.value if isinstance(item, Estimate) else item for item in value]
    return value.value if isinstance(value, Estimate) else value


def assert_equal(section: ProposalResults, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        found = plain(name, section)
        pairs = zip(found, value, strict=True) if isinstance(value, list) else [(found, value)]
        for ours, theirs in pairs:
            assert ours == (pytest.approx(theirs, rel=1e-9) if isinstance(theirs, float) else theirs), name


def counts_of_histogram(bars: Sequence[int]) -> ProposalCounts:
    """Counts behind a published accepted-length histogram of k + 1 entries: every round proposed k tokens, none ended
    in an accepted end-of-sequence token; what followed a rejection is not told, so nothing more is aligned."""
    k = len(bars) - 1
    rounds = [round_of(k, accepted) for accepted, count in enumerate(bars) for _ in range(count)]
    return ProposalCounts.from_rounds(rounds, max_proposal_len=k, num_prefill_tokens=0)


def figures(counts: ProposalCounts, per_request: Collection[ProposalCounts] = ()) -> SimpleNamespace:
    """The proposal section, its estimates by their plain values; every reason for which a round was skipped."""
    section = proposal_results(counts, per_request)
    return SimpleNamespace(
        **{name: plain(name, section) for name in ProposalResults.model_fields} | {"skipped": section.skipped}
    )
