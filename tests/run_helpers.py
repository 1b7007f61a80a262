"""Whole runs of the command in the test's own process, checkpoints to run, and readers of what a run leaves."""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from spec_harness.cli.evaluate import main
from spec_harness.models.configured import ASSETS
from spec_harness.models.load import LoadedModel
from spec_harness.report.load import Run
from tests.helpers import noisy_copy, tiny_model

QUIET = ("trainer.enable_progress_bar=false", "integrity=off")  # the checks before a run have tests of their own
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}<assistant>"

SAMPLED = (
    "sampling=temperature",
    "sampling.temperature=0.8",
    "sampling.max_new_tokens=24",
    "data.limit=12",
)  # a run with its intervals


@contextmanager
def working_directory(path: Path) -> Iterator[None]:
    """Runs inside the block start in ``path``; what they change in the process is undone: the environment, and Hydra's
    log handlers, which write to the captured streams."""
    before, environment = Path.cwd(), dict(os.environ)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    os.chdir(path)
    os.environ.pop("HYDRA_FULL_ERROR", None)
    try:
        yield
    finally:
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(before)


def spec_eval(*overrides: str, run_dir: str = "run", logger: str = "none") -> int:
    """The exit code of one run into ``run_dir``. The last of two values of one key counts."""
    return main([f"logger={logger}", f"hydra.run.dir={run_dir}", *QUIET, *overrides])


def status_of(run_dir: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    return content


def generations_of(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "generations.jsonl").read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""  # each line is whole
    return [json.loads(line) for line in lines]


def outputs_of(run_dir: Path) -> dict[tuple[str, int], list[int]]:
    """Token ids by request id and turn."""
    return {(row["request_id"], row["turn"]): row["token_ids"] for row in generations_of(run_dir)}


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def packaged_tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(ASSETS / "target")


def copy_packaged(role: str, folder: Path) -> Path:
    """A copy of a packaged model, for the test to change."""
    shutil.copytree(ASSETS / role, folder)
    return folder


def random_checkpoint(folder: Path, *, chat_template: str | None = None, **config: Any) -> Path:
    """A folder with a tiny random model that speaks the packaged tokenizer's tokens."""
    tokenizer = packaged_tokenizer()
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    tiny_model(**{"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, **config}).save_pretrained(
        folder
    )
    return folder


def save_draft_of(target: LoadedModel, folder: Path, *, scale: float = 0.02) -> Path:
    """A draft that agrees with its target about half of the time, beside the packaged tokenizer."""
    packaged_tokenizer().save_pretrained(folder)
    noisy_copy(target, scale=scale).model.save_pretrained(folder)
    return folder


def error_line(stderr: str) -> str:
    """The one line that a refusal writes."""
    assert "Traceback" not in stderr
    (line,) = stderr.splitlines()
    assert line.startswith("error: ")
    return line


def everything_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def rows_of(run: Run, name: str = "rounds") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(run.directory / f"{name}.parquet").to_pylist()
    return rows
