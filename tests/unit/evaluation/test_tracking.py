"""What loggers are sent: every figure by a flat name, missing ones left out, and seldom enough."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb
from lightning.pytorch.loggers import CSVLogger, Logger

from spec_harness.errors import UserError
from spec_harness.evaluation.module import Pass, SpecDecodeEvalModule
from spec_harness.evaluation.tracking import RunningFigures, finish, make_loggers, plain_numbers
from spec_harness.worker.model_loader import LoadedModel

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """``make_loggers`` sets it for the process; that ends with the test."""
    monkeypatch.setenv("WANDB_DATA_DIR", "unset")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def test_numbers_are_those_of_the_results_by_flat_names(random_requests: Make, make_results: Make) -> None:
    results = make_results(random_requests(0, max_proposal_len=3), max_proposal_len=3)
    numbers = plain_numbers(results)
    p = results.proposal
    assert numbers["proposal/acceptance_rate"] == p.acceptance_rate.value
    assert numbers["proposal/num_rounds"] == p.num_rounds
    assert numbers["proposal/skipped/budget"] == p.skipped["budget"]
    assert [numbers[f"proposal/accepted_length_histogram/{j}"] for j in range(4)] == p.accepted_length_histogram
    assert numbers["proposal/acceptance_rate_per_position/1"] == p.acceptance_rate_per_position[1].value
    assert numbers["timing/speedup"] == 1.27
    assert numbers["timing/time_share/score"] == 0.5
    assert numbers["kv/num_blocks"] == 64
    assert numbers["integrity/baseline_equality/tie"] == 1
    assert all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers.values())
    assert not [key for key in numbers if key.endswith(("/ci95", "/n", "/value"))]


def test_missing_figures_are_left_out(random_requests: Make, make_results: Make) -> None:
    """A zero in their place would be averaged, plotted and believed."""
    results = make_results([], max_proposal_len=0, timing=None, kv=None)
    numbers = plain_numbers(results)
    assert "proposal/acceptance_rate" not in numbers
    assert not [key for key in numbers if key.startswith(("timing/", "kv/", "integrity/"))]
    assert numbers["proposal/num_rounds"] == 0


class Recorder(Logger):
    """Keeps what it is sent."""

    name = "recorder"
    version = 0

    def __init__(self) -> None:
        self.sent: list[dict[str, float]] = []
        self.ended: list[str] = []

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("not to be called")

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.sent.append(metrics)

    def finalize(self, status: str) -> None:
        self.ended.append(status)


def module_with(target: LoadedModel, current: Pass) -> SpecDecodeEvalModule:
    return SpecDecodeEvalModule(
        target,
        None,
        [current],
        num_requests=3,
        max_proposal_len=2,
        next_turn=lambda *_: None,
        on_finished=lambda *_: None,
    )


def test_running_figures_are_logged_every_tenth_step(target: LoadedModel, make_request: Make) -> None:
    """Each W&B record costs time of the run that is being timed."""
    current = Pass(name="speculative", scheduler=lambda: pytest.fail("not to be called"), wall_s=2.0)
    module, recorder = module_with(target, current), Recorder()
    figures = RunningFigures([recorder])
    for step in range(1, 31):
        if step == 15:
            current.add(make_request([], token_ids=[1, 2, 3]))
            current.stats.num_draft_tokens, current.stats.num_accepted_tokens = 4, 1
        module.num_engine_steps = step
        figures(module)
    assert [sent["engine_step"] for sent in recorder.sent] == [10, 20, 30]
    first, second, _ = recorder.sent
    assert set(first) == {"engine_step", "running/speculative/requests_done"}  # no speed and no rate yet, not zeros
    assert second["running/speculative/requests_done"] == 1
    assert second["running/speculative/tokens_per_second"] == 3 / 2.0
    assert second["running/speculative/acceptance_rate"] == 1 / 4


def loggers(run_dir: Path, **changes: Any) -> list[Logger]:
    values = {"kinds": [], "mode": "offline", "project": "p", "group": None, "tags": [], "name": None, "config": {}}
    return make_loggers(run_dir=run_dir, **(values | changes))


def test_no_kind_no_logger(tmp_path: Path) -> None:
    assert loggers(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_csv_logger_writes_into_the_run_directory(tmp_path: Path) -> None:
    (logger,) = loggers(tmp_path, kinds=["csv"])
    assert isinstance(logger, CSVLogger)
    logger.log_metrics({"a": 1.0})
    finish([logger], exit_code=0)
    assert (tmp_path / "csv" / "metrics.csv").read_text().splitlines()[0] == "a,step"


@pytest.mark.parametrize(("exit_code", "status"), [(0, "success"), (1, "failed")])
def test_loggers_are_told_how_the_run_ended(exit_code: int, status: str) -> None:
    recorder = Recorder()
    finish([recorder], exit_code=exit_code)
    assert recorder.ended == [status]


def test_what_wandb_refuses_is_the_user_s_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(UserError, match=r"logger \(mode online\): W&B refuses: No API key configured"):
        loggers(tmp_path, kinds=["wandb"], mode="online")


def test_wandb_is_asked_to_stay_inside_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And to send nothing but the run: no statistics of the machine, no error reports, no output of the terminal."""
    monkeypatch.delenv("WANDB_ERROR_REPORTING")
    asked: dict[str, Any] = {}

    def init(**arguments: Any) -> None:
        asked.update(arguments)
        raise wandb.errors.UsageError("enough")

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(UserError):
        loggers(tmp_path, kinds=["wandb"], group="sweep", tags=["t"], config={"seed": 1})
    assert (asked["dir"], asked["mode"], asked["group"], asked["job_type"]) == (tmp_path, "offline", "sweep", "eval")
    assert (asked["tags"], asked["config"]) == (["t"], {"seed": 1})
    settings = asked["settings"]
    assert (settings.console, settings.x_disable_stats, settings.disable_git) == ("off", True, True)
    assert os.environ["WANDB_DATA_DIR"] == str(tmp_path / "wandb")
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
