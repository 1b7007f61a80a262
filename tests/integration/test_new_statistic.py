"""A statistic is declared in one place: the results, the table, W&B's summary and a comparison have it then."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spec_harness

ANCHOR = "    macro_mean_acceptance_length: Annotated["
DECLARATION = """    drafted_a_round: Annotated[
        Estimate,
        Ratio(Sum(lambda r: r.proposal_len), "num_rounds", label="drafted a round", unit="tokens"),
        Field(description="draft tokens / rounds"),
    ]
"""


@pytest.mark.slow
def test_one_declaration_is_found_everywhere(tmp_path: Path) -> None:
    root = Path(spec_harness.__file__).parents[1]
    for name in ("spec_harness", "conf"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    declared = tmp_path / "spec_harness" / "metrics" / "statistics.py"
    text = declared.read_text(encoding="utf-8")
    assert text.count(ANCHOR) == 1
    declared.write_text(text.replace(ANCHOR, DECLARATION + ANCHOR), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    common = ("data.limit=2", "sampling.max_new_tokens=8", "integrity=off", "trainer.enable_progress_bar=false")
    summary = python("-m", "spec_harness", *common, "logger=wandb_csv", "hydra.run.dir=a")
    python(
        "-m", "spec_harness", *common, "logger=none", "verbose=false", "proposal.max_proposal_len=2", "hydra.run.dir=b"
    )
    proposal = json.loads((tmp_path / "a" / "results.json").read_text())["proposal"]
    expected = proposal["num_draft_tokens"] / proposal["num_rounds"]
    assert proposal["drafted_a_round"] == {"value": expected, "ci95": None, "n": 2}
    (row,) = [line for line in summary.splitlines() if "drafted a round" in line]
    assert f"{expected:.2f}" in row
    assert "draft tokens / rounds" in row
    (log,) = (tmp_path / "a" / "wandb").rglob("run-*.wandb")
    leet = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--summary", "--json", str(log.parent)]
    tracked = json.loads(subprocess.run(leet, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert tracked["summary"]["proposal/drafted_a_round"] == expected
    compared = python("-m", "spec_harness.cli.report", "compare", "a", "b")
    assert "drafted a round" in compared
