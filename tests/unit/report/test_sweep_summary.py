"""The two files beside the jobs of a sweep: every job is in them, failed ones with the reason."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from spec_harness.errors import UserError
from spec_harness.report.sweep_summary import storable, write_sweep_summary
from tests.factories import config

Save = Callable[..., Path]


def test_both_files_hold_every_job(save_run: Save, tmp_path: Path) -> None:
    save_run(tmp_path / "0", overrides=["proposal.max_proposal_len=4"], config=config(proposal__max_proposal_len=4))
    save_run(tmp_path / "1", overrides=["proposal.max_proposal_len=2"], error="out of | memory")
    write_sweep_summary(tmp_path)
    frame = pd.read_parquet(tmp_path / "sweep_summary.parquet")
    assert list(frame.job) == ["0", "1"]
    assert list(frame.state) == ["done", "failed"]
    assert frame.error[1] == "out of | memory"
    assert list(frame["proposal.max_proposal_len"]) == [4, 2]
    assert frame.acceptance_rate.notna().tolist() == [True, False]
    text = (tmp_path / "sweep_summary.md").read_text()
    assert text.startswith(f"# Sweep {tmp_path.name.replace('_', chr(92) + '_')}: 2 jobs, 1 with results")
    assert "out of \\| memory" in text
    assert text.index("| 0 |") < text.index("| 1 |")
    assert not list(tmp_path.glob("*.tmp"))


def test_a_sweep_of_failures_is_summarized_too(save_run: Save, tmp_path: Path) -> None:
    save_run(tmp_path / "0", error="no")
    write_sweep_summary(tmp_path)
    assert pd.read_parquet(tmp_path / "sweep_summary.parquet").error.tolist() == ["no"]


def test_nothing_to_summarize(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        write_sweep_summary(tmp_path)


def test_a_column_has_one_type() -> None:
    """A failed job's settings are texts, the others' have the type that the configuration gives them."""
    frame = pd.DataFrame({"k": [2, "4", None], "name": ["a", 3, None], "rate": [0.5, None, 1.0]})
    stored = storable(frame)
    assert stored.k.tolist()[:2] == [2.0, 4.0]
    assert stored.name.tolist()[:2] == ["a", "3"]
    assert stored.isna().iloc[2].tolist() == [True, True, False]


def test_it_needs_no_torch() -> None:
    script = (
        "import spec_harness.report.sweep_summary, sys;"
        "print([name for name in ('torch', 'lightning', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
