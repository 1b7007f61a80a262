"""The progress bar: on a terminal it says how far the run is, elsewhere nothing at all."""

import io
import re
from functools import cache

import pytest
from lightning import LightningModule, Trainer
from rich.console import Console

from spec_harness.engine import EngineReport, EngineStats
from spec_harness.evaluation import progress
from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.evaluation.module import SpecDecodeEvalModule
from spec_harness.evaluation.progress import EvalProgress, phase
from tests.factories import header_of, request_of


def bar(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, width: int = 100) -> tuple[EvalProgress, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, force_interactive=terminal, width=width)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    return EvalProgress(), output


def state(done: int, *, name: str = "speculative", tokens_per_second: float = 123.4, drafted: int = 4) -> EngineRun:
    """An engine run with ``done`` finished sequences, which accepted a quarter of what was drafted."""
    stats = EngineStats(
        num_draft_tokens=drafted, num_accepted_tokens=drafted // 4, num_emitted_tokens=round(10 * tokens_per_second)
    )
    return EngineRun(
        name=name,
        make_engine=lambda: pytest.fail("not to be called"),
        records=[request_of([])] * done,
        wall_s=10.0,
        report=EngineReport(stats=stats),
    )


@cache
def trainer() -> Trainer:
    return Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)


def drive(shown: EvalProgress, *states: EngineRun, total: int = 4) -> None:
    module = SpecDecodeEvalModule([states[0]], header=header_of(total, max_proposal_len=2), requests=[])
    shown.on_phase(trainer(), module, "checks")
    shown.on_phase(trainer(), module, "engine")
    for item in states:
        shown.on_engine_step(trainer(), module, item)
        shown._progress.refresh()
    shown.teardown(trainer(), module, "test")


def test_a_terminal_sees_each_engine_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, output = bar(monkeypatch, terminal=True)
    drive(shown, state(1), state(4), state(2, name="baseline", drafted=0))
    text = output.getvalue()
    for words in ("speculative", "1/4", "4/4", "baseline", "2/4", "123 tokens/s", "accepted 25%"):
        assert words in text


def test_a_total_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the later turns of conversations, which were not known at the start."""
    shown, output = bar(monkeypatch, terminal=True)
    drive(shown, state(4), state(5))
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


@pytest.mark.parametrize(
    ("terminal", "shown", "said"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_phase_is_said_where_somebody_looks(
    terminal: bool, shown: bool, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, force_interactive=terminal)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    with phase("loading", shown=shown):
        pass
    assert ("loading" in output.getvalue()) == (terminal and shown)
    assert (terminal and shown) or output.getvalue() == ""


def test_a_line_of_the_bar_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that is left stands last, and was cut."""
    shown, output = bar(monkeypatch, terminal=True, width=80)
    drive(shown, state(999, tokens_per_second=99_999.0), total=1000)
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", output.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]", plain)]
    assert max(map(len, lines)) <= 80
    (last,) = {line for line in lines if "999/1000" in line}
    assert last.endswith(" 999/1000 requests 99999 tokens/s accepted 25%  --:-- left")
