"""Sequences that give their blocks back and come back: what it costs is time, and it is counted."""

from dataclasses import replace
from random import Random

import pytest
import torch

from spec_harness.engine.native import NativeEngine
from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.load import LoadedModel
from spec_harness.requests import Request
from tests.helpers import pool_for, prompts, request, run, run_samples, scheduler
from tests.inspection import drawn, poison_unowned_blocks
from tests.stub_engine import VOCAB, Setup, StaleKVError, stub_engine

SIZE = 4
PROMPTS = prompts(6, seed=4)
REQUESTS = [request(i, prompt, max_new_tokens=24) for i, prompt in enumerate(PROMPTS)]
LITTLE_ROOM = {"batch": 4, "block_size": SIZE, "num_blocks": pool_for(1.5, REQUESTS, block_size=SIZE)}


@pytest.mark.parametrize("num_host_blocks", [0, 6, 10])
def test_with_too_small_a_host_pool_the_rest_is_recomputed(
    target: LoadedModel, draft: LoadedModel, num_host_blocks: int
) -> None:
    expected = {i: drawn(r) for i, r in run(scheduler(target, draft, batch=6), REQUESTS).items()}
    pool = {"batch": 6, "block_size": SIZE, "num_blocks": pool_for(2.5, REQUESTS, block_size=SIZE)}
    engine = scheduler(target, draft, **pool, preemption="swap", num_host_blocks=num_host_blocks)
    records = run(engine, REQUESTS)
    assert {i: drawn(r) for i, r in records.items()} == expected
    assert engine.stats.preemptions > engine.stats.swaps
    assert (engine.stats.swaps > 0) == (num_host_blocks == 10)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_output_depends_on_what_nobody_owns(
    target: LoadedModel, draft: LoadedModel, preemption: str, temperature: float
) -> None:
    """Block 0 and every free block of both caches hold NaN before every step."""
    options = {**LITTLE_ROOM, "preemption": preemption, "num_host_blocks": 20, "temperature": temperature}
    clean = scheduler(target, draft, **options)
    expected = {i: drawn(r) for i, r in run(clean, REQUESTS).items()}
    poisoned = scheduler(target, draft, **options)
    records = run(poisoned, REQUESTS, before_step=poison_unowned_blocks)
    assert {i: drawn(r) for i, r in records.items()} == expected
    assert poisoned.stats == clean.stats
    assert poisoned.stats.preemptions > 0
    cache = poisoned.worker.target.runner.cache
    assert torch.isnan(cache.keys[0][: cache.block_size]).all()  # the poison was there


def test_poisoned_samples_share_a_prompt(target: LoadedModel, draft: LoadedModel) -> None:
    requests = [replace(r, num_samples=3) for r in REQUESTS[:3]]
    options = {"batch": 6, "block_size": SIZE, "num_blocks": 20, "temperature": 0.8}
    expected = run_samples(scheduler(target, draft, **options), requests)
    poisoned = scheduler(target, draft, **options)
    records = run_samples(poisoned, requests, before_step=poison_unowned_blocks)
    assert {key: drawn(r) for key, r in records.items()} == {key: drawn(r) for key, r in expected.items()}
    assert poisoned.stats.preemptions > 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_newest_is_preempted_and_comes_back_before_anyone_new(
    target: LoadedModel, draft: LoadedModel, preemption: str
) -> None:
    came_back: set[int] = set()

    def look(engine: NativeEngine) -> None:
        running = [seq.seq_id for seq in engine.running]
        preempted = list(engine.scheduler._preempted)
        assert running == sorted(running)
        assert preempted == sorted(preempted)
        assert not running or not preempted or max(running) < min(preempted)
        came_back.update(seq.seq_id for seq in engine.running if seq.preemptions)

    engine = scheduler(target, draft, **LITTLE_ROOM, preemption=preemption, num_host_blocks=40)
    run(engine, REQUESTS, after_step=look)
    assert came_back


def test_a_preempted_sequence_has_neither_a_second_prefill_nor_an_extra_round(
    target: LoadedModel, draft: LoadedModel
) -> None:
    """Its rounds are those of a sequence that was never interrupted; so is the one token of its prefill."""
    engine = scheduler(target, draft, **LITTLE_ROOM)
    for record in run(engine, REQUESTS).values():
        assert [r.round for r in record.rounds] == list(range(len(record.rounds)))
        assert len(record.token_ids) == 1 + sum(r.num_emitted for r in record.rounds)
    assert engine.stats.preemptions > 0


def throng(seed: int) -> tuple[Setup, list[Request]]:
    """Many sequences in little room, under which some are swapped in and others out in one step."""
    random = Random(seed)
    count = random.randint(5, 7)
    texts = [[random.randrange(VOCAB) for _ in range(random.randint(1, 6))] for _ in range(count)]
    setup = Setup(
        batch=count,
        block_size=1,
        num_blocks=random.randint(30, 50),
        num_host_blocks=100,
        preemption="swap",
        temperature=1.0,
    )
    return setup, [request(i, prompt, max_new_tokens=random.randint(8, 20)) for i, prompt in enumerate(texts)]


def run_throngs() -> int:
    """How many steps emptied a host block and filled it again, from another device block."""
    steps = 0
    apply = KVCache.apply

    def watch(self: KVCache, ops: CacheOps) -> None:
        nonlocal steps
        emptied, filled = dict(ops.swap_in), {host: block for block, host in ops.swap_out}
        steps += any(emptied[host] != filled[host] for host in emptied.keys() & filled.keys())
        apply(self, ops)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KVCache, "apply", watch)
        for seed in range(40):
            setup, requests = throng(seed)
            records = run(stub_engine(setup), requests, before_step=poison_unowned_blocks)
            roomy = run(stub_engine(replace(setup, num_blocks=400)), requests)
            assert {i: drawn(r) for i, r in records.items()} == {i: drawn(r) for i, r in roomy.items()}
    return steps


def test_one_step_may_swap_a_sequence_in_and_another_out_of_the_same_host_block() -> None:
    assert run_throngs() >= 4


def test_swapping_out_before_swapping_in_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = KVCache.apply

    def out_first(self: KVCache, ops: CacheOps) -> None:
        apply(self, CacheOps(swap_out=ops.swap_out))
        apply(self, CacheOps(swap_in=ops.swap_in, copy=ops.copy))

    monkeypatch.setattr(KVCache, "apply", out_first)
    with pytest.raises(StaleKVError):
        run_throngs()
