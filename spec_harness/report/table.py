"""A table as data: what the terminal, report.md and report.html each render in their own way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "caution", "alarm"]
MEANING = "what it is"  # the column that explains
_WORDS = {"", MEANING, "settings", "why", "verdict"}  # columns of words and bars


@dataclass(frozen=True)
class Bar:
    """A cell that shows a share, 0 to 1, as the length of a bar."""

    share: float


@dataclass(frozen=True)
class Line:
    text: str
    tone: Tone = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The title heads the first column; columns of figures are right-aligned."""

    title: str
    columns: Sequence[str]  # all but the first
    rows: Sequence[Sequence[str | Bar | Line]]
    hint: str = ""  # below the table
    beside: bool = False  # goes next to the table before it where there is room
    dispensable: Sequence[str] = (MEANING,)  # columns that a narrow terminal drops, the first first


def holds_figures(column: str) -> bool:
    """By its name, whether a column other than the first is right-aligned."""
    return column not in _WORDS
