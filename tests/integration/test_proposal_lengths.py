"""How long a proposal is, sequence by sequence and through the whole engine: near the models' maxima, at the end of a
budget, capped, and where the draft's own doubt or the batch ends it."""

from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from spec_harness.engine.round import NonFiniteLogitsError
from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import dense_logits
from spec_harness.proposers.ngram import NgramLookup
from spec_harness.requests import RequestRecord
from tests.helpers import (
    acceptance_rate,
    forwards,
    metadata,
    noisy_copy,
    prompts,
    request,
    run,
    scheduler,
    tiny_loaded,
    worker,
)
from tests.inspection import drawn, largest_kv_difference

TEXT = prompts(1, seed=9, low=60, high=61)[0]
K = 4


def lengths(record: RequestRecord) -> list[int]:
    return [r.proposal_len for r in record.rounds]


def tokens(records: dict[str, RequestRecord]) -> dict[str, list[int]]:
    return {i: r.token_ids for i, r in records.items()}


@pytest.mark.parametrize(("beyond", "expected"), [(-1, 4), (0, 4), (1, 4), (2, 3), (3, 2), (4, 1), (5, 0)])
def test_a_first_proposal_about_the_drafts_maximum_uses_every_position(
    target: LoadedModel, beyond: int, expected: int
) -> None:
    """len + k = draft_max + ``beyond``, in the first round (prompt and first token). Where positions remain, the last
    one is fed and none past it."""
    draft_max = 20
    short = noisy_copy(target, scale=0.02, max_model_len=draft_max)
    prompt = TEXT[: draft_max + beyond - K - 1]
    engine = scheduler(target, short, k=K)
    engine.add(request(0, prompt))
    with torch.inference_mode(), forwards(short.model) as seen:
        engine.step()
    assert sum(ids.numel() for ids in seen) == (len(prompt) + 1 + expected - 1 if expected else 0)
    (seq,) = engine.running
    assert [r.proposal_len for r in seq.rounds] == [expected]
    assert seq.rounds[0].skip_reason == (None if expected else "draft_max")
    assert seq.rounds[0].context_len + expected - 1 <= draft_max


@pytest.mark.parametrize(("left", "expected"), [(6, 4), (5, 4), (4, 3), (3, 2), (2, 1), (1, 0)])
@pytest.mark.parametrize("bound", ["budget", "target_max"])
def test_a_proposal_leaves_room_for_the_token_after_it(
    target: LoadedModel, left: int, expected: int, bound: str
) -> None:
    """``left`` tokens may still be emitted in the first round."""
    if bound == "budget":
        model, new_tokens = target, left + 1
    else:
        model, new_tokens = tiny_loaded(max_model_len=len(TEXT) + 1 + left), 100
    record = run(scheduler(model, model, k=K), [request(0, TEXT, max_new_tokens=new_tokens)])["r0"]
    assert lengths(record)[0] == expected
    assert record.rounds[0].skip_reason == (None if expected else bound)
    assert len(record.token_ids) == left + 1
    assert record.stop_reason == "length"


def test_caps_from_0_to_k_share_a_batch_and_every_row_keeps_its_place(target: LoadedModel, draft: LoadedModel) -> None:
    caps = [2, 0, 4, 1, 3, None]
    requests = [request(i, TEXT[i : i + 9], max_proposal_len=cap) for i, cap in enumerate(caps)]
    together = run(scheduler(target, draft, k=K, batch=6), requests)
    for r, cap in zip(requests, caps, strict=True):
        alone = run(scheduler(target, draft, k=K, batch=1), [r])
        assert drawn(together[r.request_id]) == drawn(alone[r.request_id])
        assert max(lengths(together[r.request_id])) == (K if cap is None else cap)


def test_rows_that_dropped_out_of_a_step_cost_no_forward_rows(target: LoadedModel, draft: LoadedModel) -> None:
    """In the first round of a batch: the draft catches up with every speculating prompt, then feeds one token of each
    row that is to go on; the target scores exactly what was proposed."""
    caps = [2, 0, 4, 1, 3]
    requests = [request(i, TEXT[i : i + 9], max_proposal_len=cap) for i, cap in enumerate(caps)]
    engine = scheduler(target, draft, k=K, batch=5)
    for r in requests:
        engine.add(r)
    with torch.inference_mode(), forwards(draft.model) as drafted, forwards(target.model) as scored:
        engine.step()
    assert [ids.numel() for ids in drafted] == [4 * 10, 3, 2, 1]
    assert [ids.numel() for ids in scored] == [5 * 9, 5 + sum(caps)]


def test_a_batch_that_is_all_skipped_never_runs_the_draft(target: LoadedModel, draft: LoadedModel) -> None:
    requests = [request(i, TEXT[i : i + 9], max_proposal_len=0) for i in range(3)]
    with forwards(draft.model) as seen:
        records = run(scheduler(target, draft, k=K), requests)
    assert not seen
    assert {r.skip_reason for record in records.values() for r in record.rounds} <= {"cap", "budget"}
    assert tokens(records) == tokens(run(scheduler(target, None), requests))


def test_proposals_stop_in_a_large_batch_and_come_back_in_a_small_one(target: LoadedModel, draft: LoadedModel) -> None:
    requests = [request(i, TEXT[i : i + 9], max_new_tokens=6 + 8 * i) for i in range(4)]
    largest = 0.0

    def look(engine: object) -> None:
        nonlocal largest
        largest = max(largest, largest_kv_difference(engine))

    records = run(scheduler(target, draft, k=K, disable_above_batch=2), requests, after_step=look)
    assert tokens(records) == tokens(run(scheduler(target, None), requests))
    assert {r.skip_reason for r in records["r0"].rounds} == {"disabled"}
    reasons = [r.skip_reason for r in records["r3"].rounds]
    assert reasons[0] == "disabled"
    assert reasons.count(None) > 2
    assert "disabled" not in reasons[reasons.index(None) :]
    assert largest <= 1e-4  # the draft has caught up with what it missed
    assert acceptance_rate(records.values()) > 0.1


def assert_ended_by_doubt_only(draft: LoadedModel, record: RequestRecord, min_prob: float) -> None:
    """Every drafted position passed the threshold, and the first one that was not drafted failed it or another bound
    ended the proposal."""
    text = record.prompt_token_ids + record.token_ids
    left = record.rounds[-1].context_len + record.rounds[-1].num_emitted
    for r in record.rounds:
        context = text[: r.context_len] + r.draft_token_ids
        confidence = dense_logits(draft.model, context).softmax(-1).max(-1).values[r.context_len - 1 :]
        assert (confidence[: r.proposal_len] >= min_prob).all()
        if r.proposal_len < min(K, left - r.context_len - 1):
            assert confidence[r.proposal_len] < min_prob
        if r.proposal_len == 0:
            assert r.skip_reason in ("low_confidence", "budget")


@pytest.mark.parametrize("min_prob", [0.3, 0.6])
def test_a_proposal_ends_where_the_draft_is_unsure(target: LoadedModel, draft: LoadedModel, min_prob: float) -> None:
    requests = [request(i, TEXT[4 * i : 4 * i + 9]) for i in range(4)]
    with forwards(draft.model) as unlimited:
        plain = run(scheduler(target, draft, k=K), requests)
    with forwards(draft.model) as limited:
        records = run(scheduler(target, draft, k=K, min_draft_prob=min_prob), requests)
    assert tokens(records) == tokens(plain)  # lossless
    seen = Counter(r.skip_reason for record in records.values() for r in record.rounds)
    assert seen["low_confidence"] > 3
    assert seen[None] > 3
    for record in records.values():
        assert_ended_by_doubt_only(draft, record, min_prob)
    fed = [sum(ids.numel() for ids in passes) for passes in (limited, unlimited)]
    assert fed[0] < fed[1]


@torch.inference_mode()
def test_a_row_below_the_threshold_drops_out_of_later_forwards(draft: LoadedModel) -> None:
    rows = [metadata(i, TEXT[4 * i : 4 * i + 9], list(range(1 + 4 * i, 5 + 4 * i))) for i in range(5)]
    whole = worker(draft).execute_model_multi_step(rows, K)
    confidences = torch.stack([output.logits.softmax(-1).max(-1).values for output in whole])
    threshold = float(confidences.flatten().median())
    steps = (confidences >= threshold).long().cumprod(0)
    assert 0 < steps.sum() < steps.numel()
    with forwards(draft.model) as seen:
        some = worker(draft, min_prob=threshold).execute_model_multi_step(rows, K)
    going_on = [int(n) for n in steps[: K - 1].sum(1) if n]
    assert [ids.numel() for ids in seen] == [5 * 9, *going_on]
    for step, output in enumerate(some):
        expected = torch.where(steps[step].bool(), whole[step].token_ids, -1)
        assert output.token_ids.tolist() == expected.tolist()
        assert output.logits.any(-1).long().tolist() == steps[step].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_never_sure_proposes_nothing(
    target: LoadedModel, draft: LoadedModel, temperature: float
) -> None:
    """Where every row had dropped out of a sampled step, the positions of the empty rest were made of the wrong type,
    and the run ended in an error."""
    requests = [request(i, TEXT[4 * i : 4 * i + 9]) for i in range(3)]
    records = run(scheduler(target, draft, k=K, min_draft_prob=0.9999, temperature=temperature), requests)
    baseline = run(scheduler(target, None, temperature=temperature), requests)
    assert tokens(records) == tokens(baseline)
    assert {r.skip_reason for record in records.values() for r in record.rounds} == {"low_confidence", "budget"}


def test_nan_in_an_unsure_draft_is_found_all_the_same(target: LoadedModel) -> None:
    """NaN is below no threshold. Such a draft once counted as merely unsure, so that nothing was ever proposed."""
    broken = noisy_copy(target, scale=0.02)
    with torch.no_grad():
        broken.model.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(NonFiniteLogitsError, match="NaN or infinite logits for request r0"):
        run(scheduler(target, broken, k=K, min_draft_prob=0.5), [request(0, TEXT[:9])])


REPEATING: Sequence[list[int]] = [TEXT[:6] * 3, TEXT[6:10] * 4, [5, 6, 5, 7, 5, 6], TEXT[:20]]
NGRAM = NgramLookup(max_window=3, min_window=1)


@pytest.mark.parametrize("k", [0, 1, 4])
def test_prompt_lookup_is_lossless(target: LoadedModel, k: int) -> None:
    requests = [request(i, prompt, max_new_tokens=40) for i, prompt in enumerate(REPEATING)]
    records = run(scheduler(target, NGRAM, k=k), requests)
    assert tokens(records) == tokens(run(scheduler(target, None), requests))
    seen = Counter(r.skip_reason for record in records.values() for r in record.rounds)
    if k == 0:
        assert set(seen) == {"cap"}
    else:
        assert seen["no_match"] > 3
        assert seen[None] > 3
        assert set(seen) <= {"no_match", "budget", None}
        assert acceptance_rate(records.values()) > 0


def test_prompt_lookup_heeds_a_requests_cap(target: LoadedModel) -> None:
    requests = [request(i, [5, 6, 7, 8, 5, 6, 7], max_proposal_len=cap) for i, cap in enumerate([0, 1, 2, None])]
    records = run(scheduler(target, NGRAM, k=K), requests)
    assert [max(lengths(records[f"r{i}"])) for i in range(3)] == [0, 1, 2]
    assert {r.skip_reason for r in records["r0"].rounds} <= {"cap", "budget"}
    assert len({tuple(r.token_ids) for r in records.values()}) == 1


def test_every_round_of_prompt_lookup_proposes_what_followed_before(target: LoadedModel) -> None:
    """Looked up again, in the text as it was then, by another search."""
    record = run(scheduler(target, NGRAM, k=K), [request(0, REPEATING[0], max_new_tokens=40)])["r0"]
    text = record.prompt_token_ids + record.token_ids
    for r in record.rounds:
        context, limit = text[: r.context_len], min(K, len(text) - r.context_len - 1)
        ends = [
            (window, end)
            for window in (1, 2, 3)
            for end in range(window, len(context))
            if context[end - window : end] == context[-window:]
        ]
        expected = context[max(ends)[1] :][:limit] if ends and limit > 0 else []
        assert r.draft_token_ids == expected
