"""The target as its own draft: everything is accepted, or the draft's cache has a hole."""

from collections import Counter
from pathlib import Path

import pytest

from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.report.load import load_run
from tests.run_helpers import rows_of, spec_eval, status_of

SMALL = ("data.limit=8", "sampling.max_new_tokens=24")
K = 4

pytestmark = pytest.mark.usefixtures("clean_process")


def test_a_target_that_drafts_for_itself_is_always_accepted() -> None:
    assert spec_eval("experiment=self_draft", "baseline=off", *SMALL) == 0
    run = load_run("run")
    assert run.results.proposal.acceptance_rate.value == 1.0
    rounds = rows_of(run)
    ended = run.results.proposal.rounds_ended_by_accepted_eos
    short = [row for row in rounds if row["num_emitted"] != row["proposal_len"] + 1]
    assert len(short) == ended
    assert all(row["num_accepted"] == row["proposal_len"] for row in rounds)
    assert Counter(row["proposal_len"] for row in rounds)[K] >= 0.7 * len(rounds)


def plant_a_hole_in_the_draft_s_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The known fault of the origin: the last accepted token is taken as computed, though the draft never was fed it.
    The output stays right and acceptance silently drops."""

    def rewind(self: MultiStepWorker, seq_id: int, length: int) -> None:
        self._num_computed_tokens[seq_id] = length - 1

    monkeypatch.setattr(MultiStepWorker, "rewind", rewind)


def test_a_hole_in_the_draft_s_cache_lowers_the_acceptance_of_self_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_a_hole_in_the_draft_s_cache(monkeypatch)
    assert spec_eval("experiment=self_draft", "baseline=off", *SMALL) == 0
    rate = load_run("run").results.proposal.acceptance_rate.value
    assert rate is not None
    assert rate < 1.0


def test_the_checks_before_a_run_find_a_hole_in_the_draft_s_cache(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plant_a_hole_in_the_draft_s_cache(monkeypatch)
    assert spec_eval("integrity=quick", *SMALL) == 1
    status = status_of(Path("run"))
    assert status["state"] == "failed"
    assert status["error"].startswith("IntegrityError: ")
    assert "target as its own draft" in status["error"]
    assert not Path("run/results.json").exists()
