import pytest

from spec_harness.requests import SamplingParams, SequenceData


@pytest.mark.parametrize("start", range(7))
def test_tokens_from_any_position_are_the_tail_of_prompt_and_output(start: int) -> None:
    data = SequenceData([10, 11, 12], [20, 21])
    assert data.tokens_from(start) == [10, 11, 12, 20, 21][start:]
    assert data.token_ids == [10, 11, 12, 20, 21]
    assert len(data) == 5


def test_a_request_asks_for_at_least_one_token() -> None:
    assert SamplingParams(max_new_tokens=1).max_new_tokens == 1
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1, not 0"):
        SamplingParams(max_new_tokens=0)
