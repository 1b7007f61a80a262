"""One clear line for each way in which Hydra and OmegaConf refuse to compose a configuration.

Their own messages run over several lines, name types of the implementation and do not say what would be right.
"""

from collections.abc import Sequence

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from spec_harness.config import EvalConfig
from spec_harness.errors import UserError
from spec_harness.validation import unknown_key


def explain(error: Exception, overrides: Sequence[str]) -> UserError:
    """The line for an exception of parsing or composing ``overrides``."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OverrideParseException):
        return _wrong_syntax(error.override or " ".join(overrides))
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_file(error.missing_cfg_file, error.options)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__ or error.__context__
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        key = cause.full_key
        if isinstance(cause, MissingMandatoryValue):
            return UserError(f"{key} is missing: it must be given")
        if isinstance(cause, ConfigAttributeError | ConfigKeyError) and not key.startswith("hydra."):
            return UserError(unknown_key(EvalConfig, key))
        return UserError(f"{key}: {str(cause).splitlines()[0]}")
    given = f" ({' '.join(overrides)})" if overrides else ""
    return UserError(f"the configuration cannot be composed{given}: {' '.join(str(error).split())}")


def _wrong_syntax(override: str) -> UserError:
    key, equals, value = override.partition("=")
    if not equals:
        return UserError(f"{override!r} is not of the form key=value")
    return UserError(f"""{key}: the value {value!r} needs quotes for its special characters: '{key}="{value}"'""")


def _missing_file(name: str, options: Sequence[str] | None) -> UserError:
    group, slash, option = name.rpartition("/")
    if not slash:
        return UserError(f"there is no configuration {name!r}; check --config-name and --config-dir")
    if not options:
        return UserError(f"there is no group {group!r} with an option {option!r}")
    return UserError(f"{group} has no option {option!r}; its options are {', '.join(options)}")
