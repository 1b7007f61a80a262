"""Where the user stood: paths and modules are found from there, wherever a job runs."""

import sys
from pathlib import Path

import pytest

from spec_harness.cli.evaluate import main
from spec_harness.report.load import load_run
from tests.run_helpers import QUIET, random_checkpoint, write_jsonl

pytestmark = pytest.mark.usefixtures("clean_process")


def test_a_job_in_a_directory_of_its_own_finds_models_prompts_and_loggers(tmp_path: Path) -> None:
    random_checkpoint(tmp_path / "models" / "target")
    write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "import os"}])
    models = ("draft=hf", "draft.path=models/target", "target=hf", "target.path=./models/target")
    arguments = (*models, "data.path=rows.jsonl", "sampling.max_new_tokens=3", "logger=wandb_csv", "hydra.run.dir=run")
    assert main([*arguments, *QUIET, "baseline=off", "hydra.job.chdir=true"]) == 0
    config = load_run(tmp_path / "run").results.config
    assert config["data"]["path"] == str(tmp_path / "rows.jsonl")
    assert config["draft"]["path"] == config["target"]["path"] == str(tmp_path / "models" / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "rows.jsonl", "run"]
    assert (tmp_path / "run" / "csv" / "metrics.csv").is_file()
    assert (tmp_path / "run" / "wandb").is_dir()


def test_modules_in_the_working_directory_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console script starts without it on the import path, ``python -m`` with it."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    assert main(["--version"]) == 0
    assert sys.path[-1] == str(tmp_path)
