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

from spec_harness.engine.native import NativeEngine
from spec_harness.kv_cache.block_manager import BlockManager, blocks_for
from spec_harness.kv_cache.cache_ops import BlockPair, CacheOps
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import Request, RequestRecord
from spec_harness.worker.worker import Worker
from tests.helpers import request, sampled_as
from tests.inspection import assert_nothing_left, drawn, poison_unowned_blocks
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
        batch=draw(st.sampled_from([1, 3, 4, 6])),
        block_size=draw(st.sampled_from([1, 1, 2, 3, 5])),
        preemption=draw(st.sampled_from(["swap", "recompute"])),
        num_host_blocks=draw(st.sampled_from([0, 6, 40, 40])),
        proposer=draw(st.sampled_from(["draft", "draft", "draft", "ngram", "none"])),
        draft_max=draw(st.integers(4, 30)),
        target_max=draw(st.integers(20, 30)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        min_draft_prob=draw(st.sampled_from([0.0, 0.4])),
    )
    asked = [
        Asked(
            arrival=draw(st.integers(0, 4)),
            prompt=draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)),
            num_samples=draw(st.sampled_from([1, 1, min(2, setup.batch), min(3, setup.batch)])),
            sampling={
                "max_new_tokens": draw(st.sampled_from([1, 5, 12, 18, 18])),
                "max_proposal_len": draw(st.sampled_from([None, None, 0, 1, 2])),
                "stop_token_ids": draw(st.sampled_from([frozenset(), frozenset(), STOP])),
            },
        )
        for _ in range(draw(st.sampled_from([1, 4, 6])))
    ]
    largest = blocks_for(max(a.slots(setup) for a in asked), setup.block_size)
    spare = draw(st.sampled_from([0, 1, largest // 2, largest]))
    return replace(setup, num_blocks=largest + spare), sorted(asked, key=lambda a: a.arrival)


@torch.inference_mode()
def play(engine: NativeEngine, arrivals: Sequence[tuple[int, Request]]) -> dict[tuple[str, int], RequestRecord]:
    """All records; after every step nothing may be wrong with the blocks."""
    waiting, finished, step = list(arrivals), {}, 0
    while waiting or engine.num_unfinished:
        while waiting and waiting[0][0] <= step:
            engine.add(sampled_as(engine, waiting.pop(0)[1]))
        poison_unowned_blocks(engine)
        oldest = engine.running[0] if engine.running else None
        before = 0 if oldest is None else len(oldest.data)
        records = engine.step()
        finished |= {(record.request_id, record.sample): record for record in records}
        engine.scheduler.blocks.check_integrity()
        # Whoever is oldest goes on, so everyone's turn comes; but what a prefill has finished is handed out first.
        assert oldest is None or len(oldest.data) > before or any(not record.rounds for record in records)
        assert len(engine.running) <= engine.scheduler._max_num_seqs
        step += 1
        assert step < 1000
    return finished


def check(scenario: Scenario) -> NativeEngine:
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
    assert engine.stats.tokens_held <= engine.stats.slots_held
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


def check_many(count: int) -> Counter[str]:
    """How many of ``count`` random scenarios had what makes them interesting."""
    seen: Counter[str] = Counter()

    @given(scenarios())
    @settings(max_examples=count)
    def one(scenario: Scenario) -> None:
        engine, setup = check(scenario), scenario[0]
        fallen_back = setup.preemption == "swap" and engine.stats.swaps < engine.stats.preemptions
        seen["scenarios"] += 1
        seen["preempted"] += engine.stats.preemptions > 0
        seen["swapped"] += engine.stats.swaps > 0
        seen["the host full"] += fallen_back
        seen["forked"] += any(a.num_samples > 1 for a in scenario[1])
        seen["sampled"] += setup.temperature > 0

    one()
    return seen


def test_a_small_pool_changes_no_output() -> None:
    seen = check_many(60)
    assert seen["scenarios"] >= 60
    assert min(seen.values()) >= 5


@pytest.mark.slow
def test_a_small_pool_changes_no_output_in_many_scenarios() -> None:
    assert check_many(600)["scenarios"] >= 600


def copies_omitted(patch: pytest.MonkeyPatch) -> None:
    """A shared block is replaced before it is written, but not copied."""
    grow = BlockManager.grow
    patch.setattr(BlockManager, "grow", lambda *args, **options: grow(*args, **options)[:0])


def written_while_shared(patch: pytest.MonkeyPatch) -> None:
    grow = BlockManager.grow
    patch.setattr(BlockManager, "grow", lambda self, seq_id, num_slots, write_from=None: grow(self, seq_id, num_slots))


def moved_only_in_the_target(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MultiStepWorker, "apply", lambda self, ops: None)


def swapped_out_first(patch: pytest.MonkeyPatch) -> None:
    def apply(self: KVCache, ops: CacheOps) -> None:
        for part in (CacheOps(swap_out=ops.swap_out), CacheOps(swap_in=ops.swap_in), CacheOps(copy=ops.copy)):
            in_order(self, part)

    in_order = KVCache.apply
    patch.setattr(KVCache, "apply", apply)


def forgotten_by_nobody(patch: pytest.MonkeyPatch) -> None:
    """A sequence whose blocks were taken counts as computed for ever."""
    patch.setattr(Worker, "forget", lambda self, seq_id: None)


def host_blocks_leaked(patch: pytest.MonkeyPatch) -> None:
    def swap_in(self: BlockManager, seq_id: int) -> list[BlockPair]:
        pairs = whole(self, seq_id)
        self._host_free.pop()
        return pairs

    whole = BlockManager.swap_in
    patch.setattr(BlockManager, "swap_in", swap_in)


def shortened_for_lack_of_blocks(patch: pytest.MonkeyPatch) -> None:
    """What must not be: a proposal that depends on how full the pool is."""

    def plan(self: NativeEngine) -> Any:
        lengths = self.lengths
        if not self.scheduler.blocks.num_free:
            self.lengths = replace(lengths, max_proposal_len=1)
        try:
            return whole(self)
        finally:
            self.lengths = lengths

    whole = NativeEngine._plan
    patch.setattr(NativeEngine, "_plan", plan)


def crowd(seed: int) -> Scenario:
    """Many short requests in little room: hypothesis prefers small examples, and faults of swapping need a throng."""
    random = Random(seed)
    count = random.randint(3, 7)
    asked = [
        Asked(
            arrival=random.choice([0, 0, 3]),
            prompt=[random.randrange(VOCAB) for _ in range(random.randint(1, 6))],
            num_samples=random.choice([1, 1, 2, 3]),
            sampling={"max_new_tokens": random.randint(8, 20)},
        )
        for _ in range(count)
    ]
    setup = Setup(
        batch=random.randint(3, 8),
        block_size=random.choice([1, 2]),
        num_blocks=random.randint(26, 45),
        num_host_blocks=random.choice([20, 80]),
        preemption=random.choice(["swap", "swap", "recompute"]),
        temperature=random.choice([0.0, 1.0]),
    )
    return setup, sorted(asked, key=lambda a: a.arrival)


def check_crowds() -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(40):
        engine = check(crowd(seed))
        seen["preempted"] += engine.stats.preemptions > 1
        seen["swapped"] += engine.stats.swaps > 1
    return seen


def test_a_crowd_changes_no_output() -> None:
    assert min(check_crowds().values()) >= 5


@pytest.mark.parametrize(
    "fault",
    [
        copies_omitted,
        written_while_shared,
        moved_only_in_the_target,
        swapped_out_first,
        forgotten_by_nobody,
        host_blocks_leaked,
        shortened_for_lack_of_blocks,
    ],
)
def test_a_crowd_notices_a_planted_fault(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_crowds()
