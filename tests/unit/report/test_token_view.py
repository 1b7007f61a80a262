"""Which token came from where, and how it is shown."""

import pytest

from spec_harness.report.token_view import Kind, legend_html, token_kinds, tokens_html


@pytest.mark.parametrize(
    ("round_", "kinds"),
    [
        ((3, 0, 1), ["recovered"]),
        ((3, 2, 3), ["accepted", "accepted", "recovered"]),
        ((3, 3, 4), ["accepted", "accepted", "accepted", "bonus"]),
        ((0, 0, 1), ["target"]),
        ((2, 2, 2), ["accepted", "accepted"]),  # ended by an accepted end-of-sequence token
    ],
)
def test_kinds_of_a_round(round_: tuple[int, int, int], kinds: list[Kind]) -> None:
    assert token_kinds([round_]) == ["target", *kinds]


def test_rounds_follow_each_other() -> None:
    assert token_kinds([(1, 1, 2), (1, 0, 1)]) == ["target", "accepted", "bonus", "recovered"]
    assert token_kinds([]) == ["target"]


def test_texts_are_escaped_and_unknown_ids_named() -> None:
    html = tokens_html([1, 2], ["target", "accepted"], {1: "<b>\n"})
    assert "&lt;b&gt;\n</span>" in html
    assert "\N{LEFT ANGLE BRACKET}2\N{RIGHT ANGLE BRACKET}</span>" in html
    assert 'title="2: accepted"' in html


def test_a_text_cut_inside_a_round_shows_what_is_left() -> None:
    assert tokens_html([1], ["target", "accepted"], {1: "x"}).count("<span") == 1


def test_every_kind_is_explained() -> None:
    assert all(f">{kind}</span>" in legend_html() for kind in ("accepted", "recovered", "bonus", "target"))
