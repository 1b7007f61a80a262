"""Arguments of ``lightning.Trainer`` from the configuration's open section."""

import difflib
import inspect
from typing import Any

from lightning import Callback, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from spec_harness.config import TrainerConfig
from spec_harness.errors import UserError


def trainer_arguments(config: TrainerConfig) -> dict[str, Any]:
    """With callbacks and plugins built from their ``_target_``. Raises ``UserError`` for what the Trainer lacks."""
    arguments = config.model_dump()
    known = list(inspect.signature(Trainer).parameters)
    for name in arguments:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean trainer.{close[0]}?" if close else "see the arguments of lightning.Trainer"
            raise UserError(f"trainer.{name} does not exist; {hint}")
    arguments["callbacks"] = _built("callbacks", arguments.get("callbacks"))
    for callback in arguments["callbacks"]:
        if not isinstance(callback, Callback):
            raise UserError(f"trainer.callbacks: {type(callback).__name__} is no lightning.Callback")
    # A batch job's SLURM_NTASKS is none of this run's, which is one process: Lightning is not to look for it.
    arguments["plugins"] = [LightningEnvironment(), *_built("plugins", arguments.get("plugins"))]
    return arguments


def _built(name: str, given: Any) -> list[Any]:
    """Objects of a list (or of a dictionary, which a recipe can add to) of ``_target_`` and arguments."""
    nodes = (
        [] if given is None else list(given.values()) if isinstance(given, dict) and "_target_" not in given else given
    )
    objects = []
    for node in nodes if isinstance(nodes, list) else [nodes]:
        if not isinstance(node, dict) or "_target_" not in node:
            raise UserError(f"trainer.{name}: each must have a _target_ such as my_module.MyClass, not {node}")
        from hydra.utils import instantiate  # a run from Python needs no Hydra otherwise

        try:
            objects.append(instantiate(node))
        except Exception as error:
            raise UserError(
                f"trainer.{name}: {node['_target_']} cannot be made: {str(error).splitlines()[0]}"
            ) from error
    return objects
