"""The gate before a run: silent on a sound engine, and loud about every planted fault, in float32 and in bfloat16, in
the draft and in the target.

Faults are planted once the models are loaded, so that the checks at load do not see them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import spec_harness.run
from spec_harness.build import Evaluation
from spec_harness.config import EvalConfig
from spec_harness.evaluation.integrity import SIZES, IntegrityError, require, run_gate
from spec_harness.evaluation.results import Check, read_results
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.spec_decode.engine import EngineSettings
from spec_harness.spec_decode.multi_step_worker import MultiStepWorker
from spec_harness.worker.attention import PagedBatch, QueryGroup
from spec_harness.worker.model_loader import LoadedModel, prepare
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from spec_harness.worker.worker import Worker
from tests.helpers import noisy_copy, prompts, tiny_loaded, tiny_model
from tests.run_helpers import spec_eval, status_of

SETTINGS = EngineSettings(block_size=4, num_blocks=100, max_num_seqs=4, max_proposal_len=4)
PROMPTS = prompts(8, seed=4, low=10, high=40)


@dataclass(frozen=True)
class Pair:
    target: LoadedModel
    draft: LoadedModel

    def of(self, role: str) -> LoadedModel:
        return self.draft if role == "draft" else self.target

    def checks(self, level: str = "quick", settings: EngineSettings = SETTINGS) -> dict[str, Check]:
        return {c.name: c for c in run_gate(SIZES[level], self.target, self.draft, settings, PROMPTS)}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """With a sliding window, so that there is one to get wrong."""
    target = prepare(tiny_model("mistral", dtype=request.param, sliding_window=12), where="target", max_model_len=None)
    return Pair(target, noisy_copy(target, scale=0.02))


@pytest.mark.parametrize("level", ["quick", "full"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_sound_engine_passes(pair: Pair, level: str, block_size: int) -> None:
    checks = pair.checks(level, replace(SETTINGS, block_size=block_size))
    assert len(checks) == 7
    assert {c.verdict for c in checks.values()} == {"pass"}
    require(list(checks.values()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "gemma2"])
def test_sound_models_of_other_architectures_pass(model_type: str, dtype: str) -> None:
    target = prepare(tiny_model(model_type, dtype=dtype), where="target", max_model_len=None)
    for draft in (noisy_copy(target, scale=0.02), target):
        checks = Pair(target, draft).checks("full")
        assert {c.verdict for c in checks.values()} == {"pass"}, checks


def of_role(runner: ModelRunner, loaded: LoadedModel) -> bool:
    return runner.model is loaded.model


def flipped_table_entry(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """Once, a forward is given another sequence's block in the place of one that a sequence has just filled."""
    run, calls = ModelRunner.run, 0

    def flip(self: ModelRunner, rows: Sequence[QueryRow], pending: Tensor | None = None) -> Tensor:
        nonlocal calls
        calls += of_role(self, loaded) and rows[0].start > 0
        if calls == 2 and len(rows) > 1:
            calls += 1
            table, block = list(rows[0].block_table), (rows[0].start - 2) // SETTINGS.block_size
            table[block] = rows[1].block_table[block]
            rows = [replace(rows[0], block_table=table), *rows[1:]]
        return run(self, rows, pending)

    patch.setattr(ModelRunner, "run", flip)


def skipped_write(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """Once, the last layer's keys and values of a step after the prefill are not written."""
    run, write = ModelRunner.run, KVCache.write
    state = {"skip": False, "calls": 0}

    def watched(self: ModelRunner, rows: Sequence[QueryRow], pending: Tensor | None = None) -> Tensor:
        catches_up = rows[0].start > 0 and bool(rows[0].token_ids)  # what is fed is committed, so stays
        state["calls"] += of_role(self, loaded) and catches_up
        state["skip"] = state["calls"] == 2
        state["calls"] += state["skip"]
        return run(self, rows, pending)

    def skip(self: KVCache, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        if not (state["skip"] and layer == 1):
            write(self, layer, slots, key, value)

    patch.setattr(ModelRunner, "run", watched)
    patch.setattr(KVCache, "write", skip)


def _rewind_by(patch: pytest.MonkeyPatch, loaded: LoadedModel, to: Callable[[int, int], int]) -> None:
    """``to`` gives ``num_computed`` from what was computed and the new length."""
    rewind = Worker.rewind

    def wrong(self: Worker, seq_id: int, length: int) -> None:
        before = self.num_computed(seq_id)
        rewind(self, seq_id, length)
        if before and of_role(self.runner, loaded):
            self._num_computed[seq_id] = to(before, length)

    patch.setattr(Worker, "rewind", wrong)


def rewound_too_few(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """A rejected token's slot counts as computed."""
    _rewind_by(patch, loaded, lambda computed, length: min(computed, length))


def moved_forward(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """A slot that was never written counts as computed: the ancestors' fault."""
    _rewind_by(patch, loaded, lambda computed, length: length - 1)


def rewound_too_many(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    _rewind_by(patch, loaded, lambda computed, length: max(0, min(computed, length - 1) - 1))


def _attending(patch: pytest.MonkeyPatch, loaded: LoadedModel, change: Callable[[QueryGroup], QueryGroup]) -> None:
    build, run = PagedBatch.build.__func__, ModelRunner.run
    state = {"planted": False}

    def watched(self: ModelRunner, rows: Sequence[QueryRow], pending: Tensor | None = None) -> Tensor:
        state["planted"] = of_role(self, loaded)
        return run(self, rows, pending)

    def changed(cls: type[PagedBatch], *args: Any, **options: Any) -> PagedBatch:
        batch = build(cls, *args, **options)
        return replace(batch, groups=[change(g) for g in batch.groups]) if state["planted"] else batch

    patch.setattr(ModelRunner, "run", watched)
    patch.setattr(PagedBatch, "build", classmethod(changed))


def sees_the_next_token(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    _attending(patch, loaded, lambda group: replace(group, positions=group.positions + 1))


def does_not_see_itself(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    _attending(patch, loaded, lambda group: replace(group, positions=(group.positions - 1).clamp_min(0)))


def window_off_by_one(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    class Narrower(QueryGroup):
        def visible(self, window: int | None) -> Tensor:
            return super().visible(None if window is None else window - 1)

    _attending(patch, loaded, lambda group: Narrower(group.tokens, group.positions, group.slots))


def wrong_positions(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """Steps after the prefill are told positions one too high; the slots are right."""
    forward = ModelRunner._forward

    def shifted(self: ModelRunner, ids: Tensor, positions: Tensor, *args: Any) -> Tensor:
        decoding = of_role(self, loaded) and int(positions.min()) > 0
        return forward(self, ids, positions + 1 if decoding else positions, *args)

    patch.setattr(ModelRunner, "_forward", shifted)


FAULTS = [
    flipped_table_entry,
    skipped_write,
    rewound_too_few,
    moved_forward,
    rewound_too_many,
    sees_the_next_token,
    does_not_see_itself,
    window_off_by_one,
    wrong_positions,
]
Fault = Callable[[pytest.MonkeyPatch, LoadedModel], None]


@pytest.fixture
def planted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault, str], Pair]:
    def plant(fault: Fault, role: str) -> Pair:
        fault(monkeypatch, pair.of(role))
        return pair

    return plant


@pytest.mark.parametrize("level", ["quick", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_the_gate(
    planted: Callable[[Fault, str], Pair], fault: Fault, role: str, level: str
) -> None:
    checks = planted(fault, role).checks(level)
    failed = {name for name, check in checks.items() if check.verdict == "fail"}
    print(fault.__name__, role, failed)
    assert failed
    with pytest.raises(IntegrityError, match="allowed"):
        require(list(checks.values()))


SMALL = ("data.limit=4", "sampling.max_new_tokens=8", "max_num_seqs=2", "baseline=off")


def plant_after_build(monkeypatch: pytest.MonkeyPatch, fault: Fault, role: str) -> None:
    build: Callable[[EvalConfig], Evaluation] = spec_harness.run.build

    def planted_build(config: EvalConfig) -> Evaluation:
        evaluation = build(config)
        loaded = getattr(evaluation, role)
        fault(monkeypatch, loaded)
        return evaluation

    monkeypatch.setattr(spec_harness.run, "build", planted_build)


@pytest.mark.usefixtures("clean_process")
@pytest.mark.parametrize(
    ("fault", "role", "dtype", "check"),
    [
        (rewound_too_many, "draft", "float32", "draft: tokens in the KV cache after a round (deviation): 1, allowed 0"),
        (skipped_write, "target", "bfloat16", "target: KV cache against a fresh prefill"),
        (wrong_positions, "draft", "bfloat16", "draft: KV cache against a fresh prefill"),
    ],
)
def test_a_failing_gate_ends_the_run_with_exit_1_and_names_the_check(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fault: Fault, role: str, dtype: str, check: str
) -> None:
    plant_after_build(monkeypatch, fault, role)
    dtypes = (f"target.dtype={dtype}", f"draft.dtype={dtype}")
    assert spec_eval(*SMALL, *dtypes, "integrity=quick", "kv_cache.block_size=4") == 1
    assert check in capfd.readouterr().err
    status = status_of(Path("run"))
    assert status["state"] == "failed"
    assert status["error"].startswith("IntegrityError: ")
    assert check in status["error"]
    assert status["requests_done"] == 0
    assert not Path("run/results.json").exists()


@pytest.mark.usefixtures("clean_process")
@pytest.mark.parametrize("level", ["quick", "full"])
def test_the_gate_of_a_run_is_in_its_results(level: str) -> None:
    assert spec_eval(*SMALL, f"integrity={level}") == 0
    integrity = read_results(Path("run/results.json")).integrity
    assert integrity.level == level
    assert len(integrity.checks) == 9  # two at load
    assert {check.verdict for check in integrity.checks} == {"pass"}


@pytest.mark.usefixtures("clean_process")
@pytest.mark.parametrize("proposal", ["none", "ngram"])
def test_without_a_draft_model_the_target_is_tried_alone(proposal: str) -> None:
    assert spec_eval(*SMALL, "integrity=quick", f"proposal={proposal}") == 0
    names = [check.name for check in read_results(Path("run/results.json")).integrity.checks]
    assert len(names) == 4
    assert not any("draft" in name for name in names)


@pytest.mark.usefixtures("clean_process")
def test_a_draft_of_another_dtype_is_measured_by_its_own_rounding() -> None:
    """Both caches were once held to the target's tolerance, so that a bfloat16 draft of a float32 target failed."""
    assert spec_eval(*SMALL, "integrity=quick", "target.dtype=float32", "draft.dtype=bfloat16") == 0
    checks = {c.name: c for c in read_results(Path("run/results.json")).integrity.checks}
    figures = {name: check for name, check in checks.items() if "fresh prefill" in name}
    target, draft = (next(c for name, c in figures.items() if name.startswith(role)) for role in ("target", "draft"))
    assert target.tolerance is not None
    assert draft.tolerance is not None
    assert draft.figure is not None
    assert target.tolerance < draft.figure <= draft.tolerance


@pytest.mark.usefixtures("clean_process")
def test_the_time_of_the_gate_on_the_packaged_pair_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told, not asserted: machines differ."""
    seconds: list[float] = []

    def timed(*args: Any) -> list[Check]:
        began = time.perf_counter()
        checks = run_gate(*args)
        seconds.append(time.perf_counter() - began)
        return checks

    monkeypatch.setattr(spec_harness.run, "run_gate", timed)
    assert spec_eval(*SMALL, "integrity=quick") == 0
    with capsys.disabled():
        print(f"\nquick gate on the packaged pair: {seconds[0]:.2f} s")


@pytest.mark.usefixtures("clean_process")
@pytest.mark.slow
def test_half_precision_on_the_packaged_pair_differs_from_the_baseline_by_ties_only() -> None:
    """Exit 1 would mean a fault. Some requests differ, so there was something to judge."""
    dtypes = ("target.dtype=bfloat16", "draft.dtype=bfloat16")
    assert spec_eval(*dtypes, "data.limit=16", "baseline=measure", "integrity=full") == 0
    results = read_results(Path("run/results.json"))
    equality = results.integrity.baseline_equality
    assert equality is not None
    print(equality)
    assert equality.fault == 0
    assert equality.equal + equality.tie == 16
    assert {check.verdict for check in results.integrity.checks} == {"pass"}


def test_a_draft_with_few_positions_is_tried_within_them() -> None:
    """Prompts were once cut to the target's maximum only: a draft of 16 positions then never ran in the gate, and
    whatever was wrong with it passed."""
    target = tiny_loaded()
    short = noisy_copy(target, scale=0.02, max_model_len=16)
    checks = run_gate(SIZES["quick"], target, short, SETTINGS, PROMPTS)
    assert {c.verdict for c in checks} == {"pass"}
    assert all(c.figure is not None for c in checks)


def test_a_draft_that_is_never_accepted_leaves_no_fault_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hole after a full acceptance never comes about with such a draft; the target as its own draft shows it."""
    target, stranger = tiny_loaded(), tiny_loaded(seed=5)

    class LastTokenOnlyWorker(MultiStepWorker):
        def rewind(self, seq_id: int, length: int) -> None:
            if self.num_computed(seq_id):
                self._num_computed[seq_id] = length - 1

    def failed() -> list[str]:
        checks = run_gate(SIZES["quick"], target, stranger, replace(SETTINGS, max_proposal_len=1), PROMPTS)
        return [check.name for check in checks if check.verdict == "fail"]

    assert not failed()
    monkeypatch.setattr("spec_harness.spec_decode.engine.MultiStepWorker", LastTokenOnlyWorker)
    assert any("tokens in the KV cache" in name for name in failed())
