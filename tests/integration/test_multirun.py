"""Sweeps: a wrong point is refused before the first job; a failing job stops no other."""

import json
from pathlib import Path

import pandas as pd
import pytest

from spec_harness.cli.evaluate import main
from spec_harness.config import EvalConfig
from spec_harness.errors import UserError
from spec_harness.report.load import load_run
from tests.run_helpers import QUIET, outputs_of, status_of, working_directory

Jobs = list[tuple[EvalConfig, Path, str | None]]

pytestmark = pytest.mark.usefixtures("clean_process")


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

    monkeypatch.setattr("spec_harness.run.run", run)
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


def test_a_directory_that_holds_a_sweep_is_refused(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    """The second sweep's jobs were written over the first one's, and its summary told of both."""
    assert main(["-m", "hydra.sweep.dir=sweep", "proposal.max_proposal_len=1,4"]) == 0
    assert main(["-m", "hydra.sweep.dir=sweep", "proposal.max_proposal_len=5"]) == 2
    assert capfd.readouterr().err == "error: hydra.sweep.dir: sweep holds a sweep already; choose another directory\n"
    assert lens(jobs) == [1, 4]


def test_a_glob_stands_for_the_options_of_a_group(jobs: Jobs) -> None:
    assert main(["-m", "kv_cache=glob(block*)"]) == 0
    assert [config.kv_cache.block_size for config, _, _ in jobs] == [32, 8]


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


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("sweep_proposal_len", [("tiny", k, 16, None) for k in (1, 2, 3, 4, 6, 8)]),
        ("sweep_kv_blocks", [("tiny", 4, size, pool) for size in (8, 16, 32) for pool in (24, 48, 96)]),
        ("draft_comparison", [(draft, k, 16, None) for draft in ("tiny", "random", "self") for k in (2, 4)]),
    ],
)
def test_recipes_that_sweep(recipe: str, settings: list[tuple[object, ...]], jobs: Jobs) -> None:
    assert main([f"experiment={recipe}"]) in (0, 1)  # some fail here, and the sweep goes on
    configs = [config for config, _, _ in jobs]
    found = [
        (config.draft.kind, config.proposal.max_proposal_len, config.kv_cache.block_size, config.kv_cache.num_blocks)
        for config in configs
    ]
    assert found == settings
    assert {config.data.limit for config in configs} <= {16, 32}


def test_a_sweep_on_the_command_line_replaces_the_recipe_s(jobs: Jobs) -> None:
    assert main(["-m", "experiment=sweep_proposal_len", "proposal.max_proposal_len=1,5"]) == 0
    assert lens(jobs) == [1, 5]


def real_sweep(*overrides: str) -> int:
    return main(["-m", "hydra.sweep.dir=sweep", "logger=none", *QUIET, *overrides])


def test_a_real_sweep_with_a_job_that_cannot_run(capfd: pytest.CaptureFixture[str]) -> None:
    small = ("data.limit=2", "sampling.max_new_tokens=4", "baseline=off")
    assert real_sweep("kv_cache.num_blocks=64,1", *small) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: job 1 (")
    assert "kv_cache.num_blocks" in line
    assert [status_of(Path("sweep") / job)["state"] for job in ("0", "1")] == ["done", "failed"]
    assert not Path("sweep/1/results.json").exists()
    summary = pd.read_parquet("sweep/sweep_summary.parquet")
    assert list(summary.state) == ["done", "failed"]
    assert "kv_cache.num_blocks" in summary.error[1]
    assert "| 1 |" in Path("sweep/sweep_summary.md").read_text()


@pytest.mark.slow
def test_every_job_of_a_real_sweep_tells_the_same_text(tmp_path: Path) -> None:
    """Neither the proposal length nor the size of a block may change a greedy output."""
    points = ("proposal.max_proposal_len=1,2,4", "kv_cache=block8,default")
    assert real_sweep(*points, "data.limit=6", "sampling.max_new_tokens=24") == 0
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("results.json"))
    assert found == [f"sweep/{job}/results.json" for job in range(6)]
    runs = [load_run(f"sweep/{job}") for job in range(6)]
    settings = [(run.results.config["proposal"], run.results.config["kv_cache"]) for run in runs]
    assert [(proposal["max_proposal_len"], cache["block_size"]) for proposal, cache in settings] == [
        (1, 8),
        (1, 16),
        (2, 8),
        (2, 16),
        (4, 8),
        (4, 16),
    ]
    outputs = [outputs_of(run.directory) for run in runs]
    assert len(outputs[0]) == 6
    assert all(output == outputs[0] for output in outputs)
    for small, large in zip(runs[::2], runs[1::2], strict=True):  # blocks change no proposal either
        histograms = [run.results.proposal.accepted_length_histogram for run in (small, large)]
        assert histograms[0] == histograms[1]
    rounds = [run.results.proposal.num_rounds for run in runs[::2]]
    assert rounds[0] > rounds[1] > rounds[2]


def test_jobs_of_a_real_sweep_keep_their_files_apart() -> None:
    small = ("data.limit=3", "sampling.max_new_tokens=4", "baseline=off")
    assert real_sweep("proposal.max_proposal_len=1,3", *small) == 0
    for job in ("0", "1"):
        names = {path.name for path in (Path("sweep") / job).iterdir()}
        assert {"results.json", "rounds.parquet", "requests.parquet", "generations.jsonl", "status.json"} <= names
    assert [load_run(f"sweep/{job}").rounds.proposal_len.max() for job in (0, 1)] == [1, 2]


def test_an_interrupted_sweep_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An interrupt while the models load came through as a traceback, without a summary, the job said to be running."""

    def run(config: EvalConfig, *, run_dir: Path, sweep: str | None) -> None:
        (run_dir / "status.json").write_text(json.dumps({"state": "running", "error": None}))
        raise KeyboardInterrupt

    monkeypatch.setattr("spec_harness.run.run", run)
    with working_directory(tmp_path):
        assert main(["-m", "proposal.max_proposal_len=1,4", "hydra.sweep.dir=sweep"]) == 1
    err = capfd.readouterr().err
    assert err.splitlines() == ["error: job 0 (proposal.max_proposal_len=1): interrupted"]
    assert status_of(tmp_path / "sweep" / "0")["state"] == "failed"
    assert (tmp_path / "sweep" / "sweep_summary.md").is_file()


def test_an_interrupt_before_the_first_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("spec_harness.cli.evaluate.start", interrupted)
    with working_directory(tmp_path):
        assert main(["-m", "proposal.max_proposal_len=1,4", "hydra.sweep.dir=sweep"]) == 1
    assert capfd.readouterr().err.splitlines() == ["error: interrupted before the first job"]
