"""The gate as part of a run: its exit code, what it leaves in the files, and half precision on the packaged pair."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spec_harness.evaluation.checks
import spec_harness.run
from spec_harness.build import Evaluation
from spec_harness.results.schema import Check, read_results
from spec_harness.trust.kv_gate import run_gate
from tests.faults import Fault, rewound_too_many, skipped_write, wrong_positions
from tests.run_helpers import spec_eval, status_of

pytestmark = pytest.mark.usefixtures("clean_process")

SMALL = ("data.limit=4", "sampling.max_new_tokens=8", "max_num_seqs=2", "baseline=off")


def plant_after_build(monkeypatch: pytest.MonkeyPatch, fault: Fault, role: str) -> None:
    build: Callable[..., Evaluation] = spec_harness.run.build

    def planted_build(*args: Any) -> Evaluation:
        evaluation = build(*args)
        loaded = getattr(evaluation, role)
        fault(monkeypatch, loaded)
        return evaluation

    monkeypatch.setattr(spec_harness.run, "build", planted_build)


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


@pytest.mark.parametrize("level", ["quick", "full"])
def test_the_gate_of_a_run_is_in_its_results(level: str) -> None:
    assert spec_eval(*SMALL, f"integrity={level}") == 0
    integrity = read_results(Path("run/results.json")).integrity
    assert integrity.level == level
    assert len(integrity.checks) == 9  # two at load
    assert {check.verdict for check in integrity.checks} == {"pass"}


@pytest.mark.parametrize("proposal", ["none", "ngram"])
def test_without_a_draft_model_the_target_is_tried_alone(proposal: str) -> None:
    assert spec_eval(*SMALL, "integrity=quick", f"proposal={proposal}") == 0
    names = [check.name for check in read_results(Path("run/results.json")).integrity.checks]
    assert len(names) == 4
    assert not any("draft" in name for name in names)


def test_a_draft_of_another_dtype_is_measured_by_its_own_rounding() -> None:
    """Both caches were once held to the target's tolerance, so that a bfloat16 draft of a float32 target failed."""
    # The quick gate is so short that a bfloat16 draft may round alike in both passes.
    assert spec_eval(*SMALL, "integrity=full", "target.dtype=float32", "draft.dtype=bfloat16") == 0
    checks = {c.name: c for c in read_results(Path("run/results.json")).integrity.checks}
    figures = {name: check for name, check in checks.items() if "fresh prefill" in name}
    target, draft = (next(c for name, c in figures.items() if name.startswith(role)) for role in ("target", "draft"))
    assert target.tolerance is not None
    assert draft.tolerance is not None
    assert draft.figure is not None
    assert target.tolerance < draft.figure <= draft.tolerance


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

    monkeypatch.setattr(spec_harness.evaluation.checks, "run_gate", timed)
    assert spec_eval(*SMALL, "integrity=quick") == 0
    with capsys.disabled():
        print(f"\nquick gate on the packaged pair: {seconds[0]:.2f} s")


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
