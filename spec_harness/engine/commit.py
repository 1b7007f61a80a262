"""What of a round counts, once an end-of-sequence token may have cut it."""

from spec_harness.engine.round import RoundOutcome
from spec_harness.requests import RoundRecord, SequenceMetadata, SkipReason


def round_record(
    metadata: SequenceMetadata,
    outcome: RoundOutcome,
    *,
    turn: int,
    round_index: int,
    skip_reason: SkipReason | None,
    stop_index: int | None,
    ended_s: float,
) -> RoundRecord:
    """The record of one round; ``stop_index`` is the place of the first ending token among the emitted ones.

    If that token is an accepted draft token (index j), then nothing after it counts: l, a and n are cut to j + 1 and j
    + 1 tokens are emitted. If it is the recovered or bonus token, it is the last emitted anyway and the round counts
    whole.
    """
    proposed, accepted = len(outcome.draft_token_ids), outcome.num_accepted
    cut = stop_index is not None and stop_index < accepted
    counted = stop_index + 1 if cut and stop_index is not None else proposed
    num_accepted = min(accepted, counted)
    emitted = outcome.output_token_ids[: num_accepted if cut else num_accepted + 1]
    return RoundRecord(
        request_id=metadata.request_id,
        turn=turn,
        sample=metadata.sample,
        round=round_index,
        context_len=len(metadata.data),
        proposal_len=counted,
        num_accepted=num_accepted,
        num_aligned=sum(outcome.passed[:counted]),
        num_emitted=len(emitted),
        num_draft_tokens_past_end=proposed - counted,
        skip_reason=skip_reason,
        ended_by_accepted_eos=cut,
        draft_token_ids=outcome.draft_token_ids[:counted],
        output_token_ids=emitted,
        draft_probs=outcome.draft_probs[:counted],
        target_probs=outcome.target_probs[:counted],
        expected_acceptance=outcome.expected_acceptance[:counted],
        draft_entropy=outcome.draft_entropy[:counted],
        target_entropy=outcome.target_entropy[:counted],
        kl_target_draft=outcome.kl_target_draft[:counted],
        target_rank_in_draft=outcome.target_rank_in_draft[:counted],
        ended_s=ended_s,
    )
