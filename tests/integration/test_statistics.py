"""The statistics of real runs: recomputed from their rounds and from the models themselves, tampered with, compared."""

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_harness.metrics.counts import ProposalCounts
from spec_harness.metrics.identities import check_identities
from spec_harness.models.configured import ASSETS
from spec_harness.models.load import load_pretrained
from spec_harness.models.paged_check import dense_logits
from spec_harness.report.load import Run, load_run
from spec_harness.results.schema import Estimate, ProposalResults
from tests.reference import assert_equal, naive
from tests.run_helpers import generations_of, rows_of, spec_eval, status_of

K = 4

pytestmark = pytest.mark.usefixtures("clean_process")


def output_tokens(run: Run) -> dict[str, int]:
    return {str(row["request_id"]): row["output_tokens"] for row in rows_of(run, "requests")}


def test_every_pooled_figure_is_that_of_a_naive_loop_over_the_rounds(sampled_run: Run) -> None:
    rounds, section = rows_of(sampled_run), sampled_run.results.proposal
    expected = naive(rounds, K, output_tokens(sampled_run))
    assert_equal(section, expected)
    others = {"num_requests", "num_prefill_tokens", "num_output_tokens"}
    assert expected.keys() | others == ProposalResults.model_fields.keys()  # nothing is left out
    assert (section.num_requests, section.num_prefill_tokens) == (12, 12)
    assert section.num_output_tokens == 12 + section.num_emitted_tokens
    assert 0 < section.num_accepted_tokens < section.num_draft_tokens
    assert sum(section.target_rank_in_draft[1:]) > 0


def test_so_is_every_figure_of_the_breakdowns_by_round(sampled_run: Run) -> None:
    groups: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(sampled_run):
        groups["proposal_len"][str(row["proposal_len"])].append(row)
        low = 2 ** math.floor(math.log2(row["context_len"]))
        groups["context_bucket"][f"{low}-{2 * low - 1}"].append(row)
    for grouping, members in groups.items():
        sections = getattr(sampled_run.results.breakdowns, grouping)
        assert sections.keys() == members.keys()
        for name, rounds in members.items():
            outputs: dict[str, int] = defaultdict(int)  # prefills belong to no round
            for row in rounds:
                outputs[row["request_id"]] += row["num_emitted"]
            assert_equal(sections[name], naive(rounds, K, outputs))


def test_entropies_divergence_and_rank_are_those_of_the_dense_models(sampled_run: Run) -> None:
    """From the raw logits of both models on the tokens before each drafted one, by the definitions."""
    device = torch.device("cpu")
    draft, target = (
        load_pretrained(str(ASSETS / role), where=role, device=device, dtype="float32") for role in ("draft", "target")
    )
    texts = {
        row["request_id"]: row["prompt_token_ids"] + row["token_ids"] for row in generations_of(sampled_run.directory)
    }
    drafted = [row for row in rows_of(sampled_run) if row["proposal_len"] > 1][::17]
    assert len(drafted) > 3
    for row in drafted:
        tokens = texts[row["request_id"]][: row["context_len"]] + row["draft_token_ids"]
        with torch.inference_mode():
            q, p = (dense_logits(model, tokens).double().log_softmax(-1) for model in (draft, target))
        judged = len(row["expected_acceptance"])
        assert judged == min(row["num_accepted"] + 1, row["proposal_len"])
        for i in range(judged):
            at = row["context_len"] - 1 + i
            ours, theirs = q[at], p[at]
            assert row["draft_entropy"][i] == pytest.approx(float(-(ours.exp() * ours).sum()), abs=1e-4)
            assert row["target_entropy"][i] == pytest.approx(float(-(theirs.exp() * theirs).sum()), abs=1e-4)
            assert row["kl_target_draft"][i] == pytest.approx(float((theirs.exp() * (theirs - ours)).sum()), abs=1e-4)
            order = ours.argsort(descending=True).tolist()
            assert row["target_rank_in_draft"][i] == 1 + order.index(int(theirs.argmax()))
            overlap = torch.minimum(*((x[at] / 0.8).softmax(-1) for x in (q, p))).sum()
            assert row["expected_acceptance"][i] == pytest.approx(float(overlap), abs=1e-4)


def test_every_estimate_of_enough_requests_has_an_interval_around_it(sampled_run: Run) -> None:
    sections: list[Any] = [sampled_run.results.proposal, sampled_run.results.timing]
    estimates = [(name, value) for section in sections for name, value in section if isinstance(value, Estimate)]
    for name in ("acceptance_rate_per_position", "conditional_acceptance_per_position"):
        estimates += [(name, value) for value in getattr(sampled_run.results.proposal, name)]
    assert len(estimates) > 15
    for name, estimate in estimates:
        assert (estimate.ci95 is not None) == (estimate.n >= 8), name
        if estimate.ci95 is not None:
            low, high = estimate.ci95
            assert low <= (estimate.value or 0.0) * (1 + 1e-9), name
            assert high >= (estimate.value or 0.0) * (1 - 1e-9), name
    # Each step is split over its sequences, so their shares are the wall time.
    timing = sampled_run.results.timing
    assert timing is not None
    spent = sum(row["engine_s"] for row in rows_of(sampled_run, "requests"))
    shares = sum(output_tokens(sampled_run).values()) / spent
    assert timing.speculative_tokens_per_second.value == pytest.approx(shares, rel=0.05)


TAMPERED: list[tuple[str, Callable[[Any], Any], str]] = [
    ("num_accepted_tokens", lambda n: n + 1, "sum of j * accepted_length_histogram[j] = num_accepted_tokens"),
    ("num_draft_tokens", lambda n: n - 1, "sum over requests = pooled num_draft_tokens"),
    ("kl_target_draft_above", lambda x: x + 1e-3, "sum over requests = pooled kl_target_draft_above"),
    ("target_rank_in_draft", lambda bars: [bars[0] + 1, *bars[1:]], "sum over requests = pooled target_rank_in_draft"),
]


@pytest.mark.parametrize(("name", "tamper", "identity"), TAMPERED, ids=[row[0] for row in TAMPERED])
def test_a_count_that_was_tampered_with_fails_the_run(
    name: str, tamper: Any, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tampered(counts: ProposalCounts, **others: Any) -> None:
        setattr(counts, name, tamper(getattr(counts, name)))
        check_identities(counts, **others)

    monkeypatch.setattr("spec_harness.evaluation.module.check_identities", tampered)
    assert spec_eval("data.limit=3", "sampling.max_new_tokens=6", "baseline=off") == 1
    status = status_of(Path("run"))
    assert status["state"] == "failed"
    assert status["error"].startswith(f"IdentityError: identity broken: {identity}")
    assert not Path("run/results.json").exists()


def test_several_samples_of_a_prompt_are_one_request() -> None:
    samples = ("sampling=temperature", "sampling.n=3", "data.limit=2", "sampling.max_new_tokens=8", "baseline=off")
    assert spec_eval(*samples) == 0
    run = load_run("run")
    rows, section = rows_of(run, "requests"), run.results.proposal
    assert sorted((row["request_id"], row["sample"]) for row in rows) == sorted(
        (request_id, sample) for request_id in output_tokens(run) for sample in range(3)
    )
    assert (section.num_requests, section.num_prefill_tokens) == (2, 6)
    assert section.num_output_tokens == 6 + section.num_emitted_tokens == sum(row["output_tokens"] for row in rows)
    totals: dict[str, int] = defaultdict(int)
    for row in rows:
        totals[row["request_id"]] += row["output_tokens"]
    assert_equal(section, naive(rows_of(run), K, totals))
    assert section.acceptance_rate.n == 2
    assert section.acceptance_rate.ci95 is None


def test_proposals_longer_than_the_output_are_cut_to_it() -> None:
    """Three tokens: the prefill emits one, so a round may propose one, and none where one token is left."""
    assert spec_eval("proposal.max_proposal_len=8", "sampling.max_new_tokens=3", "data.limit=8", "baseline=off") == 0
    run = load_run("run")
    section = run.results.proposal
    for row in rows_of(run):
        left = 2 if row["round"] == 0 else 1  # the first round may have emitted one
        assert row["proposal_len"] == left - 1
        assert row["skip_reason"] == (None if left > 1 else "budget")
    rejected = section.num_drafts - section.num_accepted_tokens
    assert section.skipped["budget"] == rejected  # the recovered token left one token to go
    assert section.accepted_length_histogram == [rejected, section.num_accepted_tokens] + [0] * 7
    assert [rate.value for rate in section.acceptance_rate_per_position[1:]] == [None] * 7
    assert set(output_tokens(run).values()) == {3}
