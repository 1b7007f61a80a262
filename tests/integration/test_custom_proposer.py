"""The README's own proposer, as a user would run it: lossless, and under its own name wherever a person looks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from spec_harness.cli.evaluate import main
from spec_harness.cli.report import main as spec_report
from spec_harness.report.sweep import load_sweep
from tests.inspection import shapes_unchecked
from tests.run_helpers import working_directory

README = Path(__file__).parents[2] / "README.md"
LABEL = "SinceThen"


def readme_class() -> str:
    """The code block of the README that defines the proposer."""
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if LABEL in code]
    assert len(block.strip().splitlines()) <= 20
    return str(block)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("custom")
    (folder / "my_proposers.py").write_text(readme_class())
    small = ("data.limit=2", "sampling.max_new_tokens=12", "trainer.enable_progress_bar=false", "integrity=quick")
    chosen = ("proposal=custom", f"proposal._target_=my_proposers.{LABEL}", "proposal.max_proposal_len=2,3")
    with working_directory(folder), shapes_unchecked(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        assert main(["-m", "hydra.sweep.dir=sweep", "logger=wandb", *chosen, *small]) == 0
    return folder / "sweep"


def test_it_is_lossless_and_passes_the_gate(sweep: Path) -> None:
    for run in load_sweep(sweep).runs:
        integrity = run.results.integrity
        assert {check.verdict for check in integrity.checks} == {"pass"}
        assert integrity.baseline_equality is not None
        assert (integrity.baseline_equality.equal, integrity.baseline_equality.fault) == (2, 0)
        assert run.results.proposal.num_drafts > 0


def test_results_and_the_printed_table_carry_its_name(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proposer = json.loads((sweep / "0" / "results.json").read_text())["provenance"]["proposer"]
    assert proposer == {"name": f"my_proposers.{LABEL}", "label": LABEL}
    assert spec_report(["show", str(sweep / "0")]) == 0
    assert LABEL in capsys.readouterr().out


def test_the_tracker_carries_its_name(sweep: Path) -> None:
    (run,) = (sweep / "1" / "wandb").glob("offline-run-*")
    command = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--summary", "--json", run]
    content = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert content["name"] == f"{LABEL} k=3 block=16"
    assert content["config"]["proposal"]["_target_"] == f"my_proposers.{LABEL}"


def test_summary_and_page_of_the_sweep_carry_its_name(sweep: Path) -> None:
    assert LABEL in (sweep / "sweep_summary.md").read_text()
    jobs = pd.read_parquet(sweep / "sweep_summary.parquet")
    assert (jobs == LABEL).any(axis=None)
    assert spec_report(["html", str(sweep)]) == 0
    assert LABEL in (sweep / "report.html").read_text()
