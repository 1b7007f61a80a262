"""The command spec-report: what it prints, and its one line where it cannot."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_harness.cli.report import main
from spec_harness.results.schema import BaselineEquality, Estimate, IntegrityResults, TimingResults
from tests.factories import config, random_requests

Save = Callable[..., Path]


def timing(speedup: float | None, *, tokens_per_second: float | None = None) -> TimingResults:
    """Over plain decoding at 100 tokens/s, whose speed is not recorded."""
    interval = None if speedup is None else (speedup - 0.1, speedup + 0.1)
    speed = 100.0 * (speedup or 1.0) if tokens_per_second is None else tokens_per_second
    return TimingResults(
        speculative_tokens_per_second=Estimate(value=speed, n=10),
        baseline_tokens_per_second=Estimate(value=None, n=0),
        speedup=Estimate(value=speedup, ci95=interval, n=10),
    )


def printed(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(len(line) <= 100 for line in out.splitlines() if not line.startswith("Files: "))
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    return line


def test_show_prints_the_run_s_own_table(save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path / "run", notes=["mind the gap"])
    out = printed(capsys, "show", run)
    for words in (
        "acceptance rate",
        "95 % interval",
        "coverage",
        "near the end of the token budget",
        "integrity checks",
    ):
        assert words in out
    assert " - mind the gap" in out
    assert out.splitlines()[-1] == f"Files: {run}"


def test_show_of_a_sweep_has_the_best_job_first(
    save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job, speedup in enumerate((1.1, 0.9, 1.4)):
        overrides = (f"proposal.max_proposal_len={job + 1}", "data.limit=10")
        save_run(tmp_path / str(job), overrides=overrides, timing=timing(speedup))
    save_run(tmp_path / "3", overrides=("proposal.max_proposal_len=64",), error="UserError: no room [for] that")
    out = printed(capsys, "show", tmp_path)
    assert "4 jobs, 3 with results" in " ".join(out.split())  # a long path may push it to the next line
    assert "Use draft tiny-draft, proposal length 4. Expect 1.40x (95 % interval 1.30 to 1.50)" in " ".join(out.split())
    rows = [line for line in out.splitlines() if "k=" in line and line.startswith(" ") and line[1].isdigit()]
    assert [row.split()[0] for row in rows] == ["2", "0", "1", "3"]
    assert "1.40x (1.30-1.50)" in rows[0]
    assert rows[3].split()[-5:] == ["UserError:", "no", "room", "[for]", "that"]
    assert "failed" in rows[3]


def test_runs_of_different_tasks_stand_side_by_side_unranked(
    save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``show outputs`` crowned the fastest of runs that had nothing in common."""
    for job, (speedup, temperature) in enumerate([(1.1, 0.0), (1.4, 0.7)]):
        save_run(tmp_path / str(job), timing=timing(speedup), config=config(sampling__temperature=temperature))
    out = " ".join(printed(capsys, "show", tmp_path).split())
    assert "Not ranked: these runs answer different questions, they differ in sampling.temperature." in out
    assert "Fastest" not in out
    assert "Use draft" not in out
    assert out.index("1.10x") < out.index("1.40x")


def test_a_sweep_without_baselines_is_ranked_by_its_speed(
    save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job, speed in enumerate((50.0, 70.0)):
        save_run(tmp_path / str(job), timing=timing(None, tokens_per_second=speed))
    out = printed(capsys, "show", tmp_path)
    assert "tokens/s" in out
    assert "speed-up " not in out
    assert out.index(" 70 ") < out.index(" 50 ")


def test_compare_says_which_is_better(save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = random_requests(0, max_proposal_len=4, num_requests=30)
    worse = random_requests(0, max_proposal_len=4, num_requests=30)
    for record in worse:
        record.rounds = [
            type(own)(**{**vars(own), "num_accepted": 0, "num_emitted": 1, "ended_by_accepted_eos": False})
            for own in record.rounds
        ]
    a = save_run(tmp_path / "a", requests, timing=timing(None))
    b = save_run(tmp_path / "b", worse, timing=timing(None), config=config(draft__path="models/bad"))
    out = printed(capsys, "compare", a, b)
    assert "Acceptance: A's proposals are accepted more often, B - A is -" in out.replace("\n", " ")
    assert "Tokens: A yields more tokens a pass of the target" in out
    assert "Speed: the same in both" in out
    assert "draft.path models/draft -> models/bad" in out
    assert "Longer proposals" not in out


def test_compare_of_a_run_with_itself(save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path / "run")
    out = printed(capsys, "compare", run, run)
    assert "Acceptance: the same in both." in out
    assert "not what the machine did" in out.replace("\n", " ")


def test_compare_warns_of_figures_that_must_not_be_used(
    save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = IntegrityResults(level="off", baseline_equality=BaselineEquality(equal=1, tie=0, fault=2))
    a, b = save_run(tmp_path / "a"), save_run(tmp_path / "b", integrity=broken)
    assert "Do not use the figures of B: 2 outputs differ from plain decoding by" in printed(capsys, "compare", a, b)


def test_longer_proposals_are_no_fair_comparison_of_acceptance(
    save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = save_run(tmp_path / "a"), save_run(tmp_path / "b", config=config(proposal__max_proposal_len=2))
    assert "Longer proposals have a lower acceptance rate by themselves" in printed(capsys, "compare", a, b)


def test_mistakes_cost_one_line(save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path / "run")
    other = save_run(tmp_path / "other", config=config(sampling__temperature=0.0))
    assert "sampling.temperature is 0.7 in one and 0.0 in the other" in refused(capsys, "compare", run, other)
    assert "is no directory" in refused(capsys, "show", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no run and no sweep" in refused(capsys, "show", tmp_path / "empty")
    assert "results.json" in refused(capsys, "compare", run, tmp_path)
    bad = save_run(tmp_path / "bad", error="ValueError: x")
    assert "It ended so: the run failed: ValueError: x." in printed(capsys, "show", bad)
    (bad / "round_log.jsonl").unlink()
    assert "the run failed: ValueError" in refused(capsys, "show", bad)
    for arguments in ((), ("shoe",), ("show",), ("compare", run), ("show", run, "--loud")):
        assert "--help" in refused(capsys, *arguments)


@pytest.mark.parametrize(("argument", "words"), [("--help", "compare"), ("--version", "spec-harness")])
def test_help_and_version(argument: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([argument])
    assert caught.value.code == 0
    assert words in capsys.readouterr().out


def test_showing_needs_neither_torch_nor_pandas(save_run: Save, tmp_path: Path) -> None:
    """They take seconds to import; a sweep needs pandas for its verdict."""
    run = save_run(tmp_path / "run")
    heavy = ("torch", "lightning", "transformers", "wandb", "torchmetrics", "pandas", "scipy.stats")
    script = (
        "import sys; from spec_harness.cli.report import main; "
        f"main(['show', {str(run)!r}]); seen = [name for name in {heavy} if name in sys.modules]; "
        f"main(['show', {str(tmp_path)!r}]); "
        f"print(seen, [name for name in {heavy} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[] ['pandas']"


@pytest.mark.parametrize("command", ["plot", "html"])
def test_names_are_no_formulas(
    command: str, save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dollar sign in a category ended both commands inside matplotlib's parser of formulas."""
    records = random_requests(0, max_proposal_len=4, num_requests=10)
    for i, record in enumerate(records):
        record.category = ("price $x_{$", "$")[i % 2]
    assert main([command, str(save_run(tmp_path / "a $x_{$", records))]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("command", "obstacle"), [("plot", "figures"), ("html", "report.html")])
def test_what_cannot_be_written_is_named(
    command: str, obstacle: str, save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(tmp_path / "run")
    (run / obstacle).write_text("") if command == "plot" else (run / obstacle).mkdir()
    assert obstacle in refused(capsys, command, run)


def test_a_terminal_without_the_characters_gets_question_marks(save_run: Save, tmp_path: Path) -> None:
    """It ended with a traceback, and a finished run with exit code 1."""
    records = random_requests(0, max_proposal_len=4, num_requests=10)
    for i, record in enumerate(records):
        record.category = ("größe", "b")[i % 2]
    run = save_run(tmp_path / "run", records)
    command = [sys.executable, "-m", "spec_harness.cli.report", "show", run]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "gr??e" in done.stdout
    assert done.stderr == ""


def test_damage_that_nobody_thought_of_costs_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, words in (
        (KeyError("turn"), "cannot be read as what spec-eval left (KeyError: 'turn')"),
        (KeyboardInterrupt(), "interrupted"),
    ):

        def fail(directory: Path, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr("spec_harness.report.terminal.print_sweep", fail)
        assert main(["show", "run"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert words in line
