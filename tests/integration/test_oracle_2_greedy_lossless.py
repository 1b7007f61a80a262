"""Oracle 2: greedy speculative output equals transformers' own generation, token for token.

Equality can hold only where the target's decision is no numerical tie, so each fixture's margins are asserted first.
"""

import copy
from collections.abc import Sequence
from typing import Any

import pytest

from spec_harness.models.load import LoadedModel
from spec_harness.requests import RequestRecord
from tests.helpers import (
    acceptance_rate,
    generate,
    noisy_copy,
    pool_for,
    prompts,
    request,
    run,
    scheduler,
    smallest_margin,
    tiny_loaded,
)

NEW_TOKENS = 40
PROMPTS = prompts(6)


def preempted(test: Any) -> Any:
    """Under both policies."""
    return pytest.mark.parametrize("preemption", ["recompute", "swap"])(test)


@pytest.fixture(scope="module")
def references(target: LoadedModel) -> list[list[int]]:
    outputs = [generate(target, prompt, max_new_tokens=NEW_TOKENS) for prompt in PROMPTS]
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert len(output) == NEW_TOKENS
        assert smallest_margin(target, prompt, output) > target.check.tie_tolerance
    return outputs


@pytest.fixture(scope="module")
def short_draft(target: LoadedModel) -> LoadedModel:
    """A draft with 32 positions, while prompt and output reach 63 tokens."""
    return noisy_copy(target, scale=0.02, max_model_len=32)


def speculate(
    target: LoadedModel,
    draft: LoadedModel | None,
    eos: Sequence[int | None] = (None,) * len(PROMPTS),
    *,
    k: int,
    batch: int,
    block_size: int,
    preemption: str | None = None,
) -> list[RequestRecord]:
    """With ``preemption`` the pool holds 1.5 sequences only."""
    requests = [
        request(i, prompt, max_new_tokens=NEW_TOKENS, stop_token_ids=frozenset() if end is None else frozenset([end]))
        for i, (prompt, end) in enumerate(zip(PROMPTS, eos, strict=True))
    ]
    pool: dict[str, Any] = {}
    if preemption is not None:
        num_blocks = pool_for(1.5, requests, block_size=block_size)
        pool = {"num_blocks": num_blocks, "num_host_blocks": 400, "preemption": preemption}
    engine = scheduler(target, draft, k=k, batch=batch, block_size=block_size, **pool)
    records = run(engine, requests)
    assert sum(r.preemptions for r in records.values()) == engine.stats.preemptions
    assert engine.stats.swaps == (engine.stats.preemptions if preemption == "swap" else 0)
    assert (engine.stats.preemptions > 0) == (preemption is not None and batch > 1)
    return [records[r.request_id] for r in requests]


def outputs_of(records: Sequence[RequestRecord]) -> list[list[int]]:
    return [record.token_ids for record in records]


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_greedy_output_equals_dense_generation(
    target: LoadedModel, draft: LoadedModel, references: list[list[int]], k: int, batch: int, block_size: int
) -> None:
    records = speculate(target, draft, k=k, batch=batch, block_size=block_size)
    assert 0.1 < acceptance_rate(records) < 0.95
    assert outputs_of(records) == references
    assert {record.stop_reason for record in records} == {"length"}


@preempted
@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_greedy_output_equals_dense_generation_though_sequences_are_preempted(
    target: LoadedModel, draft: LoadedModel, references: list[list[int]], k: int, block_size: int, preemption: str
) -> None:
    records = speculate(target, draft, k=k, batch=4, block_size=block_size, preemption=preemption)
    assert 0.1 < acceptance_rate(records) < 0.95
    assert outputs_of(records) == references


@preempted
def test_the_baseline_equals_dense_generation_though_sequences_are_preempted(
    target: LoadedModel, references: list[list[int]], preemption: str
) -> None:
    records = speculate(target, None, k=4, batch=4, block_size=8, preemption=preemption)
    assert outputs_of(records) == references


@pytest.mark.parametrize("batch", [1, 4])
def test_the_baseline_equals_dense_generation(target: LoadedModel, references: list[list[int]], batch: int) -> None:
    records = speculate(target, None, k=4, batch=batch, block_size=8)
    assert outputs_of(records) == references
    assert all(r.proposal_len == 0 and r.skip_reason == "cap" for record in records for r in record.rounds)


def ends_midway(references: list[list[int]]) -> list[int]:
    """For each reference a token that first appears about its middle: generation must stop there."""
    ends = []
    for output in references:
        fresh = [i for i in range(NEW_TOKENS // 3, NEW_TOKENS - 5) if output[i] not in output[:i]]
        ends.append(output[fresh[0]])
    return ends


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_greedy_output_ends_where_dense_generation_ends(
    target: LoadedModel, draft: LoadedModel, references: list[list[int]], k: int, batch: int, block_size: int
) -> None:
    ends = ends_midway(references)
    expected = [
        generate(target, prompt, max_new_tokens=NEW_TOKENS, eos_token_ids=[end])
        for prompt, end in zip(PROMPTS, ends, strict=True)
    ]
    assert all(len(output) < NEW_TOKENS for output in expected)
    records = speculate(target, draft, ends, k=k, batch=batch, block_size=block_size)
    assert outputs_of(records) == expected
    assert {record.stop_reason for record in records} == {"eos"}


@preempted
@pytest.mark.parametrize("block_size", [1, 8])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_greedy_output_ends_where_dense_generation_ends_though_sequences_are_preempted(
    target: LoadedModel, draft: LoadedModel, references: list[list[int]], k: int, block_size: int, preemption: str
) -> None:
    ends = ends_midway(references)
    records = speculate(target, draft, ends, k=k, batch=6, block_size=block_size, preemption=preemption)
    assert outputs_of(records) == [
        output[: output.index(end) + 1] for output, end in zip(references, ends, strict=True)
    ]
    assert {record.stop_reason for record in records} == {"eos"}


@preempted
def test_a_draft_of_32_positions_and_preemption_change_nothing(
    target: LoadedModel, short_draft: LoadedModel, references: list[list[int]], preemption: str
) -> None:
    records = speculate(target, short_draft, k=4, batch=4, block_size=8, preemption=preemption)
    assert outputs_of(records) == references
    assert any(r.skip_reason == "draft_max" for record in records for r in record.rounds)


@pytest.mark.parametrize("k", [2, 8])
def test_an_end_of_sequence_accepted_inside_a_proposal_cuts_it(
    target: LoadedModel, references: list[list[int]], k: int
) -> None:
    """Draft and target are equal, so all is accepted and most ends fall inside a proposal, with tokens behind them."""
    ends = ends_midway(references)
    records = speculate(target, target, ends, k=k, batch=4, block_size=8)
    for record, output, end in zip(records, references, ends, strict=True):
        assert record.token_ids == output[: output.index(end) + 1]
        last = record.rounds[-1]
        if last.ended_by_accepted_eos:
            assert last.proposal_len == last.num_accepted == last.num_emitted
            assert last.draft_token_ids == last.output_token_ids
    lasts = [record.rounds[-1] for record in records]
    assert any(r.ended_by_accepted_eos and r.num_draft_tokens_past_end > 0 for r in lasts)
    assert all(r.num_draft_tokens_past_end <= k - r.proposal_len for r in lasts)


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_draft_of_32_positions_stops_proposing_and_nothing_else_changes(
    target: LoadedModel, short_draft: LoadedModel, references: list[list[int]], k: int, batch: int, block_size: int
) -> None:
    records = speculate(target, short_draft, k=k, batch=batch, block_size=block_size)
    assert outputs_of(records) == references
    assert 0.1 < acceptance_rate(records) < 0.95
    rounds = [r for record in records for r in record.rounds]
    # The draft is fed positions up to context_len + proposal_len - 2.
    assert max(r.context_len + r.proposal_len - 2 for r in rounds if r.proposal_len) == 31
    assert {r.skip_reason for r in rounds if r.context_len > 32} <= {"draft_max", "budget"}
    assert any(r.skip_reason == "draft_max" for r in rounds)


def test_the_targets_maximum_ends_a_request_by_length(target: LoadedModel, draft: LoadedModel) -> None:
    short = copy.copy(target)
    object.__setattr__(short, "max_model_len", 40)
    for k in (1, 4, 8):
        records = speculate(short, draft, k=k, batch=4, block_size=8)
        for record, prompt in zip(records, PROMPTS, strict=True):
            room = 40 - len(prompt)
            expected = generate(target, prompt, max_new_tokens=min(NEW_TOKENS, room))
            assert record.token_ids == expected
            assert record.stop_reason == "length"


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "gpt2"])
def test_greedy_output_of_other_architectures_equals_dense_generation(model_type: str) -> None:
    """With a window of 8 tokens, which prompts and outputs pass by far."""
    window = {} if model_type == "gpt2" else {"sliding_window": 8}
    target = tiny_loaded(model_type, **window)
    draft = noisy_copy(target, scale=0.02)
    records = speculate(target, draft, k=4, batch=4, block_size=8)
    for record, prompt in zip(records, PROMPTS, strict=True):
        expected = generate(target, prompt, max_new_tokens=NEW_TOKENS)
        assert smallest_margin(target, prompt, expected) > target.check.tie_tolerance
        assert record.token_ids == expected
