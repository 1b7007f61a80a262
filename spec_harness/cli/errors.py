"""One clear line for each way in which Hydra and OmegaConf refuse a configuration.

Their own messages run over several lines, name types of the implementation and do not say what would be right.
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Sequence

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from spec_harness.config import EvalConfig
from spec_harness.errors import UserError

_TYPE_NAMES: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    types.NoneType: "null",
    list[str]: "a list of texts such as [a,b]",
}


def explain(error: Exception, overrides: Sequence[str]) -> UserError:
    """The line for an exception of composing or converting; ``overrides`` are the command line's."""
    if isinstance(error, OverrideParseException):
        return _explain_syntax(error.override or " ".join(overrides))
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _explain_missing(error.missing_cfg_file, error.options)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__ or error.__context__
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return _explain_key(cause, cause.full_key, overrides, file=_file_named_by(error))
    given = f" ({' '.join(overrides)})" if overrides else ""
    return UserError(f"the configuration cannot be composed{given}: {' '.join(str(error).split())}")


def field_types(full_key: str) -> dict[str, object]:
    """Types of the fields of the configuration class at this key ("" is the top); empty where there is none."""
    cls: object = EvalConfig
    for name in full_key.split(".") if full_key else ():
        cls = typing.get_type_hints(cls).get(name) if dataclasses.is_dataclass(cls) else None
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        return {}
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _explain_syntax(override: str) -> UserError:
    key, equals, value = override.partition("=")
    if not equals:
        return UserError(f"{override!r} is not of the form key=value")
    return UserError(f"""{key}: the value {value!r} needs quotes for its special characters: '{key}="{value}"'""")


def _explain_missing(name: str, options: Sequence[str] | None) -> UserError:
    group, slash, option = name.rpartition("/")
    if not slash:
        return UserError(f"there is no configuration {name!r}; check --config-name, --config-path and --config-dir")
    if not options:
        return UserError(f"there is no group {group!r} with an option {option!r}")
    return UserError(f"{group} has no option {option!r}; its options are {', '.join(options)}")


def _file_named_by(error: Exception) -> str:
    """Hydra begins with "In 'group/option': " where a file is to blame."""
    match = re.match(r"In '([^']+)'", str(error))
    return match.group(1) if match else ""


def _explain_key(error: OmegaConfBaseException, full_key: str, overrides: Sequence[str], *, file: str) -> UserError:
    where = f" (in {file}.yaml)" if file else ""
    parent, _, name = full_key.rpartition(".")
    expected = field_types(parent).get(name)
    if full_key.startswith("hydra."):
        return UserError(f"{full_key}: {str(error).splitlines()[0]}{where}")
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return UserError(f"{_unknown_key(full_key)}{where}")
    if isinstance(error, ValidationError) and expected is not None:
        given = "" if file else _given_value(full_key, overrides)
        return UserError(f"{full_key} must be {_type_name(expected)}{given}{where}")
    return UserError(f"{full_key}: {str(error).splitlines()[0]}{where}")


def _unknown_key(full_key: str) -> str:
    """Names the key that was probably meant: of the same name in another group, or similar in the same group."""
    parent, _, name = full_key.rpartition(".")
    siblings = list(field_types(parent))
    if not siblings:  # a dictionary, which takes any key
        return f"{full_key} is not in {parent}; to add it, write +{full_key}=VALUE"
    elsewhere = [group for group in ("", *field_types("")) if name in field_types(group)]
    close = difflib.get_close_matches(name, siblings, n=1, cutoff=0.5)
    if elsewhere:
        hint = f"did you mean {' or '.join(_join(group, name) for group in elsewhere)}?"
    elif close:
        hint = f"did you mean {_join(parent, close[0])}?"
    else:
        hint = f"{parent or 'the top level'} has {', '.join(siblings)}"
    return f"{full_key} does not exist; {hint}"


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name


def _given_value(full_key: str, overrides: Sequence[str]) -> str:
    for override in reversed(overrides):
        key, _, value = override.partition("=")
        if key.lstrip("+") == full_key:
            return f", not {value or 'empty'}"
    return ""


def _type_name(expected: object) -> str:
    if isinstance(expected, types.UnionType):
        return " or ".join(_type_name(member) for member in typing.get_args(expected))
    if isinstance(expected, type) and dataclasses.is_dataclass(expected):
        return "a group of keys"
    return _TYPE_NAMES.get(expected, "a dictionary of keys and values")
