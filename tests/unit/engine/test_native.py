import copy
import time

import pytest
import torch

from spec_harness.engine.round import NonFiniteLogitsError
from spec_harness.models.load import LoadedModel, prepare
from tests.helpers import acceptance_rate, pool_for, prompts, request, run, scheduler, tiny_loaded

PROMPTS = prompts(6, seed=4)


def test_a_small_pool_runs_fewer_at_a_time_and_changes_no_output(target: LoadedModel, draft: LoadedModel) -> None:
    requests = [request(i, prompt) for i, prompt in enumerate(PROMPTS)]
    roomy = scheduler(target, draft, batch=6, num_blocks=400)
    expected = {i: r.token_ids for i, r in run(roomy, requests).items()}
    largest = pool_for(0, requests, block_size=8)
    for num_blocks in (largest, largest + 3, 2 * largest):
        engine = scheduler(target, draft, batch=6, num_blocks=num_blocks)
        assert {i: r.token_ids for i, r in run(engine, requests).items()} == expected
        assert engine.scheduler.blocks.peak_allocated <= num_blocks


@pytest.mark.parametrize("k", [1, 4])
def test_one_token_requests_end_with_their_prefill(target: LoadedModel, draft: LoadedModel, k: int) -> None:
    engine = scheduler(target, draft, k=k)
    records = run(engine, [request(i, prompt, max_new_tokens=1) for i, prompt in enumerate(PROMPTS)])
    for record in records.values():
        assert len(record.token_ids) == 1
        assert record.rounds == []
        assert record.stop_reason == "length"
        assert record.time_per_output_token is None
    assert engine.stats.num_steps == 0


def test_an_end_of_sequence_as_the_first_token_ends_the_request(target: LoadedModel, draft: LoadedModel) -> None:
    first = run(scheduler(target, draft), [request(0, PROMPTS[0])])["r0"].token_ids[0]
    record = run(scheduler(target, draft), [request(0, PROMPTS[0], stop_token_ids=frozenset([first]))])["r0"]
    assert record.token_ids == [first]
    assert record.stop_reason == "eos"


def test_a_stop_string_ends_a_request(target: LoadedModel, draft: LoadedModel) -> None:
    whole = run(scheduler(target, draft), [request(0, PROMPTS[0])])["r0"].token_ids
    stop = f"{whole[6]} {whole[7]}"
    record = run(scheduler(target, draft, stop_strings=(stop,)), [request(0, PROMPTS[0])])["r0"]
    assert record.token_ids == whole[:8]
    assert record.stop_reason == "stop"


def test_a_requests_own_cap_bounds_its_proposals_only(target: LoadedModel, draft: LoadedModel) -> None:
    caps = [None, 0, 1, 2]
    requests = [request(i, PROMPTS[0], max_proposal_len=cap) for i, cap in enumerate(caps)]
    records = run(scheduler(target, draft, k=4), requests)
    for r, cap in zip(requests, caps, strict=True):
        record = records[r.request_id]
        assert max(x.proposal_len for x in record.rounds) == (4 if cap is None else cap)
        assert record.token_ids == records["r0"].token_ids
    assert {x.skip_reason for x in records["r1"].rounds} <= {"cap", "budget"}


def test_a_prompt_as_long_as_the_targets_maximum_is_refused(target: LoadedModel) -> None:
    engine = scheduler(target, None)
    with pytest.raises(ValueError, match="request r0: a prompt of 256 tokens"):
        engine.add(request(0, [5] * 256))
    with pytest.raises(ValueError, match="request r1: a prompt of 0 tokens"):
        engine.add(request(1, []))
    assert len(run(engine, [request(2, [5] * 255)])["r2"].token_ids) == 1


def test_a_request_that_the_pool_can_never_hold_is_refused_by_the_blocks_it_needs(target: LoadedModel) -> None:
    engine = scheduler(target, None, block_size=8, num_blocks=4)
    with pytest.raises(ValueError, match="request r0 needs 5 KV blocks, the pool has 4"):
        engine.add(request(0, [5] * 14, max_new_tokens=20))  # 33 tokens are written
    assert len(run(engine, [request(1, [5] * 13, max_new_tokens=20)])["r1"].token_ids) == 20


@pytest.mark.parametrize("other", [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.9}])
def test_a_request_that_would_be_sampled_otherwise_is_refused(target: LoadedModel, other: dict[str, float]) -> None:
    engine = scheduler(target, None)
    with pytest.raises(ValueError, match=r"request r0: temperature .* all of this engine's requests have 0, 0 and 1"):
        engine.add(request(0, PROMPTS[0], **other))


def test_a_record_says_when_it_was_admitted_and_when_each_round_ended(target: LoadedModel, draft: LoadedModel) -> None:
    engine, before = scheduler(target, draft, batch=1), time.time()
    records = run(engine, [request(i, prompt) for i, prompt in enumerate(PROMPTS[:2])])
    first, second = records["r0"], records["r1"]
    assert before <= first.admitted_at <= second.admitted_at <= time.time()
    assert 0 <= first.queued_s < second.queued_s  # which waited for the slot
    for record in (first, second):
        ends = [r.ended_s for r in record.rounds]
        assert record.time_to_first_token < ends[0]
        assert ends == sorted(ends)


def test_a_request_waits_from_its_arrival_on(target: LoadedModel) -> None:
    engine = scheduler(target, None)
    engine.add(request(0, PROMPTS[0], max_new_tokens=1), arrival_s=time.perf_counter() - 5)
    with torch.inference_mode():
        (record,) = engine.step()
    assert record.queued_s >= 5


def test_an_engine_is_not_finished_while_requests_are(target: LoadedModel) -> None:
    engine = scheduler(target, None)
    engine.add(request(0, PROMPTS[0]))
    with pytest.raises(AssertionError, match="1 requests unfinished"):
        engine.finish()


def test_slots_stay_full_while_requests_wait(target: LoadedModel, draft: LoadedModel) -> None:
    engine = scheduler(target, draft, batch=2)
    for i, prompt in enumerate(PROMPTS):
        engine.add(request(i, prompt, max_new_tokens=6 + 5 * i))
    finished, rows = 0, 0
    with torch.inference_mode():
        while engine.num_unfinished:
            could_fill = engine.num_unfinished >= 2
            finished += len(engine.step())
            engine.scheduler.blocks.check_integrity()
            assert engine.stats.rows_run - rows == (2 if could_fill else 1)
            rows = engine.stats.rows_run
    assert finished == len(PROMPTS)
    assert engine.scheduler.blocks.num_allocated == 0


def test_a_free_slot_is_one_that_no_request_waits_for(target: LoadedModel) -> None:
    engine = scheduler(target, None, batch=2)
    assert engine.has_free_slot
    engine.add(request(0, PROMPTS[0]))
    assert not engine.has_free_slot
    with torch.inference_mode():
        engine.step()
        assert engine.has_free_slot
        engine.add(request(1, PROMPTS[1]))
        engine.step()
    assert not engine.has_free_slot


def test_finished_sequences_leave_no_state_behind(target: LoadedModel, draft: LoadedModel) -> None:
    engine = scheduler(target, draft)
    run(engine, [request(i, prompt) for i, prompt in enumerate(PROMPTS)])
    assert not engine.worker.target._num_computed_tokens
    assert not engine.worker.proposer.worker._num_computed_tokens


def test_a_second_batch_through_used_blocks_gives_the_same(target: LoadedModel, draft: LoadedModel) -> None:
    requests = [request(i, prompt) for i, prompt in enumerate(PROMPTS)]
    engine = scheduler(target, draft, num_blocks=30)
    first, second = run(engine, requests), run(engine, requests[::-1])
    assert {i: r.token_ids for i, r in first.items()} == {i: r.token_ids for i, r in second.items()}


def test_records_add_up(target: LoadedModel, draft: LoadedModel) -> None:
    for record in run(scheduler(target, draft), [request(i, p) for i, p in enumerate(PROMPTS)]).values():
        tokens = record.token_ids[:1] + [t for r in record.rounds for t in r.output_token_ids]
        assert tokens == record.token_ids
        assert [r.round for r in record.rounds] == list(range(len(record.rounds)))
        assert [r.context_len for r in record.rounds] == [
            len(record.prompt_token_ids) + 1 + sum(r.num_emitted for r in record.rounds[:i])
            for i in range(len(record.rounds))
        ]
        for r in record.rounds:
            assert (r.skip_reason is None) == (r.proposal_len > 0)
            assert r.num_emitted == r.num_accepted + 1


@pytest.mark.parametrize("faulty", ["target", "draft"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nan_logits_stop_the_run_and_name_the_request(target: LoadedModel, faulty: str, temperature: float) -> None:
    """One token's embedding is NaN, so only the request that holds it is hit."""
    broken = prepare(copy.deepcopy(target.model), where="draft", max_model_len=None)
    with torch.no_grad():
        broken.model.get_input_embeddings().weight[77] = float("nan")
    models = (broken, target) if faulty == "target" else (target, broken)
    engine = scheduler(*models, temperature=temperature)
    with pytest.raises(NonFiniteLogitsError, match=r"NaN or infinite logits for request r1$"):
        run(engine, [request(i, ids, max_new_tokens=3) for i, ids in enumerate([[3, 4, 5], [3, 77, 5], [6, 7]])])


@pytest.mark.parametrize("draft_vocab", [100, 150])
def test_a_draft_of_another_vocabulary_size_changes_no_output(target: LoadedModel, draft_vocab: int) -> None:
    """The target emits ids that a smaller draft has no embedding for; feeding them to it raised an IndexError."""
    other = tiny_loaded(vocab_size=draft_vocab, seed=1)
    requests = [request(i, prompt) for i, prompt in enumerate(PROMPTS)]
    expected = run(scheduler(target, None), requests)
    assert max(t for r in expected.values() for t in [*r.prompt_token_ids, *r.token_ids]) >= 100
    records = run(scheduler(target, other), requests)
    assert {i: r.token_ids for i, r in records.items()} == {i: r.token_ids for i, r in expected.items()}
    assert acceptance_rate(records.values()) < 0.5
    drafted = [t for record in records.values() for r in record.rounds for t in r.draft_token_ids]
    assert max(drafted) < min(draft_vocab, 128)
