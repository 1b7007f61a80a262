"""The LightningModule: every pass runs every request once, the batch stays full, and who must know is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import pytest
from lightning import Trainer

from spec_harness.data.encoder import PromptDataModule
from spec_harness.evaluation.module import Pass, SpecDecodeEvalModule
from spec_harness.metrics.counts import ProposalCounts, counts_by_request
from spec_harness.models.load import LoadedModel
from spec_harness.requests import Request, RequestRecord
from tests.helpers import prompts, request, run, scheduler

K = 3

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*")


@dataclass
class Log:
    """What the module told, in order."""

    finished: list[tuple[str, str, int]] = field(default_factory=list)  # pass, request id, turn
    running: list[int] = field(default_factory=list)  # sequences that ran after each engine step of the first pass


def requests_of(max_new_tokens: Sequence[int]) -> list[Request]:
    ids = prompts(len(max_new_tokens))
    return [request(i, ids[i], max_new_tokens=budget) for i, budget in enumerate(max_new_tokens)]


def evaluate(
    target: LoadedModel,
    draft: LoadedModel,
    requests: list[Request],
    *,
    batch: int = 2,
    next_turn: Callable[[Pass, RequestRecord], Request | None] = lambda current, record: None,
) -> tuple[SpecDecodeEvalModule, Log]:
    log = Log()
    passes = [
        Pass(name="speculative", scheduler=partial(scheduler, target, draft, k=K, batch=batch)),
        Pass(name="baseline", scheduler=partial(scheduler, target, None, batch=batch)),
    ]

    def on_step(module: SpecDecodeEvalModule) -> None:
        if module.current_pass is passes[0]:
            assert module._scheduler is not None
            log.running.append(module._scheduler.num_running)

    module = SpecDecodeEvalModule(
        target,
        draft,
        passes,
        num_requests=len(requests),
        max_proposal_len=K,
        next_turn=next_turn,
        on_finished=lambda current, record: log.finished.append((current.name, record.request_id, record.turn)),
        on_step=on_step,
    )
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    trainer.test(module, datamodule=PromptDataModule(requests, max_num_seqs=batch, num_passes=2), verbose=False)
    return module, log


def test_each_pass_runs_every_request_once(target: LoadedModel, draft: LoadedModel) -> None:
    requests = requests_of([9, 12, 3, 7, 10])
    module, log = evaluate(target, draft, requests)
    names = sorted(item.request_id for item in requests)
    for current in module.passes:
        assert sorted(record.request_id for record in current.records) == names
        assert current.num_output_tokens == 9 + 12 + 3 + 7 + 10
        assert current.wall_s > 0
        assert current.tokens_per_second == current.num_output_tokens / current.wall_s
    assert [name for name, _, _ in log.finished] == ["speculative"] * 5 + ["baseline"] * 5


def test_outputs_are_the_engine_s_own(target: LoadedModel, draft: LoadedModel) -> None:
    """Handed over in batches by a data loader they are what they are when all are queued at once."""
    requests = requests_of([9, 12, 3, 7, 10])
    module, _ = evaluate(target, draft, requests)
    alone = run(scheduler(target, draft, k=K, batch=1), requests)
    for current in module.passes:
        outputs = {record.request_id: record.token_ids for record in current.records}
        assert outputs == {name: record.token_ids for name, record in alone.items()}


def test_a_free_slot_is_taken_while_the_rest_of_the_batch_still_runs(target: LoadedModel, draft: LoadedModel) -> None:
    """Were a batch run to its end, the third request would wait for the second, which is long."""
    module, log = evaluate(target, draft, requests_of([2, 40, 4, 4, 4]), batch=2)
    assert [record.request_id for record in module.passes[0].records][-1] == "r1"
    assert max(log.running) <= 2


def test_the_metric_counts_the_first_pass_alone(target: LoadedModel, draft: LoadedModel) -> None:
    module, _ = evaluate(target, draft, requests_of([9, 12, 3]))
    first, baseline = module.passes
    counts = module.proposals.compute()
    own = counts_by_request(first.records, max_proposal_len=K).values()
    assert counts.num_draft_tokens == sum(item.num_draft_tokens for item in own) > 0
    assert counts.num_prefill_tokens == 3
    pooled = sum(own, ProposalCounts(max_proposal_len=K))
    assert counts.accepted_length_histogram == pooled.accepted_length_histogram
    assert first.acceptance_rate == counts.num_accepted_tokens / counts.num_draft_tokens
    assert baseline.acceptance_rate is None
    assert baseline.stats.num_draft_tokens == baseline.stats.num_accepted_tokens == 0


def test_the_next_turn_of_a_conversation_is_run_in_its_own_pass(target: LoadedModel, draft: LoadedModel) -> None:
    requests = requests_of([4, 5, 6])

    def next_turn(current: Pass, record: RequestRecord) -> Request | None:
        """The second request has three turns; each goes on where the one before ended."""
        if record.request_id != "r1" or record.turn == 2:
            return None
        ids = record.prompt_token_ids + record.token_ids
        return replace(requests[1], turn=record.turn + 1, prompt_token_ids=ids)

    module, log = evaluate(target, draft, requests, next_turn=next_turn)
    assert module.follow_ups == ["r1", "r1"]  # of the first pass
    for current in module.passes:
        turns = [record for record in current.records if record.request_id == "r1"]
        assert [record.turn for record in turns] == [0, 1, 2]
        for before, after in pairwise(turns):
            assert after.prompt_token_ids == before.prompt_token_ids + before.token_ids
        assert len(current.records) == 5
    assert module.proposals.compute().num_prefill_tokens == 5
    assert log.finished.count(("baseline", "r1", 2)) == 1


def test_a_pass_lets_go_of_its_caches_and_keeps_its_figures(target: LoadedModel, draft: LoadedModel) -> None:
    module, _ = evaluate(target, draft, requests_of([9, 12, 3]))
    assert module._scheduler is None
    for current in module.passes:
        assert 0 < current.blocks_peak <= current.blocks_total
        assert 0 < current.stats.tokens_held <= current.stats.slots_held
        assert sum(current.stage_s.values()) <= current.wall_s
    assert module.passes[0].stage_s["propose"] > 0


def test_a_pass_that_has_not_run_knows_no_rates() -> None:
    fresh = Pass(name="speculative", scheduler=lambda: pytest.fail("not to be called"))
    assert (fresh.acceptance_rate, fresh.tokens_per_second, fresh.num_output_tokens) == (None, None, 0)
