"""Sweeps: a wrong point is refused before the first job; a failing job stops no other."""

import importlib.util
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from spec_harness.__main__ import main
from spec_harness.config import EvalConfig
from spec_harness.errors import UserError

HAS_ENGINE = importlib.util.find_spec("spec_harness.build") is not None
needs_engine = pytest.mark.skipif(not HAS_ENGINE, reason="needs spec_harness.build and the packaged models")

Jobs = list[tuple[EvalConfig, Path, str | None]]


@pytest.fixture(autouse=True)
def clean_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working directory; and Hydra's log handlers, which write to the captured streams, go with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Replaces the engine by one that fails with proposals of 2 (a mistake) and of 3 (a fault); its calls."""
    calls: Jobs = []

    def run(config: EvalConfig, *, run_dir: Path, sweep: str | None) -> None:
        calls.append((config, run_dir, sweep))
        if config.proposal.max_proposal_len == 2:
            raise UserError("kv_cache.num_blocks must be at least 5")
        if config.proposal.max_proposal_len == 3:
            raise RuntimeError("logits are not finite")
        (run_dir / "status.json").write_text(json.dumps({"state": "done", "error": None}))

    module = ModuleType("spec_harness.build")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spec_harness.build", module)
    return calls


def lens(jobs: Jobs) -> list[int]:
    return [config.proposal.max_proposal_len for config, _, _ in jobs]


def test_each_point_runs_in_its_own_directory(jobs: Jobs, tmp_path: Path) -> None:
    assert main(["-m", "proposal.max_proposal_len=1,4", "kv_cache=block8,block32"]) == 0
    assert lens(jobs) == [1, 1, 4, 4]
    assert [config.kv_cache.block_size for config, _, _ in jobs] == [8, 32, 8, 32]
    (sweep_dir,) = (tmp_path / "outputs" / "multirun").iterdir()
    assert [run_dir for _, run_dir, _ in jobs] == [sweep_dir / str(number) for number in range(4)]
    assert {sweep for _, _, sweep in jobs} == {sweep_dir.name}


def test_a_wrong_point_is_refused_before_the_first_job(
    jobs: Jobs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "kv_cache=block8,block32", "proposal.max_proposal_len=1,-1"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: job 1 of the sweep (kv_cache=block8 proposal.max_proposal_len=-1): ")
    assert jobs == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "points",
    ["draft=tiny,nonsense", "proposal.max_proposal_len=range(-1,2)", "data.path=null,nowhere.jsonl", "seed=1,x"],
)
def test_points_of_every_form_are_checked(points: str, jobs: Jobs, tmp_path: Path) -> None:
    assert main(["-m", points]) == 2
    assert jobs == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("batches", [[], ["hydra.sweeper.max_batch_size=1"]])
def test_failing_jobs_stop_no_other(batches: list[str], jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "proposal.max_proposal_len=1,2,3,4", *batches]) == 1
    assert lens(jobs) == [1, 2, 3, 4]
    output = capfd.readouterr()
    assert output.err.splitlines() == [
        "error: job 1 (proposal.max_proposal_len=2): kv_cache.num_blocks must be at least 5",
        "error: job 2 (proposal.max_proposal_len=3): logits are not finite",
    ]
    assert output.out.count("Traceback") == 1  # of the fault; the mistake needs none
    for (_, run_dir, _), state in zip(jobs, ["done", "failed", "failed", "done"], strict=True):
        assert json.loads((run_dir / "status.json").read_text())["state"] == state


def test_only_jobs_of_this_sweep_are_reported(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "hydra.sweep.dir=sweep", "proposal.max_proposal_len=1,2"]) == 1
    capfd.readouterr()
    assert main(["-m", "hydra.sweep.dir=sweep", "proposal.max_proposal_len=1"]) == 0
    assert capfd.readouterr().err == ""


def test_failing_jobs_are_found_without_hydra_s_own_files(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "hydra.output_subdir=null", "proposal.max_proposal_len=1,2"]) == 1
    assert capfd.readouterr().err.startswith("error: job 1 ")


def test_a_sweep_written_in_a_recipe(jobs: Jobs, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "own" / "experiment" / "lengths.yaml"
    recipe.parent.mkdir(parents=True)
    text = (
        "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      proposal.max_proposal_len: {}\n"
    )
    recipe.write_text(text.format("1,4"))
    assert main(["--config-dir", "own", "experiment=lengths"]) == 0
    assert lens(jobs) == [1, 4]
    recipe.write_text(text.format("1,-4"))
    assert main(["--config-dir", "own", "experiment=lengths"]) == 2
    assert "error: job 1 of the sweep" in capfd.readouterr().err


@needs_engine
def test_a_real_sweep_with_a_job_that_cannot_run(tmp_path: Path) -> None:
    arguments = ["data.limit=2", "sampling.max_new_tokens=4", "logger=none", "kv_cache.num_blocks=64,2"]
    result = subprocess.run(
        [sys.executable, "-m", "spec_harness", "-m", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: job 1 (")
    assert "kv_cache.num_blocks" in last
    (sweep_dir,) = (tmp_path / "outputs" / "multirun").iterdir()
    states = [json.loads((sweep_dir / str(job) / "status.json").read_text())["state"] for job in (0, 1)]
    assert states == ["done", "failed"]
