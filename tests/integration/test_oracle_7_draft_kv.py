"""Oracle 7: after each round a sequence's first ``num_computed_tokens`` cached keys and values equal a fresh prefill.

A wrong draft cache changes no output, since the target verifies it; only acceptance drops. So the cache itself is
looked at, in the draft and in the target, slot by slot through the block table, and compared with the dense model's.
"""

from collections import Counter
from collections.abc import Callable

import pytest
from torch import Tensor

from spec_harness.engine.native import NativeEngine
from spec_harness.kv_cache.block_manager import BlockManager
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import Request
from spec_harness.worker.worker import Worker
from tests.helpers import prompts, request, run_samples, scheduler
from tests.inspection import largest_kv_difference, poison_unowned_blocks

TOLERANCE = 1e-4
SIZE = 4


def requests() -> list[Request]:
    """Full and short proposals, capped ones, none at all, and several samples of a prompt that ends inside a block."""
    lengths, caps, samples = [5, 9, 12, 10, 7], [None, 0, 2, None, None], [1, 1, 1, 3, 1]
    return [
        request(i, text[:length], num_samples=n, max_new_tokens=10 + 3 * i, max_proposal_len=cap)
        for i, (text, length, cap, n) in enumerate(
            zip(prompts(5, seed=4, low=14, high=15), lengths, caps, samples, strict=True)
        )
    ]


class Watch:
    """The largest difference seen after any step, and what the steps were about."""

    def __init__(self) -> None:
        self.difference = 0.0
        self.seen: Counter[str] = Counter()

    def __call__(self, engine: NativeEngine) -> None:
        self.difference = max(self.difference, largest_kv_difference(engine))
        for seq in engine.running:
            rounds = seq.rounds[-1:]
            self.seen["skipped"] += any(r.proposal_len == 0 for r in rounds)
            self.seen["accepted in full"] += any(r.proposal_len == r.num_accepted > 0 for r in rounds)
            self.seen["rejected"] += any(r.num_accepted < r.proposal_len for r in rounds)
            self.seen["came back"] += seq.preemptions > 0
            self.seen["forked"] += seq.metadata.sample > 0


def watch(target: LoadedModel, draft: LoadedModel, **options: object) -> tuple[Watch, NativeEngine]:
    found = Watch()
    engine = scheduler(target, draft, **{"batch": 5, "block_size": SIZE, "temperature": 0.5, **options})
    run_samples(engine, requests(), before_step=poison_unowned_blocks, after_step=found)
    return found, engine


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_cache_equals_a_fresh_prefill_after_every_round(
    target: LoadedModel, draft: LoadedModel, preemption: str, k: int
) -> None:
    found, engine = watch(target, draft, k=k, num_blocks=14, num_host_blocks=60, preemption=preemption)
    assert found.difference <= TOLERANCE
    assert engine.stats.preemptions > 0
    assert set(found.seen) == {"skipped", "accepted in full", "rejected", "came back", "forked"}
    assert min(found.seen.values()) >= 2


def test_rows_whose_confidence_ends_them_early_are_no_exception(target: LoadedModel, draft: LoadedModel) -> None:
    found, _ = watch(target, draft, min_draft_prob=0.5)
    assert found.difference <= TOLERANCE
    assert found.seen["skipped"] > 10


def test_rows_disabled_for_some_rounds_catch_up(target: LoadedModel, draft: LoadedModel) -> None:
    found, _ = watch(target, draft, batch=4, disable_above_batch=3)
    assert found.difference <= TOLERANCE
    assert found.seen["skipped"] > 10
    assert found.seen["accepted in full"] > 2


def feeds_only_the_last_token(patch: pytest.MonkeyPatch) -> None:
    """The ancestors' fault: after a full acceptance the last accepted token's slot is never written."""

    class LastTokenOnlyWorker(MultiStepWorker):
        def rewind(self, seq_id: int, length: int) -> None:
            if self.num_computed_tokens(seq_id):
                self._num_computed_tokens[seq_id] = length - 1

    patch.setattr("spec_harness.proposers.draft_model.MultiStepWorker", LastTokenOnlyWorker)


def skips_one_write(patch: pytest.MonkeyPatch) -> None:
    write, calls = KVCache.write, 0

    def write_but_one(self: KVCache, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls != 40:
            write(self, layer, slots, key, value)

    patch.setattr(KVCache, "write", write_but_one)


def omits_copies(patch: pytest.MonkeyPatch) -> None:
    grow = BlockManager.grow
    patch.setattr(BlockManager, "grow", lambda *args, **options: grow(*args, **options)[:0])


def writes_to_shared_blocks(patch: pytest.MonkeyPatch) -> None:
    grow = BlockManager.grow
    patch.setattr(BlockManager, "grow", lambda self, seq_id, slots, write_from=None: grow(self, seq_id, slots))


def copies_in_the_target_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MultiStepWorker, "apply", lambda self, ops: None)


def copies_in_the_draft_only(patch: pytest.MonkeyPatch) -> None:
    def apply(self: Worker, ops: object) -> None:
        if isinstance(self, MultiStepWorker):
            whole(self, ops)

    whole = Worker.apply
    patch.setattr(Worker, "apply", apply)


def keeps_rejected_tokens(patch: pytest.MonkeyPatch) -> None:
    """One slot too many counts as computed in the draft: the one that a rejected token was written to."""

    def rewind(self: MultiStepWorker, seq_id: int, length: int) -> None:
        before = self.num_computed_tokens(seq_id)
        Worker.rewind(self, seq_id, length)
        if before >= length:
            self._num_computed_tokens[seq_id] += 1

    patch.setattr(MultiStepWorker, "rewind", rewind)


@pytest.mark.parametrize(
    "fault",
    [
        feeds_only_the_last_token,
        skips_one_write,
        omits_copies,
        writes_to_shared_blocks,
        copies_in_the_target_only,
        copies_in_the_draft_only,
        keeps_rejected_tokens,
    ],
)
def test_a_planted_fault_is_noticed(
    target: LoadedModel,
    draft: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
) -> None:
    fault(monkeypatch)
    found, engine = Watch(), scheduler(target, draft, batch=5, block_size=SIZE, temperature=0.5, num_blocks=40)

    def look(running: NativeEngine) -> None:
        found(running)
        assert found.difference <= TOLERANCE, "a slot does not hold what it should"

    with pytest.raises(AssertionError):
        run_samples(engine, requests(), after_step=look)
