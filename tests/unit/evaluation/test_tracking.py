"""What loggers are sent: every figure by a flat name, missing ones left out, and seldom enough."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb
from lightning import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger

from spec_harness.engine import EngineReport, EngineStats
from spec_harness.errors import UserError
from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.evaluation.module import SpecDecodeEvalModule
from spec_harness.evaluation.tracking import RunningFigures, finish, make_loggers, run_name
from spec_harness.evaluation.tracking_tables import media, position_lines
from tests.factories import header_of

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """``make_loggers`` sets it for the process; that ends with the test."""
    monkeypatch.setenv("WANDB_DATA_DIR", "unset")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


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


def fresh(name: str = "speculative", **figures: Any) -> EngineRun:
    return EngineRun(name=name, make_engine=lambda: pytest.fail("not to be called"), **figures)


def drive(*steps: tuple[int, EngineRun]) -> list[dict[str, float]]:
    """What the running figures log as the engines do these steps, given by their number."""
    recorder, figures = Recorder(), RunningFigures()
    trainer = Trainer(accelerator="cpu", logger=recorder, enable_progress_bar=False, enable_checkpointing=False)
    module = SpecDecodeEvalModule([run for _, run in steps], header=header_of(3, max_proposal_len=2), requests=[])
    for step, run in steps:
        module.num_engine_steps = step
        figures.on_engine_step(trainer, module, run)
    return recorder.sent


def test_running_figures_are_logged_every_tenth_step(make_request: Make) -> None:
    """Each W&B record costs time of the run."""
    before = fresh(wall_s=2.0)
    record = make_request([], token_ids=[1, 2, 3])
    after = fresh(wall_s=2.0, records=[record], report=report(num_draft_tokens=4, num_accepted_tokens=1))
    sent = drive(*((step, before if step < 15 else after) for step in range(1, 31)))
    assert [one["engine_step"] for one in sent] == [10, 20, 30]
    first, second, _ = sent
    assert set(first) == {"engine_step", "running/speculative/requests_done"}  # no speed and no rate yet, not zeros
    assert second["running/speculative/requests_done"] == 1
    assert second["running/speculative/tokens_per_second"] == 3 / 2.0
    assert second["running/speculative/acceptance_rate"] == 1 / 4


def report(**stats: int) -> EngineReport:
    return EngineReport(stats=EngineStats(**stats))


def counted(steps: int, rows: int, drafted: int, accepted: int) -> EngineReport:
    """Of ``rows`` rounds in ``steps`` steps that emit a token each, and what was accepted."""
    return report(
        num_steps=steps,
        rows_run=rows,
        tokens_held=10 * rows,
        slots_held=16 * rows,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        num_emitted_tokens=accepted + rows,
    )


def test_step_figures_are_means_since_the_last_record() -> None:
    """A running total hardly moves late in a run; what happens now would be invisible in it."""
    _, second = drive((10, fresh(report=counted(10, 40, 160, 80))), (20, fresh(report=counted(20, 60, 200, 90))))
    name = "running/speculative/step"
    assert {key: value for key, value in second.items() if key.startswith(name)} == {
        f"{name}/sequences": 20 / 10,
        f"{name}/acceptance_rate": 10 / 40,
        f"{name}/proposal_len": 40 / 20,
        f"{name}/tokens_per_target_pass": 30 / 20,
        f"{name}/kv_utilization": 10 / 16,
    }
    assert second["running/speculative/acceptance_rate"] == 90 / 200


def test_a_new_engine_run_counts_from_zero() -> None:
    _, sent = drive((10, fresh(report=counted(10, 40, 160, 80))), (20, fresh("baseline", report=counted(10, 10, 0, 0))))
    assert sent["running/baseline/step/sequences"] == 1
    assert sent["running/baseline/step/tokens_per_target_pass"] == 1
    assert "running/baseline/step/acceptance_rate" not in sent
    assert "running/baseline/step/proposal_len" not in sent


def test_a_long_run_is_no_longer_to_look_at() -> None:
    """The distance between records doubles: 64 requests of 64 tokens, one at a time, stay below 500 W&B records, of
    which each call makes three."""
    run = fresh()
    sent = drive(*((step, run) for step in range(1, 2 * 64 * 64 + 1)))
    assert len(sent) < 150
    assert sent[-1]["engine_step"] > 8_000


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


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (
            {"proposal": {"kind": "draft_model", "max_proposal_len": 4}, "draft": {"kind": "tiny"}},
            "tiny k=4 block=None",
        ),
        (
            {"proposal": {"kind": "draft_model", "max_proposal_len": 2}, "draft": {"path": "/m/small"}},
            "small k=2 block=None",
        ),
        ({"proposal": {"kind": "ngram", "max_proposal_len": 3}, "kv_cache": {"block_size": 8}}, "n-gram k=3 block=8"),
        ({"proposal": {"kind": "none", "max_proposal_len": 0}}, "no proposals"),
        ({}, None),
    ],
)
def test_a_run_is_named_by_what_tells_it_apart(config: dict[str, Any], name: str | None) -> None:
    assert run_name(config) == name


def test_tables_hold_the_requests_and_the_worst_first(random_requests: Make, make_results: Make) -> None:
    records = random_requests(0, max_proposal_len=3, num_requests=12)
    found = media(make_results(records, max_proposal_len=3), records, {1: "x"})
    requests, worst = found["requests"], found["worst_requests"]
    assert [row[0] for row in requests.data] == [record.request_id for record in records]
    rates = [row[list(worst.columns).index("acceptance_rate")] for row in worst.data]
    assert rates == sorted(rates)
    assert None not in rates
    share = found["time_share"]
    assert [row[:2] for row in share.data][:2] == [["prefill", 0.05], ["propose", 0.3]]


def test_what_was_proposed_and_accepted_keeps_its_integer_bins(random_requests: Make, make_results: Make) -> None:
    records = random_requests(0, max_proposal_len=3)
    results = make_results(records, max_proposal_len=3)
    found = media(results, records, {})
    assert found["accepted_length_histogram"].histogram == results.proposal.accepted_length_histogram
    lens = [round_.proposal_len for record in records for round_ in record.rounds]
    assert found["proposal_len_histogram"].histogram == [lens.count(length) for length in range(4)]
    assert found["proposal_len_histogram"].bins == [-0.5, 0.5, 1.5, 2.5, 3.5]


def test_positions_are_lines_and_unknown_figures_are_left_out(random_requests: Make, make_results: Make) -> None:
    results = make_results(random_requests(0, max_proposal_len=3), max_proposal_len=3)  # too few for intervals
    lines = position_lines(results)
    assert [line["position/draft_token"] for line in lines] == [1, 2, 3]
    rates = [estimate.value for estimate in results.proposal.acceptance_rate_per_position]
    assert [line["position/acceptance_rate"] for line in lines] == rates
    assert "position/acceptance_rate_low" not in lines[0]
