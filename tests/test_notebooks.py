"""Every notebook runs from top to bottom in a clean place, and is stored without outputs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def test_the_notebooks_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "01_first_run",
        "02_compare_drafts",
        "03_choose_proposal_length",
        "04_kv_blocks",
    ]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_where_there_is_nothing_yet(notebook: Path, tmp_path: Path) -> None:
    """It makes the runs that it reads; the time limit is that of one notebook from a clean checkout."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(notebook, folder)
    (tmp_path / "outputs").mkdir()
    command = [sys.executable, "-m", "pytest", "-q", "--nbmake", "--nbmake-timeout=300", folder / notebook.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
