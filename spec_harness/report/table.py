"""A table as data: what the terminal, report.md and report.html each render in their own way."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
    legend: Mapping[str, str] = field(default_factory=dict)  # what single columns mean, below the table too
    beside: bool = False  # goes next to the table before it where there is room
    dispensable: Sequence[str] = (MEANING,)  # columns that a narrow terminal drops, the first first

    def below(self, without: Collection[str] = ()) -> str:
        """The hint and the meanings of the columns shown: all but ``without``."""
        shown = [
            f"{name}: {text}" for name, text in self.legend.items() if name in self.columns and name not in without
        ]
        return "; ".join([*([self.hint] if self.hint else []), *shown])


def holds_figures(column: str) -> bool:
    """By its name, whether a column other than the first is right-aligned."""
    return column not in _WORDS
