"""How a statistic is declared: what is summed over rounds, and which two sums make a rate. See ``statistics.py``."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from spec_harness.requests import RoundRecord

Count = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Estimate(Section):
    """A ratio of sums over requests, with its uncertainty."""

    value: float | None = Field(description="point estimate; null if its denominator is zero or unknown")
    ci95: tuple[float, float] | None = Field(
        default=None, description="95 % interval [low, high]; null if fewer than 8 requests contribute"
    )
    n: Count = Field(description="requests that contribute, i.e. whose own denominator is not zero")


@dataclass(frozen=True)
class Sum:
    """Sum over rounds of ``of``, plus ``per_sequence`` for each sequence."""

    of: Callable[[RoundRecord], int | float]
    per_sequence: int = 0


@dataclass(frozen=True)
class Tally:
    """How many rounds, or positions in them, fall under each key: a round adds 1 at every key that ``of`` gives."""

    of: Callable[[RoundRecord], Iterable[Any]]
    empty: Callable[[int], Any] = lambda k: [0] * k  # from max_proposal_len: a list or dict of zeros


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How tables show an estimate."""

    label: str = ""  # default: its name
    meaning: str = ""  # a few words; default: its description
    unit: Literal["share", "tokens", "nats"] = "share"
    speaks_of: Literal["drafts", "rounds"] = "drafts"  # the rounds with a proposal, or all
    table: bool = True  # a row of a run's summary
    compare: bool = True  # a row of the comparison of two runs


@dataclass(frozen=True)
class Ratio(Shown):
    """``offset`` + numerator / denominator, each the name of a sum or a sum of its own. Tallies give a ratio a
    position."""

    above: str | Sum | Tally
    below: str | Sum | Tally
    offset: float = 0.0

    def terms(self, counts: Any) -> tuple[Any, Any]:
        """Numerator and denominator in ``counts``; lists of both where the numerator is one."""
        above, below = (getattr(counts, str(name)) for name in (self.above, self.below))
        return above, [below] * len(above) if isinstance(above, list) and not isinstance(below, list) else below


@dataclass(frozen=True)
class RequestMean(Shown):
    """Mean over the requests that have one of their own value of a ratio, weighted by a sum."""

    of: Ratio
    weight: str | None = None

    def terms(self, counts: Any) -> tuple[Any, Any]:
        """What the one request of ``counts`` adds to the numerator and the denominator."""
        above, below = self.of.terms(counts)
        if not below:
            return 0.0, 0
        weight = 1 if self.weight is None else getattr(counts, self.weight)
        return (self.of.offset + above / below) * weight, weight
