"""What of a round counts, with an end-of-sequence token at each place."""

from spec_harness.engine.commit import round_record
from spec_harness.requests import RoundOutcome, RoundRecord
from tests.helpers import metadata

END = 9


def commit(drafted: list[int], accepted: int, last: int, *, passed: list[bool] | None = None) -> RoundRecord:
    """A round that emitted the accepted tokens and ``last``; the first ``END`` among them ends the sequence."""
    emitted = [*drafted[:accepted], last]
    outcome = RoundOutcome(
        output_token_ids=emitted,
        num_accepted=accepted,
        num_aligned=accepted if passed is None else sum(passed),
        draft_token_ids=drafted,
        draft_probs=[0.5] * len(drafted),
        target_probs=[0.25] * len(drafted),
        expected_acceptance=[0.7] * min(len(drafted), accepted + 1),
    )
    record = round_record(
        metadata(3, [1, 2], [], [4]),
        outcome,
        turn=0,
        round_index=2,
        skip_reason=None,
        stop_index=emitted.index(END) if END in emitted else None,
        ended_s=0.5,
    )
    assert len(record.draft_token_ids) == len(record.draft_probs) == len(record.target_probs) == record.proposal_len
    assert len(record.output_token_ids) == record.num_emitted
    assert record.proposal_len + record.num_draft_tokens_past_end == len(drafted)
    return record


def counts(record: RoundRecord) -> tuple[int, int, int, int, int, bool]:
    """l, a, n, e, drafted past the end, ended by an accepted end-of-sequence."""
    return (
        record.proposal_len,
        record.num_accepted,
        record.num_aligned,
        record.num_emitted,
        record.num_draft_tokens_past_end,
        record.ended_by_accepted_eos,
    )


def test_without_an_end_everything_counts() -> None:
    assert counts(commit([5, 6, 7], 3, 8)) == (3, 3, 3, 4, 0, False)
    assert counts(commit([5, 6, 7], 1, 8, passed=[True, False, True])) == (3, 1, 2, 2, 0, False)
    assert counts(commit([], 0, 8)) == (0, 0, 0, 1, 0, False)


def test_an_end_inside_the_accepted_prefix_cuts_the_round_behind_it() -> None:
    record = commit([5, END, 7, 8], 4, 3)
    assert counts(record) == (2, 2, 2, 2, 2, True)
    assert record.output_token_ids == [5, END]
    assert len(record.expected_acceptance) == 2


def test_an_end_as_the_first_draft_token() -> None:
    assert counts(commit([END, 6, 7], 3, 8)) == (1, 1, 1, 1, 2, True)


def test_an_end_at_the_last_place_of_the_accepted_prefix_takes_the_bonus_token_away() -> None:
    record = commit([5, 6, END], 3, 8)
    assert counts(record) == (3, 3, 3, 3, 0, True)
    assert record.output_token_ids == [5, 6, END]


def test_an_end_accepted_right_before_a_rejection() -> None:
    record = commit([5, END, 7], 2, 8, passed=[True, True, False])
    assert counts(record) == (2, 2, 2, 2, 1, True)
    assert record.output_token_ids == [5, END]
    assert len(record.expected_acceptance) == 2


def test_an_end_as_bonus_or_recovered_token_leaves_the_round_whole() -> None:
    assert counts(commit([5, 6, 7], 3, END)) == (3, 3, 3, 4, 0, False)
    assert counts(commit([5, 6, 7], 1, END, passed=[True, False, True])) == (3, 1, 2, 2, 0, False)


def test_a_drafted_end_beyond_a_rejection_does_not_count() -> None:
    record = commit([5, 6, END], 1, 8, passed=[True, False, True])
    assert counts(record) == (3, 1, 2, 2, 0, False)
    assert record.output_token_ids == [5, 8]


def test_a_round_says_where_it_stood() -> None:
    record = commit([5], 1, 8)
    assert (record.request_id, record.round, record.context_len, record.sample, record.turn) == ("r3", 2, 3, 0, 0)
