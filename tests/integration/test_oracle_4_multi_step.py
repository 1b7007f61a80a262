"""Oracle 4: n steps in one call give the tokens of n calls of one step with the tokens fed back."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from spec_harness.models.load import LoadedModel
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import SequenceData, SequenceMetadata
from spec_harness.worker.sampler import SamplerOutput
from tests.helpers import forwards, metadata, prompts, shuffled_tables, worker

pytestmark = pytest.mark.shapes

PROMPTS = prompts(4, seed=5, low=3, high=14)


def batch(num_steps: int, block_size: int, *, seed: int) -> list[SequenceMetadata]:
    """Sequences with permuted block tables of exactly the blocks that ``num_steps`` steps need."""
    lengths = [len(prompt) + num_steps - 1 for prompt in PROMPTS]
    tables = shuffled_tables(lengths, block_size, num_blocks=200, seed=seed)
    return [metadata(i, prompt, table) for i, (prompt, table) in enumerate(zip(PROMPTS, tables, strict=True))]


def with_token(m: SequenceMetadata, token: int) -> SequenceMetadata:
    return replace(m, data=SequenceData(list(m.data.prompt_token_ids), [*m.data.output_token_ids, token]))


def single_steps(single: MultiStepWorker, sequences: Sequence[SequenceMetadata], num_steps: int) -> list[SamplerOutput]:
    outputs = []
    for _ in range(num_steps):
        outputs.append(single.execute_model(sequences))
        tokens = outputs[-1].token_ids.tolist()
        sequences = [with_token(m, token) for m, token in zip(sequences, tokens, strict=True)]
    return outputs


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_n_steps_equal_n_single_steps_across_block_boundaries(
    target: LoadedModel, temperature: float, block_size: int
) -> None:
    for num_steps in (1, 2, block_size + 1, 2 * block_size + 1):
        options = {"num_blocks": 200, "block_size": block_size, "temperature": temperature}
        with torch.inference_mode():
            together = worker(target, **options).execute_model_multi_step(
                batch(num_steps, block_size, seed=0), num_steps
            )
            # Other blocks, so that equality owes nothing to where the KV lies.
            one_by_one = single_steps(worker(target, **options), batch(num_steps, block_size, seed=1), num_steps)
        assert len(together) == num_steps
        for multi, single in zip(together, one_by_one, strict=True):
            assert multi.token_ids.tolist() == single.token_ids.tolist()
            torch.testing.assert_close(multi.probs, single.probs, rtol=0, atol=1e-4)
            torch.testing.assert_close(multi.logits, single.logits, rtol=0, atol=1e-4)


def test_a_second_call_goes_on_where_the_first_one_ended(target: LoadedModel) -> None:
    """Two calls of three steps, all tokens kept in between, equal one call of six."""
    with torch.inference_mode():
        six = worker(target, num_blocks=200, temperature=0.8).execute_model_multi_step(batch(6, 4, seed=0), 6)
        again = worker(target, num_blocks=200, temperature=0.8)
        sequences = batch(6, 4, seed=0)
        first = again.execute_model_multi_step(sequences, 3)
        for output in first:
            sequences = [with_token(m, t) for m, t in zip(sequences, output.token_ids.tolist(), strict=True)]
        for m in sequences:
            again.rewind(m.seq_id, len(m.data))
        second = again.execute_model_multi_step(sequences, 3)
    assert [o.token_ids.tolist() for o in six] == [o.token_ids.tolist() for o in (*first, *second)]


def test_rows_that_stop_early_drop_out_of_later_forwards_and_the_others_do_not_notice(target: LoadedModel) -> None:
    steps = [1, 4, 2, 3]
    with torch.inference_mode():
        whole = worker(target, num_blocks=200).execute_model_multi_step(batch(4, 4, seed=0), 4)
        with forwards(target.model) as seen:
            some = worker(target, num_blocks=200).execute_model_multi_step(batch(4, 4, seed=0), 4, row_steps=steps)
    assert [ids.numel() for ids in seen] == [sum(len(p) for p in PROMPTS), 3, 2, 1]
    for step, (every, part) in enumerate(zip(whole, some, strict=True)):
        for b, n in enumerate(steps):
            assert part.token_ids[b] == (every.token_ids[b] if step < n else -1)
            assert bool(part.logits[b].any()) == (step < n)


def test_no_row_needs_the_last_steps(target: LoadedModel) -> None:
    with torch.inference_mode():
        outputs = worker(target, num_blocks=200).execute_model_multi_step(batch(1, 4, seed=0), 3, row_steps=[1] * 4)
    assert [o.token_ids.tolist() for o in outputs[1:]] == [[-1] * 4] * 2


@pytest.mark.parametrize("num_steps", [1, 5, 9])
def test_too_few_slots_are_refused_before_any_forward(target: LoadedModel, num_steps: int) -> None:
    sequences = batch(num_steps, 1, seed=0)
    short = replace(sequences[2], block_table=sequences[2].block_table[:-1])
    required = len(short.data) + num_steps - 1
    engine = worker(target, num_blocks=200, block_size=1)
    message = rf"request r2, sequence 2: {num_steps} steps \(num_steps\) need {required} KV slots.* has {required - 1}$"
    with forwards(target.model) as seen, torch.inference_mode():
        with pytest.raises(ValueError, match=message):
            engine.execute_model_multi_step([*sequences[:2], short, sequences[3]], num_steps)
        assert not seen
        assert all(engine.num_computed_tokens(m.seq_id) == 0 for m in sequences)
        engine.execute_model_multi_step(sequences, num_steps)  # exactly sufficient
        assert len(seen) == num_steps


def test_a_row_that_stops_early_needs_slots_for_its_own_steps_only(target: LoadedModel) -> None:
    sequences = batch(2, 1, seed=0)
    grown = [
        replace(m, block_table=[*m.block_table, *range(190 + 2 * i, 192 + 2 * i)]) for i, m in enumerate(sequences)
    ]
    with torch.inference_mode():
        engine = worker(target, num_blocks=200, block_size=1)
        engine.execute_model_multi_step([sequences[0], *grown[1:]], 4, row_steps=[2, 4, 4, 4])


def test_metadata_of_the_caller_stays_as_it_was(target: LoadedModel) -> None:
    sequences = batch(9, 4, seed=0)
    before = [(m, list(m.data.token_ids), list(m.data.output_token_ids), list(m.block_table)) for m in sequences]
    with torch.inference_mode():
        worker(target, num_blocks=200).execute_model_multi_step(sequences, 9)
    after = [(m, list(m.data.token_ids), list(m.data.output_token_ids), list(m.block_table)) for m in sequences]
    assert after == before


@pytest.mark.parametrize("row_steps", [[1, 2, 3], [0, 1, 2, 2], [1, 1, 1, 3]])
def test_impossible_row_steps_are_refused(target: LoadedModel, row_steps: list[int]) -> None:
    with forwards(target.model) as seen, pytest.raises(ValueError, match="each sequence needs 1 to num_steps = 2"):
        worker(target, num_blocks=200).execute_model_multi_step(batch(2, 4, seed=0), 2, row_steps=row_steps)
    assert not seen


def test_no_steps_and_no_sequences_are_refused(target: LoadedModel) -> None:
    with pytest.raises(ValueError, match="1 to num_steps = 0"):
        worker(target, num_blocks=200).execute_model_multi_step(batch(1, 4, seed=0), 0)
    with pytest.raises(ValueError, match="num_steps = 2"):
        worker(target).execute_model_multi_step([], 2)


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_a_call_without_a_rewind_since_the_last_is_refused(target: LoadedModel, num_steps: int) -> None:
    sequences = batch(num_steps, 4, seed=0)
    engine = worker(target, num_blocks=200)
    with torch.inference_mode():
        engine.execute_model_multi_step(sequences, num_steps)
        with forwards(target.model) as seen, pytest.raises(ValueError, match="rewind it after each round"):
            engine.execute_model_multi_step(sequences, num_steps)
    assert not seen


def test_a_sequence_with_nothing_to_feed_is_not_given_its_neighbors_logits(target: LoadedModel) -> None:
    """After a single step without a rewind ``num_computed_tokens`` equals the length. The check once asked only for
    ``num_computed_tokens`` beyond it; so the row was empty, and its "last" token that of the row packed before it."""
    first, second = batch(1, 4, seed=0)[:2]
    engine = worker(target, num_blocks=200)
    with torch.inference_mode():
        engine.execute_model([second])
        with pytest.raises(ValueError, match=r"sequence 1 of request r1 .* rewind it after each round"):
            engine.execute_model([first, second])
