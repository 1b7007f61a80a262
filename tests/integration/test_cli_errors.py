"""A mistake of the user costs one line on stderr and exit code 2, and leaves no directory behind."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_harness.cli.evaluate import main
from spec_harness.config import EvalConfig
from spec_harness.errors import UserError
from tests.run_helpers import error_line, everything_below, status_of

pytestmark = pytest.mark.usefixtures("clean_process")

TINY_RUN = ["data.limit=2", "sampling.max_new_tokens=4", "logger=none"]

Run = Callable[..., None]


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Puts a function in the place of the engine."""
    return lambda run: monkeypatch.setattr("spec_harness.run.run", run)


def refuse(config: EvalConfig, *, run_dir: Path, sweep: str | None) -> None:
    """As the engine does: it says that it runs, then finds the pool too small."""
    (run_dir / "status.json").write_text('{"state": "running"}')
    (run_dir / "wandb").mkdir()
    raise UserError(f"kv_cache.num_blocks must be at least 5, not {config.kv_cache.num_blocks}")


def run_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spec_harness", *arguments], cwd=cwd, capture_output=True, text=True, timeout=300
    )


STATIC_MISTAKES = [
    (["draft=hf", "draft.path=/nowhere"], "draft.path: /nowhere does not exist"),
    (["draft.path=/nowhere"], "draft.path: /nowhere does not exist"),
    (["target.path=./nowhere"], "/nowhere does not exist; give a folder, or a hub id"),
    (["kv_cache.block_size=0"], "kv_cache.block_size must be at least 1, not 0"),
    (["max_num_seqs=0"], "max_num_seqs must be at least 1, not 0"),
    (["sampling.max_new_tokens=0"], "sampling.max_new_tokens must be at least 1, not 0"),
    (["proposal.max_proposal_len=-1"], "proposal.max_proposal_len must be at least 0, not -1"),
    (["proposal.max_proposal_len=four"], "proposal.max_proposal_len must be a whole number, not four"),
    (["proposal.max_len=4"], "proposal.max_len does not exist; did you mean proposal.max_proposal_len?"),
    (["max_new_tokens=4"], "did you mean sampling.max_new_tokens?"),
    (["proposal.bananas=4"], "proposal.bananas does not exist; proposal has kind, max_proposal_len"),
    (["sampling.temperature=-0.5"], "sampling.temperature must be 0 (greedy) or a finite number of at least 1e-6"),
    (["sampling.temperature=1e-40"], "sampling.temperature must be 0 (greedy)"),
    (["seed=-1"], "seed must be at least 0, not -1"),
    (["seed=4294967296"], "seed must be at most 4294967295"),
    (["kv_cache.num_blocks=99999999999999999999"], "kv_cache.num_blocks must be at most"),
    (["kv_cache.block_size=100000000"], "kv_cache.block_size must be at most 65536"),
    (["sampling.stop=['']"], "sampling.stop must not hold an empty text"),
    (["sampling.num_beams=4"], "sampling.num_beams must be 1, not 4: beam search"),
    (["draft.path=/" + "x" * 300], "does not exist"),
    (["-m", "data.limit=range(5,1)"], "the sweep has no job"),
    (["-m", "hydra.sweep.subdir=x", "seed=1,2"], "would share one directory"),
    (["sampling.top_p=1.5"], "sampling.top_p must be above 0 and at most 1, not 1.5"),
    (["target.dtype=float8"], "target.dtype must be one of auto, float32, bfloat16, float16, not float8"),
    (["draft=nonsense"], "draft has no option 'nonsense'; its options are hf, random, self, tiny"),
    (["trainer=ddp"], "trainer has no option 'ddp'; its options are cpu, gpu"),
    (["drafft=tiny"], "drafft does not exist; did you mean draft?"),
    (["+draft.foo=1"], "draft.foo does not exist"),
    (["draft=tiny,hf"], "add -m to sweep over them"),
    (["draft.path=~/x"], """'draft.path="~/x"'"""),
    (["kv_cache=8"], "kv_cache=8"),
    (["nonsense"], "'nonsense' is not of the form key=value"),
    (["logger.mode=${oc.env:SPEC_HARNESS_UNSET}"], "logger.mode"),
    (["data.category=poems"], "no prompt has the category 'poems'; there are "),
    (["--cfg", "job", "draft=nonsense"], "draft has no option 'nonsense'"),
    (["--nonsense"], "unknown argument --nonsense"),
    (["--config-dir", "nowhere"], "--config-dir: there is no folder nowhere"),
    (["--info", "nonsense"], "invalid choice: 'nonsense'"),
    (["-m", "--cfg", "job", "seed=1,2"], "only one of --run, --multirun (-m), --cfg"),
    (["objective=timing.speed"], "objective: timing.speed is no key of results.json: timing has no speed; it has"),
    (["objective=proposal.accepted_length_histogram"], "is no single figure of results.json"),
    (["-m", "proposal.max_proposal_len=interval(1,4)"], "an interval has no list of values"),
    (["-m", "hydra.sweep.subdir=k${proposal.max_proposal_len}", "seed=1,2"], "jobs 0 and 1 of the sweep would share"),
    (["--resolve"], "--resolve needs --cfg job"),
]


@pytest.mark.parametrize(("arguments", "message"), STATIC_MISTAKES, ids=lambda value: str(value)[:40])
def test_a_wrong_configuration(
    arguments: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in error_line(capfd.readouterr().err)
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [["hydra.run.dir=taken/run"], ["-m", "hydra.sweep.dir=taken/sweep", "proposal.max_proposal_len=1,2"]],
)
def test_an_output_directory_that_cannot_be_made(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    assert main(arguments) == 2
    assert "cannot be written" in error_line(capfd.readouterr().err)
    assert everything_below(tmp_path) == ["taken"]


def test_hydra_full_error_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert main(["kv_cache.block_size=0"]) == 2
    stderr = capfd.readouterr().err
    assert "Traceback" in stderr
    assert stderr.splitlines()[-1].startswith("error: kv_cache.block_size")


def test_a_run_gets_its_configuration_and_directory(fake_run: Callable[[Run], None], tmp_path: Path) -> None:
    calls: list[tuple[EvalConfig, Path, str | None]] = []

    def finish(config: EvalConfig, *, run_dir: Path, sweep: str | None) -> None:
        calls.append((config, run_dir, sweep))
        (run_dir / "status.json").write_text('{"state": "done"}')

    fake_run(finish)
    assert main(["proposal.max_proposal_len=2"]) == 0
    ((config, run_dir, sweep),) = calls
    assert config.proposal.max_proposal_len == 2
    assert run_dir.parent == tmp_path / "outputs"
    assert sweep is None
    assert {".hydra", "spec-eval.log"} <= set(everything_below(run_dir))


def test_a_run_refused_inside_its_job_leaves_nothing(
    fake_run: Callable[[Run], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_run(refuse)
    assert main(["kv_cache.num_blocks=2"]) == 2
    assert "kv_cache.num_blocks must be at least 5, not 2" in error_line(capfd.readouterr().err)
    assert everything_below(tmp_path) == []


def test_a_refused_run_takes_away_only_its_own_files(fake_run: Callable[[Run], None], tmp_path: Path) -> None:
    fake_run(refuse)
    mine = tmp_path / "out" / "mine"
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("keep")
    assert main([f"hydra.run.dir={mine}"]) == 2
    assert main(["hydra.run.dir=out/new/deep"]) == 2
    assert everything_below(tmp_path) == ["out", "out/mine", "out/mine/notes.txt"]


def test_a_run_directory_with_special_characters(fake_run: Callable[[Run], None], tmp_path: Path) -> None:
    used: list[Path] = []

    def finish(config: EvalConfig, *, run_dir: Path, sweep: str | None) -> None:
        used.append(run_dir)
        (run_dir / "status.json").write_text('{"state": "done"}')

    fake_run(finish)
    assert main(["hydra.run.dir='out/a b,c=d (e)'"]) == 0
    assert used == [tmp_path / "out" / "a b,c=d (e)"]


def test_a_fault_is_a_traceback_and_exit_code_1(
    fake_run: Callable[[Run], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(config: EvalConfig, *, run_dir: Path, sweep: str | None) -> None:
        raise RuntimeError("logits are not finite")

    fake_run(fail)
    assert main([]) == 1
    stderr = capfd.readouterr().err
    assert "Traceback" in stderr
    assert "RuntimeError: logits are not finite" in stderr
    assert everything_below(tmp_path) != []


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"], ["--info", "defaults"], ["--version"]])
def test_showing_something_runs_nothing(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    assert capfd.readouterr().out
    assert everything_below(tmp_path) == []


def test_config_dir_may_stand_anywhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own"
    (own / "kv_cache").mkdir(parents=True)
    (own / "kv_cache" / "mine.yaml").write_text("block_size: 4\n")
    for arguments in (["--config-dir", "own", "kv_cache=mine"], ["kv_cache=mine", "--config-dir", "own"]):
        assert main([*arguments, "--cfg", "job"]) == 0
        assert "block_size: 4" in capfd.readouterr().out
    (own / "kv_cache" / "mine.yaml").write_text("blok_size: 4\n")
    assert main(["--config-dir", "own", "kv_cache=mine"]) == 2
    line = error_line(capfd.readouterr().err)
    assert line == "error: kv_cache.blok_size does not exist; did you mean kv_cache.block_size?"


def test_the_installed_command_and_the_module(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("spec-eval")
    for start in ([str(command)], [sys.executable, "-m", "spec_harness"]):
        result = subprocess.run([*start, "draft.path=/nowhere"], cwd=tmp_path, capture_output=True, text=True)
        assert (result.returncode, result.stdout) == (2, "")
        error_line(result.stderr)
    assert everything_below(tmp_path) == []


def test_the_tiny_pair_runs_and_says_nothing_on_stderr(tmp_path: Path) -> None:
    result = run_command(*TINY_RUN, "integrity=off", "baseline=off", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    (run_dir,) = (tmp_path / "outputs").iterdir()
    assert status_of(run_dir)["state"] == "done"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["kv_cache.num_blocks=1"], ["kv_cache.num_blocks", "1"]),
        (["proposal.max_proposal_len=100000"], ["proposal.max_proposal_len", "100000"]),
        (["data.path=long.jsonl"], ["long.jsonl"]),
    ],
)
def test_mistakes_that_only_the_models_show(
    overrides: list[str], words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "import os\n" * 5000}) + "\n")
    assert main([*TINY_RUN, *overrides]) == 2
    line = error_line(capfd.readouterr().err)
    assert all(word in line for word in words)
    assert everything_below(tmp_path) == ["long.jsonl"]


def test_a_directory_that_holds_a_run_is_refused_and_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second run that failed there left the first one's results beside its own status, and they were read as its."""
    finished = tmp_path / "out"
    finished.mkdir()
    (finished / "results.json").write_text("{}")
    assert main([*TINY_RUN, "hydra.run.dir=out"]) == 2
    assert "holds a run already (results.json)" in error_line(capfd.readouterr().err)
    assert everything_below(tmp_path) == ["out", "out/results.json"]


def test_a_run_that_was_told_to_stop_does_not_end_as_if_it_were_done(
    fake_run: Callable[[Run], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lightning turns SIGTERM in its loop into an orderly end; a batch system then read exit code 0 as success."""

    def stopped(config: EvalConfig, *, run_dir: Path, sweep: str | None) -> None:
        (run_dir / "status.json").write_text('{"state": "failed", "error": "interrupted"}')
        raise SystemExit(0)

    fake_run(stopped)
    assert main([*TINY_RUN, "hydra.run.dir=out"]) == 1
    assert capfd.readouterr().err.startswith("error: interrupted; what was finished is in ")
    assert status_of(tmp_path / "out")["state"] == "failed"
