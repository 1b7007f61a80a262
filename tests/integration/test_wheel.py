"""The wheel is the whole product: configurations, prompts and models travel in it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spec_harness.report.load import latest_run, load_run

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def package_files() -> set[str]:
    """What the package consists of, by its place in the wheel: all of the source tree but what Python writes there."""
    package = {path.relative_to(ROOT) for path in (ROOT / "spec_harness").rglob("*") if path.is_file()}
    conf = {"spec_harness" / path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*.yaml")}
    return {path.as_posix() for path in package | conf if "__pycache__" not in path.parts}


def test_the_wheel_holds_code_configurations_prompts_and_models(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == package_files()
    for name in (
        "conf/eval.yaml",
        "assets/prompts.jsonl",
        "assets/target/model.safetensors",
        "assets/draft/config.json",
    ):
        assert f"spec_harness/{name}" in names


def test_an_installed_wheel_runs_in_an_empty_directory(wheel: Path, tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    pip = ("--no-deps", "--no-index", "--disable-pip-version-check", "--target", site)
    run(sys.executable, "-m", "pip", "install", *pip, wheel, cwd=tmp_path)
    # Without PYTHONSAFEPATH the working directory would come first, and with it a checkout's package.
    env = os.environ | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    used = run(sys.executable, "-c", "import spec_harness; print(spec_harness.__file__)", cwd=work, env=env)
    assert Path(used.strip()) == site / "spec_harness" / "__init__.py"
    shown = run(sys.executable, "-m", "spec_harness", "--help", cwd=work, env=env)
    assert "Choose one option" in shown
    run(sys.executable, "-m", "spec_harness", "experiment=smoke", cwd=work, env=env)
    results = load_run(latest_run(work / "outputs")).results
    assert results.proposal.num_requests == 4
    assert results.provenance.git_commit is None  # it ran from no checkout
    assert (site / "bin" / "spec-eval").exists()
