from spec_harness.engine.stopping import StopCriteria
from tests.helpers import metadata


def spell(token_ids: list[int]) -> str:
    return "".join(chr(96 + i) for i in token_ids)


def test_the_first_ending_token_counts() -> None:
    m = metadata(0, [1], [], stop_token_ids=frozenset([7, 9]))
    assert StopCriteria(spell).first_stop(m, [3, 9, 7]) == (1, "eos")
    assert StopCriteria(spell).first_stop(m, [3, 4]) is None


def test_a_request_without_stop_ids_goes_on() -> None:
    assert StopCriteria(spell).first_stop(metadata(0, [1], []), [2, 2, 2]) is None


def test_a_stop_string_ends_at_the_token_that_completes_it() -> None:
    criteria = StopCriteria(spell, ("bad",))
    assert criteria.first_stop(metadata(0, [1], []), [2, 1, 4, 5]) == (2, "stop")


def test_a_stop_string_may_begin_in_an_earlier_round_but_not_in_the_prompt() -> None:
    criteria = StopCriteria(spell, ("bad",))
    assert criteria.first_stop(metadata(0, [5], [], [2, 1]), [4, 5]) == (0, "stop")
    assert criteria.first_stop(metadata(0, [2, 1], []), [4, 5]) is None


def test_an_earlier_stop_string_wins_over_a_later_stop_id() -> None:
    m = metadata(0, [1], [], stop_token_ids=frozenset([5]))
    criteria = StopCriteria(spell, ("bad",))
    assert criteria.first_stop(m, [2, 1, 4, 5]) == (2, "stop")
    assert criteria.first_stop(m, [2, 5, 1, 4]) == (1, "eos")
