"""What ``lightning.Trainer`` is built with."""

import pytest
from lightning import Trainer
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.callbacks import Timer

from spec_harness.config import TrainerConfig
from spec_harness.errors import UserError
from spec_harness.evaluation.trainer import trainer_arguments
from spec_harness.validation import validated


def arguments(**keys: object) -> dict[str, object]:
    return trainer_arguments(validated(TrainerConfig, {"enable_progress_bar": False, **keys}))


def test_any_argument_of_the_trainer_is_passed_on() -> None:
    assert arguments(limit_test_batches=2)["limit_test_batches"] == 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"limit_test_batch": 2},
            r"trainer\.limit_test_batch does not exist; did you mean trainer\.limit_test_batches",
        ),
        ({"callbacks": [3]}, r"trainer\.callbacks: each must have a _target_ such as my_module\.MyClass, not 3"),
        ({"callbacks": [{"_target_": "nowhere.Nothing"}]}, r"trainer\.callbacks: nowhere\.Nothing cannot be made"),
        ({"callbacks": [{"_target_": "datetime.timedelta"}]}, r"timedelta is no lightning\.Callback"),
    ],
)
def test_what_the_trainer_lacks(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        arguments(**keys)


@pytest.mark.parametrize("form", [list, lambda nodes: {"mine": nodes[0]}])
def test_callbacks_of_one_s_own(form: object) -> None:
    assert callable(form)
    nodes = form([{"_target_": "lightning.pytorch.callbacks.Timer", "interval": "step"}])
    (callback,) = arguments(callbacks=nodes)["callbacks"]  # type: ignore[misc, attr-defined]
    assert isinstance(callback, Timer)


def test_the_tasks_of_a_batch_job_do_no_harm(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Lightning took SLURM_NTASKS for its own number of processes, and refused to start."""
    for name, value in {
        "SLURM_NTASKS": "4",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_ID": "1",
        "SLURM_PROCID": "0",
    }.items():
        monkeypatch.setenv(name, value)
    assert SLURMEnvironment.detect()
    trainer = Trainer(**arguments() | {"logger": False, "default_root_dir": tmp_path})  # type: ignore[arg-type]
    assert trainer.world_size == 1
