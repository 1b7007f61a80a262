"""The factories as fixtures, and one real sweep."""

from collections.abc import Callable
from pathlib import Path

import pytest

from spec_harness.cli.evaluate import main
from spec_harness.report.load import Run
from spec_harness.report.sweep import Sweep, load_sweep
from spec_harness.requests import RequestRecord, RoundRecord
from spec_harness.results.schema import RunResults
from tests import factories
from tests.inspection import shapes_unchecked
from tests.run_helpers import QUIET, working_directory


@pytest.fixture
def make_round() -> Callable[..., RoundRecord]:
    """``make_round(l, a, eos=, past_end=, **fields)``; aligned defaults to accepted, nothing proposed to ``budget``."""
    return factories.round_of


@pytest.fixture
def make_request() -> Callable[..., RequestRecord]:
    """``make_request(rounds, **fields)``."""
    return factories.request_of


@pytest.fixture
def random_requests() -> Callable[..., list[RequestRecord]]:
    """``random_requests(seed, max_proposal_len=, num_requests=)``: consistent records with skips and ends of text."""
    return factories.random_requests


@pytest.fixture
def make_results() -> Callable[..., RunResults]:
    """``make_results(requests, max_proposal_len=, **sections)``."""
    return factories.results_of


@pytest.fixture
def save_run() -> Callable[..., Path]:
    """``save_run(folder, requests, overrides=, error=, **sections of results)``: the files of a run, and its folder."""
    return factories.save_run


@pytest.fixture(scope="session")
def real_sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Two lengths on two block sizes, really run."""
    folder = tmp_path_factory.mktemp("real")
    points = ("proposal.max_proposal_len=1,3", "kv_cache.block_size=8,16", "kv_cache.num_blocks=24")
    small = ("data.limit=8", "sampling.max_new_tokens=6", "max_num_seqs=8", "logger=none", "hydra.sweep.dir=sweep")
    with working_directory(folder), shapes_unchecked():
        assert main(["-m", *points, *small, *QUIET]) == 0
    return load_sweep(folder / "sweep")


@pytest.fixture(scope="session")
def real_run(real_sweep: Sweep) -> Run:
    """One of its runs, with proposals of up to 3 tokens."""
    return real_sweep.runs[-1]
