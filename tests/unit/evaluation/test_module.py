"""The LightningModule: every engine runs every request once, the batch stays full, and callbacks are told."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from lightning import Trainer

from spec_harness.build import build_engine
from spec_harness.data.conversations import Conversations
from spec_harness.engine import Engine, EngineSettings
from spec_harness.engine.stopping import StopCriteria
from spec_harness.evaluation.callbacks import EvalCallback
from spec_harness.evaluation.datamodule import PromptDataModule
from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.evaluation.module import SpecDecodeEvalModule
from spec_harness.models.load import LoadedModel
from spec_harness.requests import Request, RequestRecord
from tests.factories import header_of
from tests.helpers import decode, prompts, request, run, scheduler, spec_of

K = 3

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*")


class Log(EvalCallback):
    """What the module told, in order."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.finished: list[tuple[str, str, int]] = []  # engine run, request id, turn
        self.unfinished: list[int] = []  # sequences left after each engine step of the first run

    def on_phase(self, trainer: Any, pl_module: Any, phase: Any) -> None:
        self.phases.append(phase)

    def on_engine_step(self, trainer: Any, pl_module: Any, run: EngineRun) -> None:
        if run is pl_module.runs[0] and run.engine is not None:
            self.unfinished.append(run.engine.num_unfinished)

    def on_sequence_finished(self, trainer: Any, pl_module: Any, run: EngineRun, record: RequestRecord) -> None:
        assert run.records[-1].request_id  # it is there already
        self.finished.append((run.name, record.request_id, record.turn))


def requests_of(max_new_tokens: Sequence[int]) -> list[Request]:
    ids = prompts(len(max_new_tokens))
    return [request(i, ids[i], max_new_tokens=budget) for i, budget in enumerate(max_new_tokens)]


def engine(target: LoadedModel, draft: LoadedModel | None, batch: int) -> Engine:
    settings = EngineSettings(block_size=8, num_blocks=400, max_num_seqs=batch, max_proposal_len=K)
    made: Engine = build_engine(target, spec_of(draft), settings, StopCriteria(decode))
    return made


def evaluate(
    target: LoadedModel,
    draft: LoadedModel,
    requests: list[Request],
    *,
    batch: int = 2,
    conversations: Conversations | None = None,
    **trainer: Any,
) -> tuple[SpecDecodeEvalModule, Log]:
    log = Log()
    module = SpecDecodeEvalModule(
        [
            EngineRun(name="speculative", make_engine=partial(engine, target, draft, batch)),
            EngineRun(name="baseline", make_engine=partial(engine, target, None, batch)),
        ],
        header=header_of(len(requests), max_proposal_len=K),
        requests=requests,
        conversations=conversations,
    )
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    tester = Trainer(**{**quiet, **trainer}, callbacks=[log])
    tester.test(module, datamodule=PromptDataModule(requests, max_num_seqs=batch, num_passes=2), verbose=False)
    return module, log


def test_each_engine_runs_every_request_once(target: LoadedModel, draft: LoadedModel) -> None:
    requests = requests_of([9, 12, 3, 7, 10])
    module, log = evaluate(target, draft, requests)
    names = sorted(item.request_id for item in requests)
    for current in module.runs:
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
    for current in module.runs:
        outputs = {record.request_id: record.token_ids for record in current.records}
        assert outputs == {name: record.token_ids for name, record in alone.items()}


def test_a_free_slot_is_taken_while_the_rest_of_the_batch_still_runs(target: LoadedModel, draft: LoadedModel) -> None:
    """Were a batch run to its end, the third request would wait for the second, which is long."""
    module, log = evaluate(target, draft, requests_of([2, 40, 4, 4, 4]), batch=2)
    assert [record.request_id for record in module.runs[0].records][-1] == "r1"
    assert max(log.unfinished) <= 2


def test_the_results_are_the_first_run_s(target: LoadedModel, draft: LoadedModel) -> None:
    module, log = evaluate(target, draft, requests_of([9, 12, 3]))
    first, baseline = module.runs
    assert module.results is not None
    p = module.results.proposal
    assert p.num_draft_tokens == sum(r.proposal_len for record in first.records for r in record.rounds) > 0
    assert (p.num_prefill_tokens, p.num_output_tokens) == (3, 9 + 12 + 3)
    assert first.acceptance_rate == p.acceptance_rate.value
    assert baseline.acceptance_rate is None
    assert log.phases == ["checks", "warm_up", "engine", "engine", "results"]


def test_the_next_turn_of_a_conversation_is_run_in_its_own_pass(target: LoadedModel, draft: LoadedModel) -> None:
    requests = requests_of([4, 5, 6])

    class ThreeTurns(Conversations):
        """The second request has three turns; each goes on where the one before ended."""

        def __init__(self) -> None:
            self.cut_short = set()

        def restart(self) -> None:
            """It remembers nothing."""

        def next_turn(self, run: str, record: RequestRecord) -> Request | None:
            if record.request_id != "r1" or record.turn == 2:
                return None
            ids = record.prompt_token_ids + record.token_ids
            return replace(requests[1], turn=record.turn + 1, prompt_token_ids=ids)

    module, log = evaluate(target, draft, requests, conversations=ThreeTurns())
    for current in module.runs:
        turns = [record for record in current.records if record.request_id == "r1"]
        assert [record.turn for record in turns] == [0, 1, 2]
        for before, after in pairwise(turns):
            assert after.prompt_token_ids == before.prompt_token_ids + before.token_ids
        assert len(current.records) == 5
    assert module.results is not None
    assert module.results.proposal.num_prefill_tokens == 5
    assert log.finished.count(("baseline", "r1", 2)) == 1


def test_a_run_lets_go_of_its_engine_and_keeps_its_figures(target: LoadedModel, draft: LoadedModel) -> None:
    module, _ = evaluate(target, draft, requests_of([9, 12, 3]))
    for current in module.runs:
        assert current.engine is None
        assert current.report is not None
        assert current.report.blocks is not None
        assert 0 < current.report.blocks.peak <= current.report.blocks.total
        assert 0 < current.stats.tokens_held <= current.stats.slots_held
        assert current.stage_s is not None
        assert sum(current.stage_s.values()) <= current.wall_s
    first = module.runs[0].stage_s
    assert first is not None
    assert first["propose"] > 0


def test_a_run_that_has_not_begun_knows_no_rates() -> None:
    fresh = EngineRun(name="speculative", make_engine=lambda: pytest.fail("not to be called"))
    assert (fresh.acceptance_rate, fresh.tokens_per_second, fresh.num_output_tokens) == (None, None, 0)


def test_models_stay_where_they_were(target: LoadedModel, draft: LoadedModel) -> None:
    """Lightning moves a module's models to the CPU at its end; these are the engines'."""
    module, _ = evaluate(target, draft, requests_of([3]))
    assert list(module.parameters()) == []


def test_a_test_of_some_batches_is_partial_and_checked_against_what_was_enqueued(
    target: LoadedModel, draft: LoadedModel
) -> None:
    module, log = evaluate(target, draft, requests_of([4, 5, 6, 7, 8]), limit_test_batches=2)
    assert module.results is not None
    assert (module.results.status, module.results.proposal.num_requests) == ("partial", 4)
    assert sorted(request_id for name, request_id, _ in log.finished if name == "baseline") == ["r0", "r1", "r2", "r3"]
    whole, _ = evaluate(target, draft, requests_of([4, 5, 6, 7]), limit_test_batches=2)
    assert whole.results is not None
    assert whole.results.status == "done"
