"""What tests of whole runs share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inspection import shapes_unchecked
from tests.run_helpers import working_directory


@pytest.fixture
def clean_process(tmp_path: Path) -> Iterator[None]:
    """An empty working directory; what runs leave in the process goes with the test."""
    with working_directory(tmp_path):
        yield


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    with shapes_unchecked():
        yield
