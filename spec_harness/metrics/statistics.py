"""Every proposal statistic, declared once: results.json, tables, W&B, comparisons and sweep frames follow from it.

Symbols: ``l`` draft tokens proposed in a round, ``a`` accepted (unbroken prefix), ``n`` aligned, ``e`` emitted,
``k = max_proposal_len``; sums run over rounds. Every rate is a ratio of pooled sums; one whose denominator is zero is
null, never 0.
"""

from bisect import bisect_right
from dataclasses import replace
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import Field

from spec_harness.metrics.declaration import Count, Estimate, Ratio, RequestMean, Section, Shown, Sum, Tally
from spec_harness.requests import SkipReason

SKIP_REASONS: tuple[SkipReason, ...] = get_args(SkipReason)
# Lowest rank of each bar of target_rank_in_draft: 1, 2, 3-4, 5-8, 9-16, 17-32, 33 and more.
RANK_BINS = (1, 2, 3, 5, 9, 17, 33)
_LENGTH = Ratio(
    "num_accepted_tokens", "num_drafts", offset=1.0, unit="tokens", meaning="accepted tokens a proposal, plus 1"
)


class PublishedSums:
    """Sums that are figures by themselves."""

    num_prefill_tokens: Annotated[
        Count, Sum(lambda r: 0, per_sequence=1), Field(description="tokens emitted by prefills: one per sequence")
    ]
    num_rounds: Annotated[
        Count, Sum(lambda r: 1), Field(description="rounds of one sequence: propose, score, verify, commit")
    ]
    num_drafts: Annotated[Count, Sum(lambda r: r.proposal_len > 0), Field(description="rounds with l > 0")]
    num_draft_tokens: Annotated[Count, Sum(lambda r: r.proposal_len), Field(description="Σl, tokens")]
    num_accepted_tokens: Annotated[Count, Sum(lambda r: r.num_accepted), Field(description="Σa, tokens")]
    num_aligned_tokens: Annotated[
        Count, Sum(lambda r: r.num_aligned), Field(description="Σn, tokens; n counts accepts after a rejection too")
    ]
    num_emitted_tokens: Annotated[
        Count,
        Sum(lambda r: r.num_emitted),
        Field(description="Σe, tokens; e = a + 1, or a after an accepted end of sequence"),
    ]
    num_output_tokens: Annotated[
        Count,
        Sum(lambda r: r.num_emitted, per_sequence=1),
        Field(description="num_prefill_tokens + Σe, tokens"),
    ]
    num_draft_tokens_past_end: Annotated[
        Count,
        Sum(lambda r: r.num_draft_tokens_past_end),
        Field(description="tokens drafted after an accepted end of sequence; not in Σl"),
    ]
    rounds_ended_by_accepted_eos: Annotated[
        Count,
        Sum(lambda r: r.ended_by_accepted_eos),
        Field(description="rounds cut at an accepted end-of-sequence token"),
    ]
    skipped: Annotated[
        dict[SkipReason, Count],
        Tally(
            lambda r: () if r.skip_reason is None else (r.skip_reason,), empty=lambda k: dict.fromkeys(SKIP_REASONS, 0)
        ),
        Field(description="rounds with l = 0, by reason"),
    ]
    accepted_length_histogram: Annotated[
        list[Count],
        Tally(lambda r: (r.num_accepted,) if r.proposal_len else (), empty=lambda k: [0] * (k + 1)),
        Field(description="[j]: rounds with l > 0 and a = j, j = 0 … k"),
    ]
    target_rank_in_draft: Annotated[
        list[Count],
        Tally(
            lambda r: (bisect_right(RANK_BINS, rank) - 1 for rank in r.target_rank_in_draft),
            empty=lambda k: [0] * len(RANK_BINS),
        ),
        Field(
            description="the accepted positions and the first rejected one of each proposal, by the draft's rank of "
            "the target's most probable token: 1, 2, 3-4, 5-8, 9-16, 17-32, 33 and more"
        ),
    ]


class InnerSums:
    """Sums that only ratios are made of, several of them. ``judged``: the accepted positions and the first rejected
    one of each proposal; ``compared``: those of them where the proposer has a distribution of its own."""

    num_accepted_beyond: Annotated[list[int], Tally(lambda r: range(r.num_accepted))]  # [i]: rounds with a > i
    num_proposed_beyond: Annotated[list[int], Tally(lambda r: range(r.proposal_len))]  # [i]: rounds with l > i
    num_reached: Annotated[  # [i]: rounds with a >= i and l > i
        list[int], Tally(lambda r: range(min(r.num_accepted + 1, r.proposal_len)))
    ]
    num_judged: Annotated[int, Sum(lambda r: len(r.expected_acceptance))]
    num_compared: Annotated[int, Sum(lambda r: len(r.draft_entropy))]


class ProposalResults(PublishedSums, Section):
    """Proposal statistics over all rounds. Counts are plain integers, rates are estimates in 0 … 1."""

    num_requests: Count = Field(description="requests")
    coverage: Annotated[
        Estimate,
        Ratio("num_drafts", "num_rounds", speaks_of="rounds", table=False),
        Field(description="num_drafts / num_rounds"),
    ]
    acceptance_rate: Annotated[
        Estimate,
        Ratio("num_accepted_tokens", "num_draft_tokens", meaning="accepted / proposed draft tokens"),
        Field(description="Σa / Σl"),
    ]
    mean_acceptance_length: Annotated[
        Estimate, _LENGTH, Field(description="1 + Σa / num_drafts, tokens (bonus included)")
    ]
    tokens_per_target_pass: Annotated[
        Estimate,
        Ratio(
            "num_emitted_tokens",
            "num_rounds",
            unit="tokens",
            speaks_of="rounds",
            meaning="emitted tokens / rounds (plain: 1)",
        ),
        Field(description="Σe / num_rounds, tokens"),
    ]
    acceptance_rate_per_position: Annotated[
        list[Estimate],
        Ratio("num_accepted_beyond", "num_proposed_beyond"),
        Field(description="[i]: #(a > i) / #(l > i)"),
    ]
    acceptance_rate_per_position_unconditional: Annotated[
        list[Estimate], Ratio("num_accepted_beyond", "num_drafts"), Field(description="[i]: #(a > i) / num_drafts")
    ]
    conditional_acceptance_per_position: Annotated[
        list[Estimate],
        Ratio("num_accepted_beyond", "num_reached"),
        Field(description="[i]: #(a > i) / #(a >= i and l > i)"),
    ]
    system_efficiency: Annotated[
        Estimate,
        Ratio(
            "num_emitted_tokens",
            Sum(lambda r: r.proposal_len + 1),
            speaks_of="rounds",
            compare=False,
            meaning="emitted / if all were accepted",
        ),
        Field(description="Σe / Σ(l + 1), over all rounds"),
    ]
    aligned_rate: Annotated[
        Estimate,
        Ratio("num_aligned_tokens", "num_draft_tokens", compare=False, meaning="each judged alone / proposed"),
        Field(description="Σn / Σl"),
    ]
    expected_acceptance_rate: Annotated[
        Estimate,
        Ratio(
            Sum(lambda r: sum(r.expected_acceptance)),
            "num_judged",
            label="expected acceptance",
            compare=False,
            meaning="overlap of their probabilities",
        ),
        Field(
            description="mean of Σ_v min(draft, target) over the accepted and the first rejected position of each "
            "proposal"
        ),
    ]
    draft_entropy: Annotated[
        Estimate,
        Ratio(
            Sum(lambda r: sum(r.draft_entropy)),
            "num_compared",
            label="entropy of the draft",
            unit="nats",
            compare=False,
            meaning="how unsure, at temperature 1",
        ),
        Field(description="mean at those positions, raw softmax, nats; null without a draft model"),
    ]
    target_entropy: Annotated[
        Estimate,
        Ratio(
            Sum(lambda r: sum(r.target_entropy)),
            "num_compared",
            label="entropy of the target",
            unit="nats",
            compare=False,
            meaning="the same, of the target",
        ),
        Field(description="mean at those positions, raw softmax, nats"),
    ]
    kl_target_draft: Annotated[
        Estimate,
        Ratio(
            Sum(lambda r: sum(r.kl_target_draft)),
            "num_compared",
            label="divergence",
            unit="nats",
            compare=False,
            meaning="KL(target, draft); 0: the same",
        ),
        Field(description="mean of Σ_v target · log(target / draft) at those positions, raw softmax, nats"),
    ]
    macro_mean_acceptance_length: Annotated[
        Estimate,
        RequestMean(_LENGTH, unit="tokens", table=False, compare=False),
        Field(description="mean over requests of mean_acceptance_length, tokens"),
    ]
    token_weighted_mean_acceptance_length: Annotated[
        Estimate,
        RequestMean(_LENGTH, "num_output_tokens", unit="tokens", table=False, compare=False),
        Field(description="the same, weighted by output tokens"),
    ]


def _declared(owner: type, kind: type | tuple[type, ...]) -> dict[str, Any]:
    hints = get_type_hints(owner, include_extras=True)
    found = {
        name: [x for x in getattr(hint, "__metadata__", ()) if isinstance(x, kind)] for name, hint in hints.items()
    }
    return {name: items[0] for name, items in found.items() if items}


SUMS: dict[str, Sum | Tally] = {}  # everything that is counted, by name
ESTIMATES: dict[str, Ratio | RequestMean] = {}  # by name, their parts as names
for _owner in (PublishedSums, InnerSums):
    SUMS |= _declared(_owner, (Sum, Tally))
for _name, _one in _declared(ProposalResults, Shown).items():
    for _part in ("above", "below"):
        _sum = getattr(_one, _part, None)
        if isinstance(_sum, Sum | Tally):
            SUMS[f"{_name}_{_part}"] = _sum
            _one = replace(_one, **{_part: f"{_name}_{_part}"})
    _label = _one.label or _name.replace("_", " ")
    _meaning = _one.meaning or ProposalResults.model_fields[_name].description
    ESTIMATES[_name] = replace(_one, label=_label, meaning=_meaning)
# Estimates that are one figure, not one a position: what a table can have a row of.
SINGLE = {name: one for name, one in ESTIMATES.items() if ProposalResults.model_fields[name].annotation is Estimate}


class Breakdowns(Section):
    category: dict[str, ProposalResults] = Field(default_factory=dict, description="by category of the data set")
    turn: dict[str, ProposalResults] = Field(default_factory=dict, description="by turn of the conversation, from 0")
    proposal_len: dict[str, ProposalResults] = Field(
        default_factory=dict, description="rounds by l; prefills belong to none"
    )
    context_bucket: dict[str, ProposalResults] = Field(
        default_factory=dict, description="rounds by the tokens before them, powers of two; prefills belong to none"
    )
