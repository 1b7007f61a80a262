"""Sweepers that choose their next points by what the jobs return. They come with the extra ``sweepers``."""

from pathlib import Path

import pytest

from spec_harness.cli.evaluate import main
from tests.run_helpers import QUIET

# The plugin imports what its libraries have deprecated.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("clean_process")]


@pytest.fixture(autouse=True)
def sweepers() -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="the extra `sweepers` is not installed")


def test_a_sweeper_that_optimizes_maximizes_the_objective(tmp_path: Path) -> None:
    """The target drafts for itself: each longer proposal means fewer passes, so the longest is the best."""
    sweep = ("hydra/sweeper=optuna", "hydra.sweeper.direction=maximize", "hydra.sweeper.n_trials=4")
    search = ("hydra/sweeper/sampler=grid", "proposal.max_proposal_len=choice(1,2,4)", "hydra.sweep.dir=sweep")
    small = ("draft=self", "data.limit=2", "sampling.max_new_tokens=12", "sampling.ignore_eos=true", "logger=none")
    objective = "objective=proposal.tokens_per_target_pass"
    assert main(["-m", *sweep, *search, *small, *QUIET, "baseline=off", objective]) == 0
    found = (tmp_path / "sweep" / "optimization_results.yaml").read_text()
    assert "proposal.max_proposal_len: 4" in found


def test_a_null_objective_is_a_clear_failure_for_the_sweeper(capfd: pytest.CaptureFixture[str]) -> None:
    sweep = ("hydra/sweeper=optuna", "proposal.max_proposal_len=choice(1,2)", "hydra.sweeper.n_trials=1")
    small = ("data.limit=2", "sampling.max_new_tokens=4", "logger=none", "baseline=off", "hydra.sweep.dir=sweep")
    assert main(["-m", *sweep, *small, *QUIET]) == 1
    assert "objective: timing.speedup is null in this run" in capfd.readouterr().err
