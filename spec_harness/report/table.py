"""A table as data: what the terminal, report.md and report.html each render in their own way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "caution", "alarm"]
MEANING = "what it is"  # the column that explains
WORDS = {MEANING, "settings", "why", "verdict"}  # columns of words; those without a name are too


@dataclass(frozen=True)
class Bar:
    """A cell that shows a share, 0 to 1, as the length of a bar."""

    share: float


@dataclass(frozen=True)
class Line:
    text: str
    tone: Tone = ""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A table. Its first column is headed by the title; columns of figures are right-aligned."""

    title: str
    columns: Sequence[str]  # of the columns behind the first
    rows: Sequence[Sequence[str | Bar | Line]]
    hint: str = ""  # below the table
    beside: bool = False  # there is room for it beside the table before
    dispensable: Sequence[str] = (MEANING,)  # columns that a narrow terminal does without, the first first
