"""The LightningModule in a plain trainer: what it returns and logs, and an engine that is none of ours."""

import csv
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from lightning import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger

from spec_harness.build import build
from spec_harness.config import DataConfig, EvalConfig, SamplingConfig
from spec_harness.engine.engine import Capabilities, EngineReport, EngineStats
from spec_harness.evaluation.callbacks import KeepFiles
from spec_harness.evaluation.datamodule import PromptDataModule
from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.evaluation.module import SpecDecodeEvalModule
from spec_harness.requests import Request, RequestRecord
from spec_harness.results.figures import plain_numbers
from spec_harness.results.schema import read_results
from tests.factories import header_of, request_of, round_of
from tests.helpers import request
from tests.run_helpers import write_jsonl

pytestmark = [
    pytest.mark.usefixtures("clean_process"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*checkpoint.*"),
]
QUIET: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "enable_checkpointing": False}


class Ends(Callback):
    """Any callback of a user's own: it finds the figures where Lightning keeps them."""

    found: dict[str, Any]

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.found = dict(trainer.callback_metrics)


def test_a_trainer_of_one_s_own_returns_and_logs_the_figures() -> None:
    sampling, data = SamplingConfig(max_new_tokens=6), DataConfig(limit=9)
    evaluation = build(EvalConfig(sampling=sampling, data=data, max_num_seqs=3))
    logger, ends = CSVLogger("logs", name="", version="csv"), Ends()
    trainer = Trainer(logger=logger, callbacks=[ends], limit_test_batches=2, **QUIET)
    returned = trainer.test(evaluation.module, datamodule=evaluation.data, verbose=False)
    results = evaluation.module.results
    assert results is not None
    assert (results.status, results.proposal.num_requests) == ("partial", 6)
    numbers = plain_numbers(results)
    assert {
        "proposal/acceptance_rate",
        "proposal/num_rounds",
        "timing/speedup",
        "timing/predicted_speedup",
        "kv/num_blocks",
        "integrity/baseline_equality/equal",
        "integrity/checks/0/figure",
    } <= numbers.keys()
    assert returned[0] == pytest.approx(numbers)  # logged as float32
    assert {key: float(value) for key, value in ends.found.items()} == pytest.approx(numbers)
    last = list(csv.DictReader(Path("logs/csv/metrics.csv").read_text().splitlines()))[-1]
    assert {key: float(last[key]) for key in numbers} == pytest.approx(numbers)


class FakeEngine:
    """Says 7 four times to every prompt: a token from its prefill, then a draft of two and a bonus, all accepted."""

    capabilities = Capabilities()

    def __init__(self) -> None:
        self.stats = EngineStats()
        self._waiting: deque[Request] = deque()

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting)

    @property
    def has_free_slot(self) -> bool:
        return not self._waiting

    def add(self, request: Request, *, arrival_s: float | None = None) -> None:
        self._waiting.append(request)

    def step(self) -> list[RequestRecord]:
        asked = self._waiting.popleft()
        self.stats.num_steps += 1
        judged = ("expected_acceptance", "draft_entropy", "target_entropy", "kl_target_draft", "target_rank_in_draft")
        unknown: dict[str, Any] = {key: [] for key in ("draft_probs", "target_probs", *judged)}
        round_ = round_of(2, 2, request_id=asked.request_id, output_token_ids=[7, 7, 7], **unknown)
        return [request_of([round_], token_ids=[7, 7, 7, 7], engine_s=0.01)]

    def finish(self) -> EngineReport:
        assert not self._waiting
        return EngineReport(stats=self.stats, notes=["It is a fake."])


def test_an_engine_of_forty_lines_runs_to_a_results_json() -> None:
    requests = [request(i, [1, 2, 3]) for i in range(5)]
    module = SpecDecodeEvalModule(
        [EngineRun(name=name, make_engine=FakeEngine) for name in ("speculative", "baseline")],
        header=header_of(len(requests), max_proposal_len=2),
        requests=requests,
    )
    Path("run").mkdir()
    trainer = Trainer(logger=False, callbacks=[KeepFiles(Path("run"), str)], **QUIET)
    trainer.test(module, datamodule=PromptDataModule(requests, max_num_seqs=2, num_passes=2), verbose=False)
    results = read_results(Path("run/results.json"))
    p, timing = results.proposal, results.timing
    assert (results.status, p.num_requests, p.num_rounds, p.num_output_tokens) == ("done", 5, 5, 20)
    assert (p.acceptance_rate.value, p.mean_acceptance_length.value) == (1.0, 3.0)
    assert p.expected_acceptance_rate.value is None
    assert timing is not None
    assert timing.speedup.value is not None
    assert (timing.step_times, timing.time_share, results.kv) == (None, None, None)
    assert (results.integrity.checks, results.integrity.baseline_equality) == ([], None)
    assert results.notes[:4] == [
        "It is a fake.",
        "The engine gives no figures of a KV cache.",
        "The engine does not time its stages.",
        "Nothing but the engine's own word speaks for these figures: no integrity checks, no step times.",
    ]
    assert Path("run/rounds.parquet").exists()


def test_a_second_test_holds_the_same_conversations() -> None:
    """Later turns were not asked again."""
    write_jsonl(Path("turns.jsonl"), [{"turns": ["def add(a, b):", "now sub", "and mul"]}])
    evaluation = build(EvalConfig(sampling=SamplingConfig(max_new_tokens=4), data=DataConfig(path="turns.jsonl")))
    turns = []
    for _ in range(2):
        Trainer(logger=False, **QUIET).test(evaluation.module, datamodule=evaluation.data, verbose=False)
        turns.append([record.turn for record in evaluation.module.runs[0].records])
    assert turns == [[0, 1, 2]] * 2
