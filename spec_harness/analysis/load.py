"""Reading the files of finished runs. No torch, no Lightning: a notebook on a laptop is enough."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from spec_harness.errors import UserError
from spec_harness.evaluation.results import RunResults, read_results


@dataclass(frozen=True)
class Run:
    """One run's directory, read. The columns of the frames are those of the files, see the README."""

    directory: Path
    results: RunResults
    requests: pd.DataFrame  # one row a sequence
    rounds: pd.DataFrame  # one row a sequence and round

    def generations(self) -> list[dict[str, Any]]:
        """The rows of generations.jsonl: prompts and outputs, as text and as token ids."""
        lines = (self.directory / "generations.jsonl").read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line]


def load_run(directory: str | Path) -> Run:
    """Reads one run. Raises ``UserError`` if a file is missing or of another schema."""
    folder = Path(directory)
    results = read_results(folder / "results.json")
    return Run(folder, results, _frame(folder / "requests.parquet"), _frame(folder / "rounds.parquet"))


def latest_run(outputs: str | Path = "outputs") -> Path:
    """The directory of the newest finished single run below ``outputs``. Raises ``UserError`` if there is none."""
    found = sorted(Path(outputs).glob("*/results.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UserError(f"{outputs}: no finished run; make one with spec-eval")
    return found[-1].parent


def _frame(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
