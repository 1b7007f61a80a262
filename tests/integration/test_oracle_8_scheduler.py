"""Oracle 8: whatever is asked of a scheduler, in whatever pool, every request finishes with the output that it has in a
pool with room for all.

The engine is the real one, on models without weights (see ``stub_engine``): a stale or foreign KV slot is noticed where
it is read. After every step the block manager is checked and all that nobody owns is overwritten with NaN.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_harness.kv_cache.block_manager import BlockManager, blocks_for
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.spec_decode.records import RequestRecord
from spec_harness.spec_decode.running import Request
from spec_harness.spec_decode.scheduler import Scheduler
from spec_harness.worker.worker import Worker
from tests.helpers import assert_nothing_left, drawn, poison_unowned_blocks, request
from tests.stub_engine import VOCAB, Setup, greedy, stub_engine

STOP = frozenset([2])


@dataclass(frozen=True)
class Asked:
    """What becomes a request, once hypothesis is done."""

    arrival: int  # step from which on it waits
    prompt: list[int]
    num_samples: int
    sampling: dict[str, Any]

    def request(self, index: int) -> Request:
        return request(index, self.prompt, num_samples=self.num_samples, **self.sampling)

    def slots(self, setup: Setup) -> int:
        return min(len(self.prompt) + int(self.sampling["max_new_tokens"]), setup.target_max) - 1


Scenario = tuple[Setup, list[Asked]]


@st.composite
def scenarios(draw: Callable[..., Any]) -> Scenario:
    setup = Setup(
        k=draw(st.integers(0, 4)),
        batch=draw(st.integers(1, 5)),
        block_size=draw(st.integers(1, 5)),
        preemption=draw(st.sampled_from(["swap", "recompute"])),
        num_host_blocks=draw(st.integers(0, 12)),
        proposer=draw(st.sampled_from(["draft", "draft", "draft", "ngram", "none"])),
        draft_max=draw(st.integers(4, 30)),
        target_max=draw(st.integers(14, 30)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        min_draft_prob=draw(st.sampled_from([0.0, 0.4])),
    )
    asked = [
        Asked(
            arrival=draw(st.integers(0, 8)),
            prompt=draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)),
            num_samples=draw(st.integers(1, min(3, setup.batch))),
            sampling={
                "max_new_tokens": draw(st.integers(1, 14)),
                "max_proposal_len": draw(st.sampled_from([None, None, 0, 1, 2])),
                "stop_token_ids": draw(st.sampled_from([frozenset(), frozenset(), STOP])),
            },
        )
        for _ in range(draw(st.integers(1, 7)))
    ]
    largest = blocks_for(max(a.slots(setup) for a in asked), setup.block_size)
    return replace(setup, num_blocks=largest + draw(st.integers(0, 6))), sorted(asked, key=lambda a: a.arrival)


@torch.inference_mode()
def play(engine: Scheduler, arrivals: Sequence[tuple[int, Request]]) -> dict[tuple[str, int], RequestRecord]:
    """All records; after every step nothing may be wrong with the blocks."""
    waiting, finished, step = list(arrivals), {}, 0
    while waiting or engine.num_unfinished:
        while waiting and waiting[0][0] <= step:
            engine.add(waiting.pop(0)[1])
        poison_unowned_blocks(engine)
        oldest = engine.running[0] if engine.running else None
        before = 0 if oldest is None else len(oldest.data)
        for record in engine.step():
            finished[record.request_id, record.sample] = record
        engine.blocks.check_integrity()
        assert oldest is None or len(oldest.data) > before  # whoever is oldest goes on, so everyone's turn comes
        assert engine.num_running <= engine._max_num_seqs
        assert engine.num_running or not engine.num_unfinished or not engine.num_waiting or step < 1000
        assert step < 1000
        step += 1
    return finished


def check(scenario: Scenario) -> Scheduler:
    """Raises ``AssertionError`` if the small pool shows. Returns its engine."""
    setup, asked = scenario
    requests = [a.request(index) for index, a in enumerate(asked)]
    engine = stub_engine(setup)
    records = play(engine, [(a.arrival, r) for a, r in zip(asked, requests, strict=True)])
    assert_nothing_left(engine)
    expected = play(
        stub_engine(replace(setup, num_blocks=400, num_host_blocks=0, batch=30)), [(0, r) for r in requests]
    )
    assert set(records) == {(r.request_id, sample) for r in requests for sample in range(r.num_samples)}
    assert {key: drawn(r) for key, r in records.items()} == {key: drawn(r) for key, r in expected.items()}
    assert sum(r.preemptions for r in records.values()) == engine.stats.preemptions >= engine.stats.swaps
    assert engine.stats.rows_run == sum(len(r.rounds) for r in records.values())
    if setup.temperature == 0:
        for r in requests:
            output = greedy(
                r.prompt_token_ids,
                max_new_tokens=r.sampling.max_new_tokens,
                max_model_len=setup.target_max,
                stop=r.sampling.stop_token_ids,
            )
            assert all(records[r.request_id, sample].token_ids == output for sample in range(r.num_samples))
    return engine


SEEN: Counter[str] = Counter()


@given(scenarios())
@settings(max_examples=60)
def test_a_small_pool_changes_no_output(scenario: Scenario) -> None:
    check(scenario)


@pytest.mark.slow
@given(scenarios())
@settings(max_examples=1000)
def test_a_small_pool_changes_no_output_in_many_scenarios(scenario: Scenario) -> None:
    check(scenario)
