"""How figures are written for people: shares in percent, the interval beside its value, n/a where nothing is known."""

from spec_harness.results.schema import Estimate, Latency

UNKNOWN = "n/a"
BAR_WIDTH = 16  # characters of a full bar
_EIGHTHS = ("", *map(chr, range(0x258F, 0x2588, -1)))  # of a character: from nothing to seven


def bar_text(share: float, *, blocks: bool = True) -> str:
    """A share, 0 to 1, as a bar, to an eighth of a character where there are such blocks; something for all above 0."""
    length = share * BAR_WIDTH
    if not blocks:
        return "#" * max(round(length), int(length > 0))
    whole, eighths = divmod(max(round(8 * length), int(length > 0)), 8)
    return "\N{FULL BLOCK}" * whole + _EIGHTHS[eighths]


def printable(text: str, *, instead: str = "?") -> str:
    """Without what would act on a terminal, or is no character at all."""
    return "".join(character if character.isprintable() else instead for character in text)


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def tokens(count: int) -> str:
    return plural(count, "token")


def factor(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}x"


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def number(estimate: Estimate, *, digits: int = 2, unit: str = "", scale: int = 1) -> tuple[str, str]:
    """A number and its interval."""
    if estimate.value is None:
        return UNKNOWN, ""
    ends = [f"{scale * end:,.{digits}f}" for end in estimate.ci95 or ()]
    return f"{scale * estimate.value:,.{digits}f}{unit}", " to ".join(ends)


def rate(estimate: Estimate) -> tuple[str, str]:
    """A share and its interval, in percent."""
    return number(estimate, digits=1, unit=" %", scale=100)


def together(value: str, interval: str) -> str:
    """Both in one cell."""
    return f"{value} ({interval.replace(' to ', '-')})" if interval else value


def latency(times: Latency | None) -> str:
    return UNKNOWN if times is None else f"{1000 * times.p50:,.1f} ms (p95 {1000 * times.p95:,.1f})"


def short(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"
