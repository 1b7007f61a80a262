"""Whole runs on the packaged pair: every file, and every figure recomputed from the rounds."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spec_harness.data.prompts import BUILTIN_PROMPTS, read_jsonl
from spec_harness.report.load import Run, load_run
from spec_harness.results.columns import REQUESTS_SCHEMA, ROUNDS_SCHEMA
from spec_harness.results.figures import plain_numbers
from spec_harness.results.run_files import GENERATION_KEYS
from tests.inspection import shapes_unchecked
from tests.run_helpers import generations_of, outputs_of, rows_of, spec_eval, status_of, working_directory

SMALL = ("data.limit=8", "sampling.max_new_tokens=24")
K = 4

pytestmark = pytest.mark.usefixtures("clean_process")


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("default")
    with working_directory(folder), shapes_unchecked():
        assert spec_eval(*SMALL, "integrity=quick") == 0
    return load_run(folder / "run")  # validates results.json


def test_a_run_leaves_whole_files(default_run: Run) -> None:
    names = {path.name for path in default_run.directory.iterdir()}
    files = {"results.json", "rounds.parquet", "requests.parquet", "generations.jsonl", "status.json"}
    assert names >= files | {".hydra", "spec-eval.log"}
    assert not [name for name in names if name.endswith(".tmp")]
    assert pq.read_schema(default_run.directory / "rounds.parquet").equals(ROUNDS_SCHEMA)
    assert pq.read_schema(default_run.directory / "requests.parquet").equals(REQUESTS_SCHEMA)
    assert {tuple(row) for row in generations_of(default_run.directory)} == {GENERATION_KEYS}


def test_the_status_of_a_finished_run(default_run: Run) -> None:
    status = status_of(default_run.directory)
    assert (status["state"], status["error"]) == ("done", None)
    assert (status["requests_done"], status["requests_total"]) == (8, 8)
    assert default_run.results.status == "done"


def test_every_prompt_of_the_data_set_was_run_once_and_completed_as_it_is(default_run: Run) -> None:
    rows = read_jsonl(BUILTIN_PROMPTS)[:8]
    generations = generations_of(default_run.directory)
    assert {row["request_id"]: (row["prompt"], row["category"]) for row in generations} == {
        row.id: (row.prompt, row.category) for row in rows
    }
    assert len(generations) == 8
    assert all(0 < len(row["token_ids"]) <= 24 for row in generations)


def test_pooled_counts_and_rates_are_those_of_a_naive_loop_over_the_rounds(default_run: Run) -> None:
    rounds, p = rows_of(default_run), default_run.results.proposal
    drafts = [row for row in rounds if row["proposal_len"] > 0]
    proposed, accepted, aligned, emitted = (
        sum(row[name] for row in rounds) for name in ("proposal_len", "num_accepted", "num_aligned", "num_emitted")
    )
    assert 0 < accepted < proposed
    assert (p.num_rounds, p.num_drafts, p.num_prefill_tokens) == (len(rounds), len(drafts), 8)
    assert (p.num_draft_tokens, p.num_accepted_tokens) == (proposed, accepted)
    assert (p.num_aligned_tokens, p.num_emitted_tokens, p.num_output_tokens) == (aligned, emitted, emitted + 8)
    histogram = Counter(row["num_accepted"] for row in drafts)
    assert p.accepted_length_histogram == [histogram[j] for j in range(K + 1)]
    skipped = Counter(row["skip_reason"] for row in rounds if row["proposal_len"] == 0)
    assert {reason: count for reason, count in p.skipped.items() if count} == dict(skipped)
    judged = [overlap for row in rounds for overlap in row["expected_acceptance"]]
    for estimate, value in (
        (p.coverage, len(drafts) / len(rounds)),
        (p.acceptance_rate, accepted / proposed),
        (p.mean_acceptance_length, 1 + accepted / len(drafts)),
        (p.tokens_per_target_pass, emitted / len(rounds)),
        (p.aligned_rate, aligned / proposed),
        (p.system_efficiency, emitted / (proposed + len(rounds))),
        (p.expected_acceptance_rate, sum(judged) / len(judged)),
    ):
        assert estimate.value == pytest.approx(value, rel=1e-12)
    for i in range(K):
        beyond = sum(row["num_accepted"] > i for row in drafts)
        longer = [row for row in drafts if row["proposal_len"] > i]
        reached = sum(row["num_accepted"] >= i for row in longer)
        assert p.acceptance_rate_per_position[i].value == pytest.approx(beyond / len(longer))
        assert p.acceptance_rate_per_position_unconditional[i].value == pytest.approx(beyond / len(drafts))
        assert p.conditional_acceptance_per_position[i].value == pytest.approx(beyond / reached if reached else None)


def test_each_round_s_own_figures_agree(default_run: Run) -> None:
    for row in rows_of(default_run):
        proposed, accepted = row["proposal_len"], row["num_accepted"]
        assert 0 <= accepted <= row["num_aligned"] <= proposed <= K
        assert (row["skip_reason"] is None) == (proposed > 0)
        assert len(row["draft_token_ids"]) == len(row["draft_probs"]) == len(row["target_probs"]) == proposed
        assert len(row["expected_acceptance"]) == min(accepted + 1, proposed)
        assert len(row["output_token_ids"]) == row["num_emitted"]
        assert row["output_token_ids"][:accepted] == row["draft_token_ids"][:accepted]
        assert set(row["draft_probs"]) <= {1.0}  # greedy


def test_rounds_requests_and_generations_tell_the_same_tokens(default_run: Run) -> None:
    generations = {row["request_id"]: row for row in generations_of(default_run.directory)}
    requests = {row["request_id"]: row for row in rows_of(default_run, "requests")}
    assert generations.keys() == requests.keys()
    for request_id, row in generations.items():
        rounds = [r for r in rows_of(default_run) if r["request_id"] == request_id]
        assert [r["round"] for r in rounds] == list(range(len(rounds)))
        context = len(row["prompt_token_ids"]) + 1
        for r in rounds:
            assert r["context_len"] == context
            context += r["num_emitted"]
        assert row["token_ids"][1:] == [token for r in rounds for token in r["output_token_ids"]]
        request = requests[request_id]
        assert (request["prompt_tokens"], request["output_tokens"]) == (
            len(row["prompt_token_ids"]),
            len(row["token_ids"]),
        )
        assert (request["rounds"], request["stop_reason"]) == (len(rounds), row["stop_reason"])
        drafted, accepted = (sum(r[name] for r in rounds) for name in ("proposal_len", "num_accepted"))
        assert (request["draft_tokens"], request["accepted_tokens"]) == (drafted, accepted)
        assert request["acceptance_rate"] == pytest.approx(accepted / drafted if drafted else None)
        assert request["baseline_verdict"] in ("equal", "tie")
    total = default_run.results.proposal.num_output_tokens
    assert sum(len(row["token_ids"]) for row in generations.values()) == total


def test_timing_kv_and_integrity_of_a_run(default_run: Run) -> None:
    results = default_run.results
    timing, kv = results.timing, results.kv
    assert timing is not None
    assert kv is not None
    speculative, baseline = timing.speculative_tokens_per_second.value, timing.baseline_tokens_per_second.value
    assert speculative is not None
    assert baseline is not None
    assert timing.speedup.value == pytest.approx(speculative / baseline)
    assert timing.time_share is not None
    assert sum(timing.time_share.model_dump().values()) == pytest.approx(1.0)
    assert kv.blocks_allocated_peak is not None
    assert 0 < kv.blocks_allocated_peak <= kv.num_blocks
    assert kv.utilization is not None
    assert 0 < kv.utilization <= 1
    assert {check.verdict for check in results.integrity.checks} == {"pass"}
    assert [check.name for check in results.integrity.checks[:2]] == [
        "target: paged against dense logits",
        "draft: paged against dense logits",
    ]
    equality = results.integrity.baseline_equality
    assert equality is not None
    assert (equality.equal + equality.tie, equality.fault) == (8, 0)


def test_breakdowns_by_category_add_up(default_run: Run) -> None:
    sections = default_run.results.breakdowns.category
    assert set(sections) == {row["category"] for row in generations_of(default_run.directory)}
    assert sum(s.num_requests for s in sections.values()) == 8
    for name in ("num_rounds", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens"):
        total = sum(getattr(section, name) for section in sections.values())
        assert total == getattr(default_run.results.proposal, name)


def test_the_configuration_is_in_the_results(default_run: Run) -> None:
    config: dict[str, Any] = default_run.results.config
    assert (config["data"]["limit"], config["sampling"]["max_new_tokens"]) == (8, 24)
    assert default_run.results.provenance.seeds == {"seed": 0, "sampling.seed": 0}


def test_without_a_proposer_it_is_plain_decoding(default_run: Run) -> None:
    assert spec_eval("proposal=none", *SMALL) == 0
    run = load_run("run")
    p, timing = run.results.proposal, run.results.timing
    assert outputs_of(Path("run")) == outputs_of(default_run.directory)
    assert (p.num_drafts, p.num_draft_tokens, p.num_rounds) == (0, 0, p.num_output_tokens - 8)
    assert p.coverage.value == 0.0
    assert p.tokens_per_target_pass.value == 1.0
    for estimate in (p.acceptance_rate, p.mean_acceptance_length, p.aligned_rate, p.expected_acceptance_rate):
        assert (estimate.value, estimate.ci95, estimate.n) == (None, None, 0)
    assert timing is not None
    assert timing.baseline_tokens_per_second.value is not None
    assert (timing.speculative_tokens_per_second.value, timing.speedup.value) == (None, None)
    assert run.results.provenance.draft is None
    assert run.results.integrity.baseline_equality is None
    assert {row["acceptance_rate"] for row in rows_of(run, "requests")} == {None}


def test_without_a_baseline_nothing_is_compared(default_run: Run) -> None:
    assert spec_eval("baseline=off", *SMALL) == 0
    run = load_run("run")
    timing = run.results.timing
    assert timing is not None
    assert timing.speculative_tokens_per_second.value is not None
    assert (timing.baseline_tokens_per_second.value, timing.speedup.value) == (None, None)
    assert run.results.integrity.baseline_equality is None
    assert {row["baseline_verdict"] for row in rows_of(run, "requests")} == {None}
    assert_same_statistics(run, default_run)


def test_proposals_of_no_tokens_are_skipped_by_the_cap(default_run: Run) -> None:
    assert spec_eval("proposal.max_proposal_len=0", "baseline=off", *SMALL) == 0
    p = load_run("run").results.proposal
    assert outputs_of(Path("run")) == outputs_of(default_run.directory)
    assert p.skipped["cap"] == p.num_rounds > 0
    assert p.acceptance_rate.value is None


def sampled(*overrides: str, run_dir: str) -> dict[tuple[str, int], list[int]]:
    small = ("data.limit=4", "sampling.max_new_tokens=10", "baseline=off")
    assert spec_eval("sampling=temperature", *small, *overrides, run_dir=run_dir) == 0
    return outputs_of(Path(run_dir))


def test_sampled_tokens_depend_on_the_seed_alone() -> None:
    first = sampled(run_dir="first")
    assert sampled(run_dir="again") == first
    assert sampled("max_num_seqs=3", "kv_cache.block_size=5", run_dir="batch") == first
    other = sampled("seed=1", run_dir="other")
    assert other.keys() == first.keys()
    assert sum(other[key] != first[key] for key in first) >= len(first) / 2


def test_sampled_outputs_are_not_compared_with_the_baseline_s() -> None:
    assert spec_eval("sampling=temperature", "data.limit=3", "sampling.max_new_tokens=8") == 0
    run = load_run("run")
    assert run.results.integrity.baseline_equality is None
    assert run.results.timing is not None
    assert run.results.timing.speedup.value is not None


def assert_same_statistics(ours: Run, theirs: Run) -> None:
    """Logits differ by rounding from batch to batch, and sums of floats by the order in which requests finish."""
    numbers = [
        {key: value for key, value in plain_numbers(run.results).items() if key.startswith("proposal/")}
        for run in (ours, theirs)
    ]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-6)
    intervals = [run.results.proposal.acceptance_rate.ci95 for run in (ours, theirs)]
    assert intervals[0] is not None
    assert intervals[0] == pytest.approx(intervals[1], rel=1e-12)


@pytest.mark.parametrize(
    "overrides",
    [["kv_cache.block_size=1"], ["kv_cache.block_size=64"], ["kv_cache=small_pool"], ["max_num_seqs=1"]],
    ids=lambda overrides: overrides[0],
)
def test_settings_of_the_engine_change_no_output(overrides: list[str], default_run: Run) -> None:
    assert spec_eval("baseline=off", *SMALL, *overrides) == 0
    assert outputs_of(Path("run")) == outputs_of(default_run.directory)
    assert_same_statistics(load_run("run"), default_run)


def test_a_run_logs_to_the_terminal_nothing_but_its_summary(capfd: pytest.CaptureFixture[str]) -> None:
    assert spec_eval("data.limit=2", "sampling.max_new_tokens=4") == 0
    output = capfd.readouterr()
    assert output.err == ""
    assert output.out.startswith("spec_harness")
    assert output.out.rstrip().endswith(f"Files: {Path('run').absolute()}")
