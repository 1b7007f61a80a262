"""Every figure of a results.json by a flat name, as loggers take them."""

from collections.abc import Iterator
from typing import Any

from spec_harness.results.schema import RunResults

SECTIONS = ("proposal", "timing", "kv", "integrity")


def plain_numbers(results: RunResults) -> dict[str, int | float]:
    """``section/name`` (``section/name/i`` in lists): estimates by their value; missing ones are left out."""
    dumped = results.model_dump(mode="json", include=set(SECTIONS))
    return {key: value for section in SECTIONS for key, value in _flat(section, dumped[section])}


def _flat(key: str, value: Any) -> Iterator[tuple[str, int | float]]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield key, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _flat(f"{key}/{index}", item)
    elif set(value) == {"value", "ci95", "n"}:
        yield from _flat(key, value["value"])
    else:
        for name, item in value.items():
            yield from _flat(f"{key}/{name}", item)
