"""The progress bar: on a terminal it says how far the run is, elsewhere nothing at all."""

import io
from functools import cache

import pytest
from lightning import LightningModule, Trainer
from rich.console import Console

from spec_harness.evaluation import progress
from spec_harness.evaluation.progress import EvalProgress, PassProgress


def bar(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> tuple[EvalProgress, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, force_interactive=terminal, width=100)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    return EvalProgress(), output


def state(done: int, *, name: str = "speculative", total: int = 4, rate: float | None = 0.25) -> PassProgress:
    return PassProgress(name=name, done=done, total=total, tokens_per_second=123.4, acceptance_rate=rate)


@cache
def trainer() -> Trainer:
    return Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)


def drive(shown: EvalProgress, *states: PassProgress) -> None:
    shown.on_test_start(trainer(), LightningModule())
    for item in states:
        shown.report(item)
        shown._progress.refresh()
    shown.teardown(trainer(), LightningModule(), "test")


def test_a_terminal_sees_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, output = bar(monkeypatch, terminal=True)
    drive(shown, state(1), state(4), state(2, name="baseline", rate=None))
    text = output.getvalue()
    for words in ("speculative", "1/4", "4/4", "baseline", "2/4", "123 tokens/s", "acceptance 0.250"):
        assert words in text


def test_a_total_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the later turns of conversations, which were not known at the start."""
    shown, output = bar(monkeypatch, terminal=True)
    drive(shown, state(4, total=4), state(5, total=5))
    assert "5/5" in output.getvalue()


@pytest.mark.parametrize("end", ["teardown", "exception"])
def test_a_pipe_sees_nothing(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the empty line that rich prints when a bar is stopped, which was on stderr of every run in a script."""
    shown, output = bar(monkeypatch, terminal=False)
    if end == "exception":
        shown.on_exception(trainer(), LightningModule(), RuntimeError())
    drive(shown, state(1), state(4))
    assert output.getvalue() == ""


def test_a_disabled_bar_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning disables it on all processes but the first."""
    shown, output = bar(monkeypatch, terminal=True)
    shown.disable()
    drive(shown, state(1))
    assert output.getvalue() == ""
