"""Runs that go wrong on the way: the exit code, what status.json says, and what is kept of the finished requests."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest
import torch

import spec_harness.run
from spec_harness.build import Evaluation
from spec_harness.cli.report import main
from spec_harness.engine.verifiers.rejection import RejectionSampler, Verification
from spec_harness.metrics.counts import ProposalCounts
from spec_harness.report.load import load_run
from spec_harness.results.schema import read_results
from tests.run_helpers import QUIET, generations_of, spec_eval, status_of

SMALL = ("data.limit=6", "sampling.max_new_tokens=6", "max_num_seqs=2")

pytestmark = pytest.mark.usefixtures("clean_process")


def parquet_rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(Path("run") / name).to_pylist()
    return rows


def assert_finished_requests_are_kept(*, at_least: int) -> None:
    """The same requests in each file, every one of them whole."""
    generations = generations_of(Path("run"))
    requests = parquet_rows("requests.parquet")
    assert len(generations) >= at_least
    assert [row["request_id"] for row in generations] == [row["request_id"] for row in requests]
    emitted = {row["request_id"]: 1 for row in requests}
    for row in parquet_rows("rounds.parquet"):
        emitted[row["request_id"]] += row["num_emitted"]
    assert emitted == {row["request_id"]: len(row["token_ids"]) for row in generations}


def test_a_verifier_that_emits_a_wrong_token_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    verify: Callable[..., Verification] = RejectionSampler.verify

    def wrong(self: RejectionSampler, target_probs: torch.Tensor, *args: Any) -> Verification:
        """The token after the accepted prefix is the last but one in the target's favor; the baseline is left alone."""
        right = verify(self, target_probs, *args)
        if target_probs.shape[1] == 1:
            return right
        output = right.output_token_ids.clone()
        rows = torch.arange(len(output))
        output[rows, right.num_accepted] = (output[rows, right.num_accepted] + 1) % target_probs.shape[-1]
        return replace(right, output_token_ids=output)

    monkeypatch.setattr(RejectionSampler, "verify", wrong)
    assert spec_eval(*SMALL) == 1
    assert "BaselineFaultError" in capfd.readouterr().err
    equality = read_results(Path("run/results.json")).integrity.baseline_equality
    assert equality is not None
    assert equality.fault == 6
    status = status_of(Path("run"))
    assert (status["state"], status["requests_done"]) == ("failed", 6)
    assert status["error"].startswith("BaselineFaultError: 6 of 6 greedy outputs differ from the baseline")
    assert_finished_requests_are_kept(at_least=6)
    assert {row["baseline_verdict"] for row in parquet_rows("requests.parquet")} == {"fault"}


def test_a_count_that_was_tampered_with_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from_rounds: Callable[..., ProposalCounts] = ProposalCounts.from_rounds

    def twice(cls: type[ProposalCounts], rounds: Any, *, max_proposal_len: int, num_prefill_tokens: int) -> Any:
        return from_rounds(rounds, max_proposal_len=max_proposal_len, num_prefill_tokens=2 * num_prefill_tokens)

    monkeypatch.setattr(ProposalCounts, "from_rounds", classmethod(twice))
    assert spec_eval(*SMALL) == 1
    status = status_of(Path("run"))
    assert status["state"] == "failed"
    assert status["error"].startswith("IdentityError: identity broken: num_prefill_tokens + num_emitted_tokens")
    assert not Path("run/results.json").exists()
    assert_finished_requests_are_kept(at_least=6)


def test_a_request_that_is_run_twice_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    build: Callable[..., Evaluation] = spec_harness.run.build

    def with_a_double(*args: Any) -> Evaluation:
        evaluation = build(*args)
        evaluation.data.requests[-1] = evaluation.data.requests[0]
        return evaluation

    monkeypatch.setattr(spec_harness.run, "build", with_a_double)
    assert spec_eval("baseline=off", *SMALL) == 1
    assert "request ids seen = data set" in status_of(Path("run"))["error"]


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("sampling", ["greedy", "temperature"])
def test_weights_that_become_nan_end_the_run(
    role: Literal["target", "draft"], sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are planted after the checks at load, in the last layer, once requests have finished."""
    build: Callable[..., Evaluation] = spec_harness.run.build

    def planted(*args: Any) -> Evaluation:
        evaluation = build(*args)
        loaded = getattr(evaluation, role)

        def spoil(*_: Any) -> None:
            if evaluation.runs[0].records:
                with torch.inference_mode():
                    list(loaded.model.parameters())[-1].fill_(float("nan"))

        loaded.model.register_forward_pre_hook(spoil)
        return evaluation

    monkeypatch.setattr(spec_harness.run, "build", planted)
    assert spec_eval(f"sampling={sampling}", "baseline=off", *SMALL) == 1
    status = status_of(Path("run"))
    assert status["state"] == "failed"
    assert "NaN" in status["error"]
    assert 0 < status["requests_done"] < 6
    assert not Path("run/results.json").exists()
    assert_finished_requests_are_kept(at_least=status["requests_done"])


def test_a_fault_in_a_run_leaves_no_other_run_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed run the same process runs the next one."""
    with monkeypatch.context() as patch:
        patch.setattr(RejectionSampler, "verify", lambda *_: 1 / 0)
        assert spec_eval("baseline=off", *SMALL) == 1
    assert status_of(Path("run"))["error"] == "ZeroDivisionError: division by zero"
    assert spec_eval("baseline=off", *SMALL, run_dir="next") == 0


def start(*overrides: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "spec_harness", "logger=none", "hydra.run.dir=run", *QUIET, *overrides]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, preexec_fn=_heed_interrupts, **quiet)


def _heed_interrupts() -> None:
    """A test started in the background ignores interrupts, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_generations(process: subprocess.Popen[bytes], count: int) -> None:
    path, deadline = Path("run/generations.jsonl"), time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


LONG = ("max_num_seqs=2", "sampling.max_new_tokens=48", "sampling.ignore_eos=true", "baseline=off")


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_run_keeps_the_requests_it_finished(capsys: pytest.CaptureFixture[str]) -> None:
    """Its directory says of exactly these what a finished run's says of all."""
    process = start(*LONG)
    wait_for_generations(process, 3)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    generations = generations_of(Path("run"))
    assert 3 <= len(generations) < 72
    assert {len(row["token_ids"]) for row in generations} == {48}
    status = status_of(Path("run"))
    assert (status["state"], status["error"], status["requests_total"]) == ("running", None, 72)
    assert len(generations) - 1 <= status["requests_done"] <= len(generations)
    assert not Path("run/results.json").exists()
    assert_figures_are_those_of_the_finished([row["request_id"] for row in generations])
    main(["show", "run"])
    shown = capsys.readouterr().out
    assert f"the figures of the {len(generations)} of 72 sequences that had finished" in " ".join(shown.split())


def assert_figures_are_those_of_the_finished(request_ids: list[str]) -> None:
    """Recomputed from the log's lines by a plain loop."""
    lines = Path("run/round_log.jsonl").read_text(encoding="utf-8").split("\n")[1:]
    rows = [json.loads(line) for line in lines[:-1]]  # what follows the last line end was cut off
    assert [row["request_id"] for row in rows] == request_ids
    rounds = [round_ for row in rows for round_ in row["rounds"]]
    proposed = sum(round_["proposal_len"] for round_ in rounds)
    run = load_run("run")
    p = run.results.proposal
    assert run.results.status == "interrupted"
    assert (p.num_requests, p.num_rounds, p.num_draft_tokens) == (len(rows), len(rounds), proposed)
    assert p.num_output_tokens == sum(len(row["token_ids"]) for row in rows)
    assert p.acceptance_rate.value == sum(round_["num_accepted"] for round_ in rounds) / proposed
    assert run.results.timing is not None
    speed = sum(len(row["token_ids"]) for row in rows) / sum(row["engine_s"] for row in rows)
    assert run.results.timing.speculative_tokens_per_second.value == pytest.approx(speed)
    assert run.results.timing.speedup.value is None
    assert (len(run.requests), len(run.rounds)) == (len(rows), len(rounds))
    assert [row["request_id"] for row in run.generations()] == request_ids


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="interrupts a process")
def test_an_interrupted_run_says_so() -> None:
    process = start(*LONG)
    wait_for_generations(process, 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 1
    status = status_of(Path("run"))
    assert (status["state"], status["error"]) == ("failed", "interrupted")
    assert_finished_requests_are_kept(at_least=3)


def test_the_status_says_running_from_the_first_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def build(*args: Any) -> Evaluation:
        seen.append(json.loads(Path("run/status.json").read_text()))
        raise RuntimeError("enough")

    monkeypatch.setattr(spec_harness.run, "build", build)
    assert spec_eval() == 1
    assert (seen[0]["state"], seen[0]["requests_total"]) == ("running", None)
    assert status_of(Path("run"))["error"] == "RuntimeError: enough"
