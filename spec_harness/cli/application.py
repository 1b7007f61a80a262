"""``spec-eval`` as a Hydra application: where its configuration lies, and how a job is handed to it."""

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from spec_harness.config import EvalConfig

APP_NAME = "spec-eval"
CONFIG_NAME = "eval"
VERSION_BASE = "1.3"
_OPEN_GROUPS = ("trainer", "proposal.args", "draft.config", "target.config")  # they take further keys

Job = Callable[[DictConfig], float | None]


def conf_dir() -> Path:
    """The folder of configurations: inside the installed package, else that of the checkout."""
    package = Path(__file__).parents[1]
    packaged = package / "conf"
    return packaged if packaged.is_dir() else package.parent / "conf"


def register_schema() -> None:
    """What `conf/eval.yaml` starts from: every key with its default, so that Hydra refuses any other."""
    defaults = OmegaConf.create(EvalConfig().model_dump())
    for group in _OPEN_GROUPS:
        OmegaConf.set_struct(OmegaConf.select(defaults, group), False)
    ConfigStore.instance().store(name="eval_schema", node=defaults, provider="spec_harness")


def start(job: Job, arguments: Sequence[str], *, config_name: str = CONFIG_NAME) -> int:
    """Hands over to Hydra, which reads ``sys.argv`` and ends a failed run with ``sys.exit``."""
    register_schema()
    application = hydra.main(config_path=str(conf_dir()), config_name=config_name, version_base=VERSION_BASE)(job)
    before = sys.argv
    sys.argv = [APP_NAME, *arguments]
    try:
        application()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
    except Exception:  # with HYDRA_FULL_ERROR Hydra lets it through
        traceback.print_exc()
        return 1
    finally:
        sys.argv = before
    return 0
