"""Reading finished runs, and saying what is wrong with one that cannot be read."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from spec_harness.errors import UserError
from spec_harness.report.load import latest_run, load_run
from spec_harness.report.sweep import latest_sweep
from spec_harness.results.run_files import RunFiles
from spec_harness.results.schema import write_results
from tests.factories import config, header_of, random_requests, results_of


@pytest.fixture
def save() -> Callable[..., Path]:
    """Writes the files of a fabricated run."""

    def write(folder: Path, *, seed: int = 0) -> Path:
        folder.mkdir(parents=True)
        requests = random_requests(seed, max_proposal_len=3)
        files = RunFiles(folder, header_of(len(requests), max_proposal_len=3))
        for request in requests:
            files.add("speculative", request)
        files.finalize(requests)
        write_results(folder / "results.json", results_of(requests, max_proposal_len=3))
        return folder

    return write


def test_a_run_is_read_with_frames_that_agree_with_its_results(save: Callable[..., Path], tmp_path: Path) -> None:
    run = load_run(save(tmp_path / "run"))
    proposal = run.results.proposal
    assert run.directory == tmp_path / "run"
    assert (len(run.requests), len(run.rounds)) == (proposal.num_requests, proposal.num_rounds)
    assert run.rounds.num_accepted.sum() == run.requests.accepted_tokens.sum() == proposal.num_accepted_tokens
    generations = run.generations()
    assert [row["request_id"] for row in generations] == list(run.requests.request_id)
    assert sum(len(row["token_ids"]) for row in generations) == proposal.num_output_tokens


def test_a_path_may_be_a_text(save: Callable[..., Path], tmp_path: Path) -> None:
    assert load_run(str(save(tmp_path / "run"))).directory == tmp_path / "run"


@pytest.mark.parametrize("name", ["results.json", "requests.parquet", "rounds.parquet"])
@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_a_file_that_cannot_be_read_is_named(name: str, damage: str, save: Callable[..., Path], tmp_path: Path) -> None:
    path = save(tmp_path / "run") / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match=str(path)):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["requests.parquet", "rounds.parquet"])
def test_a_table_of_another_kind_is_named(name: str, save: Callable[..., Path], tmp_path: Path) -> None:
    folder = save(tmp_path / "run")
    pd.DataFrame({"other": [1]}).to_parquet(folder / name)
    with pytest.raises(UserError, match=f"{name}: the column [a-z_]+ is missing"):
        getattr(load_run(folder), name.removesuffix(".parquet"))


@pytest.mark.parametrize("content", ['{"1": ', "[1]", '{"x": "y"}'])
def test_damaged_token_texts_are_named(content: str, save: Callable[..., Path], tmp_path: Path) -> None:
    folder = save(tmp_path / "run")
    assert load_run(folder).token_texts() is None
    (folder / "token_texts.json").write_text(content)
    with pytest.raises(UserError, match=r"token_texts\.json: cannot be read"):
        load_run(folder).token_texts()


def test_lines_are_split_at_line_feeds_only(save: Callable[..., Path], tmp_path: Path) -> None:
    """A text may hold Unicode's own line separators."""
    path = save(tmp_path / "run") / "generations.jsonl"
    row: dict[str, Any] = {"request_id": "a", "turn": 0, "sample": 0, "prompt_token_ids": [], "token_ids": []}
    texts = ("a\u2028b", "\x85")
    lines = [json.dumps(row | {"text": text}, ensure_ascii=False) for text in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert [found["text"] for found in load_run(tmp_path / "run").generations()] == list(texts)


@pytest.mark.parametrize("line", ["[]", "{}", '{"request_id": "a"}', "[" * 100_000])
def test_lines_that_are_no_outputs_are_named(line: str, save: Callable[..., Path], tmp_path: Path) -> None:
    path = save(tmp_path / "run") / "generations.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UserError, match=str(path)):
        load_run(tmp_path / "run").generations()


def touch(path: Path, *, seconds: float) -> None:
    os.utime(path, (seconds, seconds))


def test_the_latest_run_is_the_newest_that_finished(
    save: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = tmp_path / "outputs"
    old, new = save(outputs / "b_old"), save(outputs / "a_new")
    touch(old / "results.json", seconds=1_000)
    touch(new / "results.json", seconds=2_000)
    (outputs / "unfinished").mkdir()
    job = save(outputs / "multirun" / "sweep" / "0")  # a sweep's job is no single run
    touch(job / "results.json", seconds=3_000)
    assert latest_run(outputs) == new
    monkeypatch.chdir(tmp_path)
    assert latest_run() == Path("outputs/a_new")


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished run; make one with spec-eval"):
        latest_run(tmp_path)


def test_reading_needs_neither_torch_nor_lightning() -> None:
    heavy = ("torch", "lightning", "transformers", "wandb", "torchmetrics")
    script = f"import spec_harness.report.load, sys; print([name for name in {heavy} if name in sys.modules])"
    result: Any = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_the_latest_sweep_over_something(save_run: Callable[..., Path], tmp_path: Path) -> None:
    multirun = tmp_path / "multirun"
    for age, (folder, key, values) in enumerate(
        [
            ("newest", "sampling__seed", (1, 2)),
            ("lengths", "proposal__max_proposal_len", (2, 4)),
            ("older", "proposal__max_proposal_len", (1, 3)),
        ]
    ):
        for job, value in enumerate(values):
            save_run(multirun / folder / str(job), config=config(**{key: value}))
        touch(multirun / folder, seconds=1000 - age)
    (multirun / "empty").mkdir()
    assert latest_sweep(tmp_path, varied="proposal.max_proposal_len") == multirun / "lengths"
    assert latest_sweep(tmp_path, varied="proposal") == multirun / "lengths"
    assert latest_sweep(tmp_path, varied="sampling") == multirun / "newest"
    assert latest_sweep(tmp_path, varied="draft") is None
    assert latest_sweep(tmp_path / "nowhere", varied="draft") is None
