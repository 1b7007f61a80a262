"""Weights & Biases and CSV mirror results.json. Nothing leaves the machine: every W&B run is offline and read back."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spec_harness.cli.evaluate import main
from spec_harness.engine.verifiers.rejection import RejectionSampler
from spec_harness.results.figures import plain_numbers
from spec_harness.results.schema import read_results
from tests.inspection import shapes_unchecked
from tests.run_helpers import QUIET, error_line, spec_eval, working_directory

SMALL = ("data.limit=4", "sampling.max_new_tokens=10")

pytestmark = pytest.mark.usefixtures("clean_process")


def wandb_runs(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "wandb").glob("offline-run-*"))


def leet(*arguments: str | Path) -> str:
    """What ``wandb leet inspect`` prints."""
    command = [Path(sys.executable).with_name("wandb"), "leet", "inspect", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def inspected(run_dir: Path) -> dict[str, Any]:
    """The one W&B run in the directory, as wandb's own reader of its files sees it."""
    (run,) = wandb_runs(run_dir)
    content: dict[str, Any] = json.loads(leet("--summary", "--json", run))
    return content


def assert_same_numbers(summary: dict[str, Any], run_dir: Path) -> None:
    results = read_results(run_dir / "results.json")
    numbers = plain_numbers(results)
    assert numbers["proposal/acceptance_rate"] == results.proposal.acceptance_rate.value
    assert numbers["proposal/num_output_tokens"] == results.proposal.num_output_tokens
    assert {key: summary.get(key) for key in numbers} == numbers
    sections = ("proposal/", "timing/", "kv/", "integrity/")
    assert {key for key in summary if key.startswith(sections)} == numbers.keys()


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of one run with both loggers, one sequence at a time."""
    folder = tmp_path_factory.mktemp("tracked")
    with working_directory(folder), shapes_unchecked():
        named = ("logger.tags=[one,two]", "logger.name=mine")
        assert spec_eval(*SMALL, *named, "max_num_seqs=1", logger="wandb_csv") == 0
    return folder / "run"


def test_the_summary_of_an_offline_run_equals_the_results(tracked: Path) -> None:
    content = inspected(tracked)
    assert_same_numbers(content["summary"], tracked)
    assert (content["state"], content["exit_code"]) == ("finished", 0)
    assert (content["project"], content["name"], content["tags"]) == ("spec_harness", "mine", ["one", "two"])
    config = content["config"]
    assert (config["data"]["limit"], config["sampling"]["max_new_tokens"]) == (4, 10)
    histogram = read_results(tracked / "results.json").proposal.accepted_length_histogram
    assert content["summary"]["accepted_length_histogram"] == {
        "_type": "histogram",
        "values": histogram,
        "bins": [j - 0.5 for j in range(len(histogram) + 1)],
    }


def records_of(run_dir: Path) -> list[dict[str, Any]]:
    """Every record of the one W&B run in the directory, in order."""
    (run,) = wandb_runs(run_dir)
    return [json.loads(line) for line in leet("--json", run).splitlines()]


def test_running_figures_have_a_step_of_their_own(tracked: Path) -> None:
    history = [record["history"]["item"] for record in records_of(tracked) if record["type"] == "history"]
    steps = [item["engine_step"] for item in history if "engine_step" in item]
    assert len(steps) >= 3
    assert steps == list(range(10, 10 * len(steps) + 1, 10))
    speeds = [item[key] for item in history for key in item if key.endswith("/tokens_per_second")]
    assert speeds
    assert min(speeds) > 0  # before a request has finished there is no speed, which is not a speed of 0


@pytest.mark.slow
def test_a_run_of_64_requests_is_cheap_to_track(capfd: pytest.CaptureFixture[str]) -> None:
    """Fewer than 500 W&B records, its tables included; one sequence at a time makes the most engine steps."""
    assert spec_eval("data.limit=64", "sampling.max_new_tokens=24", "max_num_seqs=1", logger="wandb") == 0
    assert capfd.readouterr().err == ""
    assert read_results(Path("run/results.json")).proposal.num_requests == 64
    assert 100 < len(records_of(Path("run"))) < 500


def test_a_run_directory_that_was_moved_still_holds_the_whole_run(tracked: Path, tmp_path: Path) -> None:
    """Nothing is staged elsewhere: what was in the home directory or the temporary one would be lost with it."""
    before = inspected(tracked)
    assert [path.name for path in tracked.parent.iterdir()] == ["run"]
    moved = Path(shutil.move(tracked, tmp_path / "kept"))
    try:
        after = inspected(moved)
        assert after["summary"] == before["summary"]
        assert_same_numbers(after["summary"], moved)
        assert not [path for path in moved.rglob("*") if path.is_symlink() and not path.exists()]
    finally:
        shutil.move(moved, tracked)


def test_a_failing_run_is_finished_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RejectionSampler, "verify", lambda *_: 1 / 0)
    assert spec_eval(*SMALL, logger="wandb") == 1
    content = inspected(Path("run"))
    assert content["exit_code"] != 0
    assert content["state"] == "failed"


@pytest.mark.slow
def test_each_job_of_a_sweep_is_a_run_of_its_own() -> None:
    """The second job fails; the third is neither part of its run nor harmed by it."""
    points = "kv_cache.num_blocks=64,1,32"
    assert main(["-m", "hydra.sweep.dir=sweep", points, "baseline=off", *QUIET, *SMALL]) == 1
    contents = [inspected(Path("sweep") / job) for job in ("0", "2")]
    assert wandb_runs(Path("sweep/1")) == []  # refused before it started
    assert len({content["run_id"] for content in contents}) == 2
    for job, content in zip(("0", "2"), contents, strict=True):
        assert content["exit_code"] == 0
        assert_same_numbers(content["summary"], Path("sweep") / job)
    assert [content["config"]["kv_cache"]["num_blocks"] for content in contents] == [64, 32]
    assert {group_of(Path("sweep") / job) for job in ("0", "2")} == {"sweep"}


def group_of(run_dir: Path) -> str:
    (record,) = [record for record in records_of(run_dir) if record["type"] == "run"]
    return str(record["run"]["run_group"])


def test_csv_holds_the_same_numbers(tracked: Path) -> None:
    rows = list(csv.DictReader((tracked / "csv" / "metrics.csv").read_text(encoding="utf-8").splitlines()))
    numbers = plain_numbers(read_results(tracked / "results.json"))
    last = rows[-1]
    assert {key: float(last[key]) for key in numbers} == pytest.approx(numbers)


def test_csv_alone_starts_no_wandb_run() -> None:
    assert spec_eval(*SMALL, "baseline=off", logger="csv") == 0
    assert Path("run/csv/metrics.csv").exists()
    assert not Path("run/wandb").exists()


def test_a_disabled_logger_writes_nothing() -> None:
    assert spec_eval(*SMALL, "baseline=off", "logger.mode=disabled", logger="wandb") == 0
    assert wandb_runs(Path("run")) == []
    assert Path("run/results.json").exists()


def test_what_wandb_refuses_is_a_mistake_of_the_configuration(capfd: pytest.CaptureFixture[str]) -> None:
    assert spec_eval(*SMALL, "logger.project=a/b", logger="wandb") == 2
    line = error_line(capfd.readouterr().err)
    assert "W&B refuses: Invalid project name 'a/b'" in line
    assert not Path("run").exists()
