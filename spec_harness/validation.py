"""Checked types that pydantic lacks, and its errors as one line each: for the configuration and for rows of prompts."""

import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError
from pydantic_core import ErrorDetails

from spec_harness.errors import UserError

M = TypeVar("M", bound=BaseModel)

_KINDS: dict[str, str] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "a text",
    "list": "a list such as [a,b]",
    "tuple": "a list such as [a,b]",
    "dict": "a dictionary of keys and values",
    "model": "a group of keys",
}


def validated(model: type[M], values: Mapping[str, Any], *, cwd: str | None = None) -> M:
    """``model`` made of plain values. Paths in them are relative to ``cwd``, by default the working directory.

    Raises ``UserError``: one line with the full key of the first mistake, and what would be right.
    """
    try:
        return model.model_validate(values, context={"cwd": cwd})
    except ValidationError as error:
        raise UserError(first_mistake(model, error)) from error


def first_mistake(model: type[BaseModel], error: ValidationError) -> str:
    """The first of pydantic's errors, as ``key must be ..., not ...``."""
    details = error.errors()[0]
    given, cause = details["input"], details.get("ctx", {}).get("error")
    if isinstance(cause, UserError):  # a check of several keys, which names them itself
        return str(cause)
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in details["loc"]).lstrip(".")
    if details["type"] == "extra_forbidden":
        return unknown_key(model, key)
    if details["type"] == "missing":
        return f"{key} is missing"
    if cause is not None:  # one of the rules below
        return f"{key} {cause}, not {shown(given)}"
    optional = types.NoneType in typing.get_args(_type_at(model, key.split(".")))
    null = " or null" if optional and details["type"].endswith("_type") else ""
    return f"{key} must be {_expected(details)}{null}, not {shown(given)}"


def unknown_key(model: type[BaseModel], key: str) -> str:
    """Names the key that was probably meant: of the same name in another group, or similar in the same group."""
    *parent, name = key.split(".")
    siblings = _keys(_type_at(model, parent))
    groups = ["", *(group for group in _keys(model) if _keys(_type_at(model, [group])))]
    elsewhere = [group for group in groups if name in _keys(_type_at(model, group.split(".") if group else []))]
    close = difflib.get_close_matches(name, siblings, n=1, cutoff=0.5)
    meant = [f"{group}.{name}".lstrip(".") for group in elsewhere]
    if not meant and close and difflib.SequenceMatcher(None, name, close[0]).ratio() < 0.8:
        meant = [  # a slip of the pen in a key of another group is closer
            f"{group}.{key}"
            for group in groups[1:]
            for key in difflib.get_close_matches(name, _keys(_type_at(model, [group])), n=1, cutoff=0.8)
        ]
    meant = meant or [".".join([*parent, *close])] * bool(close)
    if meant:
        return f"{key} does not exist; did you mean {' or '.join(meant)}?"
    return f"{key} does not exist; {'.'.join(parent) or 'the top level'} has {', '.join(siblings)}"


def takes_text(model: type[BaseModel], key: str) -> bool:
    """Whether any text may stand at this key."""
    annotation = _type_at(model, key.split("."))
    members = typing.get_args(annotation) or (annotation,)
    return any(str in (member, *typing.get_args(member)) for member in members)


def shown(value: object) -> str:
    """A value as it is written on the command line, or the beginning of it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = str(value)
    return (f"{text[:60]} ..." if len(text) > 64 else text) if text.strip() else "empty"


def _keys(annotation: Any) -> list[str]:
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return []
    return [field.alias or name for name, field in annotation.model_fields.items()]


def _type_at(model: type[BaseModel], path: Sequence[str]) -> Any:
    """The annotation of the key at this path ([] is the top)."""
    annotation: Any = model
    for name in path:
        if not _keys(annotation):
            return None
        fields = {field.alias or key: field for key, field in annotation.model_fields.items()}
        annotation = fields[name].annotation if name in fields else None
    return annotation


def _expected(details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind == "literal_error":
        named = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        choices = [choice for choice in named if choice != "memory"]  # which only a Python caller can give
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    limits = {"greater_than_equal": "at least", "less_than_equal": "at most"}
    if kind in limits:
        return f"{limits[kind]} {context['ge' if kind.startswith('greater') else 'le']}"
    return _KINDS.get(kind.partition("_")[0], details["msg"])


def _rule(holds: Callable[[Any], bool], words: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(words)
        return value

    return AfterValidator(check)


def _as_text(value: object) -> object:
    """YAML takes a tag such as 2024 for a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_as_text), _rule(lambda text: bool(text.strip()), "must be a text")]
Finite = Annotated[float, _rule(lambda value: 0 <= value < math.inf, "must be a number of at least 0")]
Share = Annotated[float, _rule(lambda value: 0 < value <= 1, "must be above 0 and at most 1")]
Probability = Annotated[float, _rule(lambda value: 0 <= value < 1, "must be at least 0 and below 1")]
# Below that, logits divided by it leave float32.
Temperature = Annotated[
    float,
    _rule(
        lambda value: value == 0 or 1e-6 <= value < math.inf,
        "must be 0 (greedy) or a finite number of at least 1e-6",
    ),
]
