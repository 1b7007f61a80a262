"""spec_harness: an evaluation harness for speculative decoding.

The names below are all that is meant for use from Python. They are imported when first used: ``import spec_harness``
alone, and reading finished runs, import no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_harness.config import EvalConfig
    from spec_harness.proposers.base import Proposals, Proposer
    from spec_harness.report.load import load_run
    from spec_harness.report.sweep import load_sweep
    from spec_harness.run import evaluate

__all__ = ["EvalConfig", "Proposals", "Proposer", "evaluate", "load_run", "load_sweep"]
__version__ = "0.1.0"

_HOMES = {
    "EvalConfig": "spec_harness.config",
    "Proposals": "spec_harness.proposers.base",
    "Proposer": "spec_harness.proposers.base",
    "evaluate": "spec_harness.run",
    "load_run": "spec_harness.report.load",
    "load_sweep": "spec_harness.report.sweep",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
