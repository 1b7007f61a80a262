"""What of a round counts, once an end-of-sequence token may have cut it."""

from spec_harness.requests import RoundOutcome, RoundRecord, SequenceMetadata, SkipReason


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
    proposed = len(outcome.draft_token_ids)
    cut = stop_index is not None and stop_index < outcome.num_accepted
    if cut and stop_index is not None:
        kept = stop_index + 1
        lists = {name: value[:kept] for name, value in vars(outcome).items() if isinstance(value, list)}
        outcome = RoundOutcome(num_accepted=kept, num_aligned=kept, **lists)
    counted = len(outcome.draft_token_ids)
    return RoundRecord(
        **vars(outcome),
        request_id=metadata.request_id,
        turn=turn,
        sample=metadata.sample,
        round=round_index,
        context_len=len(metadata.data),
        proposal_len=counted,
        num_emitted=len(outcome.output_token_ids),
        num_draft_tokens_past_end=proposed - counted,
        skip_reason=skip_reason,
        ended_by_accepted_eos=cut,
        ended_s=ended_s,
    )
