"""A proposer of the user's own: any importable subclass of ``Proposer``, by the path of its class."""

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_harness.errors import UserError
from spec_harness.proposers.base import Proposer, ProposerEnv, ProposerSpec


@dataclass(frozen=True, kw_only=True)
class CustomProposer(ProposerSpec):
    """Recorded under its own name; built as ``cls(env, **args)``."""

    proposer_class: type[Proposer]
    args: Mapping[str, Any]

    def build(self, env: ProposerEnv) -> Proposer:
        try:
            return self.proposer_class(env, **self.args)
        except UserError:
            raise
        except Exception as error:
            raise _refusal(self.name, f"cannot be built with proposal.args={dict(self.args)}: {error}") from error


def custom_proposer(path: str, args: Mapping[str, Any]) -> CustomProposer:
    """Imports ``module.Class``. Raises ``UserError`` if there is none, if it is no proposer or if it takes no such
    ``args``."""
    module_name, _, name = path.rpartition(".")
    if not module_name or not name:
        raise _refusal(path, "is not the path of a class, such as my_module.MyProposer")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module does when it is run
        raise _refusal(path, f"module {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        raise _refusal(path, f"module {module_name} has no {name}")
    if not (isinstance(found, type) and issubclass(found, Proposer)):
        raise _refusal(path, "is not a subclass of spec_harness.Proposer")
    if inspect.isabstract(found):
        raise _refusal(path, "has no propose method")
    try:
        inspect.signature(found).bind(None, **args)
    except TypeError as error:
        raise _refusal(path, f"does not take proposal.args={dict(args)}: {error}") from error
    return CustomProposer(name=path, label=name, proposer_class=found, args=args)


def _refusal(path: str, reason: str) -> UserError:
    return UserError(f"proposal._target_={path}: {' '.join(reason.split())}")
