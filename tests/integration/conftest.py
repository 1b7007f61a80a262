"""What tests of whole runs share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spec_harness.report.load import Run, load_run
from spec_harness.trust import step_profile
from tests.inspection import shapes_unchecked
from tests.run_helpers import SAMPLED, spec_eval, working_directory


@pytest.fixture
def clean_process(tmp_path: Path) -> Iterator[None]:
    """An empty working directory; what runs leave in the process goes with the test."""
    with working_directory(tmp_path):
        yield


@pytest.fixture(autouse=True)
def _shapes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shapes are checked where a test asks for it (``pytest.mark.shapes``): of thousands of small steps the checks take
    three quarters of the time, and the second thousand says no more than the first."""
    if request.node.get_closest_marker("shapes"):
        yield
        return
    with shapes_unchecked():
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_profile() -> Iterator[None]:
    """Step times take half of a small run's time, and no test of a whole run asks how well they are measured."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"WARM_UP": 1, "REPEATS": 2, "TURNS": 1, "SETTLE": 1, "MEASURED": 2}.items():
            patch.setattr(step_profile, name, value)
        yield


@pytest.fixture(scope="session")
def sampled_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("sampled")
    with working_directory(folder):  # the one whole run with its shapes checked
        assert spec_eval(*SAMPLED) == 0
    return load_run(folder / "run")
