"""What tests of whole runs share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spec_harness.report.load import Run, load_run
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


@pytest.fixture(scope="session")
def sampled_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("sampled")
    with working_directory(folder):  # the one whole run with its shapes checked
        assert spec_eval(*SAMPLED) == 0
    return load_run(folder / "run")
