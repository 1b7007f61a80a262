"""Several samples of one prompt: they share its KV blocks until they write, and know nothing of each other."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from spec_harness.config import EvalConfig, SamplingConfig
from spec_harness.engine.native import NativeEngine
from spec_harness.engine.running import RunningSequence
from spec_harness.errors import UserError
from spec_harness.kv_cache.block_manager import BlockManager, blocks_for
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import Request, RequestRecord
from spec_harness.validation import validated
from spec_harness.worker.worker import Worker
from tests.helpers import acceptance_rate, forwards, noisy_copy, prompts, request, run_samples, sampled_as, scheduler
from tests.inspection import drawn, largest_kv_difference, poison_unowned_blocks

SIZE = 4
SAMPLES = 4
TEXT = prompts(1, seed=3, low=30, high=31)[0]
SAMPLED = {"temperature": 0.8, "block_size": SIZE, "batch": SAMPLES}


def asked(prompt_len: int, *, num_samples: int = SAMPLES, max_new_tokens: int = 14) -> Request:
    return request(0, TEXT[:prompt_len], num_samples=num_samples, max_new_tokens=max_new_tokens)


def alone(target: LoadedModel, draft: LoadedModel, of: Request, monkeypatch: pytest.MonkeyPatch) -> list[RequestRecord]:
    """Each sample as a request of its own, with no fork anywhere."""
    start = RunningSequence.start

    def starting_as(sample: int) -> Callable[..., RunningSequence]:
        return lambda r, **options: start(r, **{**options, "sample": sample})

    records = []
    for sample in range(of.num_samples):
        with monkeypatch.context() as patch:
            patch.setattr(RunningSequence, "start", starting_as(sample))
            found = run_samples(scheduler(target, draft, **SAMPLED), [replace(of, num_samples=1)])
        records.append(found["r0", sample])
    return records


def together(target: LoadedModel, draft: LoadedModel, of: Request, **options: object) -> list[RequestRecord]:
    found = run_samples(scheduler(target, draft, **{**SAMPLED, **options}), [of])
    return [found["r0", sample] for sample in range(of.num_samples)]


def assert_same(records: Sequence[RequestRecord], expected: Sequence[RequestRecord]) -> None:
    assert [drawn(r) for r in records] == [drawn(r) for r in expected]


@pytest.mark.parametrize("prompt_len", [1, 8, 10, 11])
def test_each_sample_is_what_it_would_be_alone(
    target: LoadedModel, draft: LoadedModel, monkeypatch: pytest.MonkeyPatch, prompt_len: int
) -> None:
    """With the prompt's end at the end of a block, and inside one."""
    of = asked(prompt_len)
    records = together(target, draft, of)
    assert len({tuple(r.token_ids) for r in records}) == SAMPLES
    assert_same(records, alone(target, draft, of, monkeypatch))
    assert 0.1 < acceptance_rate(records) < 0.95


@pytest.mark.parametrize("prompt_len", [8, 10])
def test_the_prompt_is_fed_once_and_held_once(target: LoadedModel, draft: LoadedModel, prompt_len: int) -> None:
    engine = scheduler(target, draft, **SAMPLED)
    engine.add(sampled_as(engine, asked(prompt_len)))
    with forwards(target.model) as target_ids, forwards(draft.model) as draft_ids:
        engine.step()
    for seen in (target_ids, draft_ids):
        assert seen[0].numel() == prompt_len
        assert all(ids.numel() <= SAMPLES * 5 for ids in seen[1:])
    tables = [engine.scheduler.blocks.block_table(seq.seq_id) for seq in engine.running]
    shared, own = prompt_len // SIZE, blocks_for(prompt_len + 5, SIZE) - prompt_len // SIZE
    assert len({tuple(table[:shared]) for table in tables}) == 1
    assert len({block for table in tables for block in table[shared:]}) == SAMPLES * own
    assert engine.scheduler.blocks.num_allocated == shared + SAMPLES * own
    engine.scheduler.blocks.check_integrity()


def test_a_shared_token_is_held_once_in_the_counters_too(target: LoadedModel, draft: LoadedModel) -> None:
    """Every sample once counted the whole prompt as its own, so that a cache was 240 % full."""
    engine = scheduler(target, draft, **SAMPLED)
    engine.add(sampled_as(engine, asked(30)))
    engine.step()
    assert engine.stats.tokens_held == 28 + SAMPLES * (31 - 28)  # seven full blocks are shared
    assert engine.stats.slots_held == 28 + SAMPLES * 2 * SIZE
    while engine.num_unfinished:
        engine.step()
    assert engine.stats.tokens_held < engine.stats.slots_held


def test_no_write_of_one_sample_reaches_another(target: LoadedModel, draft: LoadedModel) -> None:
    largest = 0.0

    def look(engine: NativeEngine) -> None:
        nonlocal largest
        largest = max(largest, largest_kv_difference(engine))

    engine = scheduler(target, draft, **SAMPLED)
    run_samples(
        engine, [asked(10), replace(asked(9), request_id="r1")], before_step=poison_unowned_blocks, after_step=look
    )
    assert 0 < largest <= 1e-4


@pytest.mark.parametrize("fault", ["replaced, not copied", "not replaced", "copied in the target only"])
@pytest.mark.parametrize("prompt_len", [10, 11])
def test_without_a_whole_copy_on_write_the_samples_are_others(
    target: LoadedModel, draft: LoadedModel, monkeypatch: pytest.MonkeyPatch, fault: str, prompt_len: int
) -> None:
    of = asked(prompt_len)
    sound = together(target, draft, of)
    grow = BlockManager.grow
    if fault == "replaced, not copied":
        monkeypatch.setattr(BlockManager, "grow", lambda *args, **options: grow(*args, **options)[:0])
    elif fault == "not replaced":
        monkeypatch.setattr(BlockManager, "grow", lambda self, seq, slots, write_from=None: grow(self, seq, slots))
    else:
        monkeypatch.setattr(MultiStepWorker, "apply", lambda self, ops: None)
    with pytest.raises(AssertionError):
        assert_same(together(target, draft, of), sound)


def test_a_block_is_copied_before_the_first_forward_that_writes_it(
    target: LoadedModel, draft: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each cache the copies of a round come before its writes."""
    events: dict[int, list[str]] = {}
    move, run = KVCache.apply, Worker._run

    def apply(self: KVCache, ops: object) -> None:
        events.setdefault(id(self), []).append("copy")
        move(self, ops)

    def forward(self: Worker, *args: object) -> object:
        events.setdefault(id(self.runner.cache), []).append("forward")
        return run(self, *args)

    monkeypatch.setattr(KVCache, "apply", apply)
    monkeypatch.setattr(Worker, "_run", forward)
    engine = scheduler(target, draft, **SAMPLED, k=2)
    engine.add(sampled_as(engine, asked(10)))
    engine.step()
    (target_events, draft_events) = events.values()
    assert target_events == ["forward", "copy", "forward"]  # prefill, then the round
    assert draft_events == ["forward", "copy", "forward", "forward"]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_children_may_be_preempted(target: LoadedModel, draft: LoadedModel, preemption: str) -> None:
    of = asked(10, max_new_tokens=20)
    expected = together(target, draft, of)
    engine = scheduler(target, draft, **SAMPLED, num_blocks=12, num_host_blocks=60, preemption=preemption)
    found = run_samples(engine, [of], before_step=poison_unowned_blocks)
    records = [found["r0", sample] for sample in range(SAMPLES)]
    assert_same(records, expected)
    assert records[0].preemptions == 0
    assert sum(r.preemptions for r in records[1:]) == engine.stats.preemptions > 0


@pytest.mark.parametrize("draft_max", [8, 9, 10, 11, 12, 14])
def test_a_prompt_about_the_drafts_maximum_may_fork(
    target: LoadedModel, monkeypatch: pytest.MonkeyPatch, draft_max: int
) -> None:
    """A prompt of 10 tokens: too long for the draft, just fitting, and with room for a few proposals."""
    short = noisy_copy(target, scale=0.02, max_model_len=draft_max)
    of = asked(10)
    with forwards(short.model) as seen:
        records = together(target, short, of)
    assert (len(seen) > 0) == (draft_max >= 10)
    assert_same(records, alone(target, short, of, monkeypatch))
    assert any(r.proposal_len for record in records for r in record.rounds) == (draft_max >= 11)


def test_a_sample_that_ends_with_its_first_token_leaves_the_others_alone(
    target: LoadedModel, draft: LoadedModel
) -> None:
    firsts = [r.token_ids[0] for r in together(target, draft, asked(10))]
    end = firsts[0]
    assert len(set(firsts)) > 1
    of = asked(10)
    ended = together(target, draft, replace(of, sampling=replace(of.sampling, stop_token_ids=frozenset([end]))))
    for first, record in zip(firsts, ended, strict=True):
        assert (record.token_ids == [end]) == (first == end)


def test_more_samples_than_can_run_are_refused(target: LoadedModel) -> None:
    engine = scheduler(target, None, batch=3)
    with pytest.raises(ValueError, match="request r0 asks for 4 samples, where 1 to 3 can run"):
        engine.add(sampled_as(engine, asked(10)))


def test_a_group_waits_until_all_its_samples_have_a_slot(target: LoadedModel, draft: LoadedModel) -> None:
    engine = scheduler(target, draft, **SAMPLED)
    requests = [request(0, TEXT[:5], max_new_tokens=9), replace(asked(10), request_id="r1")]
    starts: list[int] = []
    run_samples(engine, requests, after_step=lambda e: starts.append(len(e.running)))
    assert set(starts) <= {1, 4, 3, 2, 0}
    assert starts[0] == 1


def test_greedy_samples_are_refused_in_the_configuration() -> None:
    with pytest.raises(
        UserError, match=r"sampling\.n must be 1 with sampling\.temperature=0, not 3: all samples would"
    ):
        validated(SamplingConfig, {"n": 3})
    SamplingConfig(n=3, temperature=0.7)


def test_more_samples_than_sequences_are_refused_in_the_configuration() -> None:
    with pytest.raises(UserError, match=r"sampling\.n must be at most max_num_seqs \(2\), not 3"):
        validated(EvalConfig, {"sampling": {"n": 3, "temperature": 0.7}, "max_num_seqs": 2})


def test_beam_search_is_refused_with_its_reason() -> None:
    with pytest.raises(
        UserError, match=r"num_beams must be 1, not 4: beam search reorders its beams .*use sampling\.n"
    ):
        validated(SamplingConfig, {"num_beams": 4})
