"""One figure of the results, by its dotted key: what a sweep optimizes."""

import types
import typing
from typing import Any

from pydantic import BaseModel

from spec_harness.errors import UserError
from spec_harness.results.schema import Estimate, RunResults


def check_objective(key: str) -> None:
    """Raises ``UserError`` unless the key can hold a figure in a results.json."""
    here: Any = RunResults
    for depth, name in enumerate(parts := key.split(".")):
        fields = here.model_fields if isinstance(here, type) and issubclass(here, BaseModel) else {}
        if name not in fields:
            parent = ".".join(parts[:depth]) or "results.json"
            has = f"it has {', '.join(fields)}" if fields else "it is no section"
            raise UserError(f"objective: {key} is no key of results.json: {parent} has no {name}; {has}")
        here = _not_null(fields[name].annotation)
    if here not in (int, float, Estimate):
        raise UserError(f"objective: {key} is no single figure of results.json; give one such as timing.speedup")


def objective_of(results: RunResults | None, key: str) -> float | None:
    """The figure, of an estimate its value; ``None`` where it was not measured."""
    found: Any = results
    for name in key.split("."):
        found = getattr(found, name, None)
    if isinstance(found, Estimate):
        found = found.value
    return None if found is None else float(found)


def _not_null(annotation: Any) -> Any:
    """Without ``| None`` and the annotations of pydantic."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        (annotation,) = (member for member in typing.get_args(annotation) if member is not types.NoneType)
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation
