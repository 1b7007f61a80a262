"""What spec-report makes of real runs: which draft is better, or is it noise; and the run's own tables again."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_harness.cli.report import main as spec_report
from spec_harness.report.compare import Difference, compare
from spec_harness.report.load import Run, load_run
from spec_harness.report.sweep import load_sweep
from tests.run_helpers import SAMPLED, copy_packaged, spec_eval

pytestmark = pytest.mark.usefixtures("clean_process")


def damaged_draft(folder: Path, *, noise: float) -> Path:
    """The packaged draft with noise on its weights."""
    path = copy_packaged("draft", folder) / "model.safetensors"
    generator = torch.Generator().manual_seed(0)
    weights = load_file(path)
    for name, weight in weights.items():
        weights[name] = weight + noise * weight.float().std() * torch.randn(weight.shape, generator=generator).to(
            weight
        )
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def compared(a: str | Path, b: str | Path) -> dict[str, Difference]:
    return {difference.name: difference for difference in compare(load_run(a), load_run(b))}


def test_the_same_draft_with_another_seed_differs_by_noise_only(
    sampled_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spec_eval(*SAMPLED, "sampling.seed=1", "baseline=off") == 0
    found = compared(sampled_run.directory, "run")
    for name in ("acceptance_rate", "mean_acceptance_length", "tokens_per_target_pass"):
        difference = found[name]
        assert difference.ci95 is not None
        assert difference.ci95[0] < 0 < difference.ci95[1]
        assert (difference.change, difference.verdict) != (0, "unknown")
    capsys.readouterr()
    assert spec_report(["compare", str(sampled_run.directory), "run"]) == 0
    assert "Acceptance: the difference is within noise" in capsys.readouterr().out


def test_a_damaged_draft_is_found_to_be_worse(sampled_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    draft = damaged_draft(Path("damaged"), noise=1.0)
    assert spec_eval(*SAMPLED, "draft=hf", f"draft.path={draft}", "baseline=off") == 0
    found = compared(sampled_run.directory, "run")
    for name in ("acceptance_rate", "mean_acceptance_length", "tokens_per_target_pass"):
        ci95 = found[name].ci95
        assert ci95 is not None
        assert ci95[1] < 0
        assert found[name].verdict == "A higher"
    capsys.readouterr()
    assert spec_report(["compare", str(sampled_run.directory), "run"]) == 0
    assert "Acceptance: A's proposals are accepted more often" in capsys.readouterr().out


def test_runs_with_other_prompts_are_not_compared(sampled_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert spec_eval(*SAMPLED, "data.limit=9", "baseline=off") == 0
    capsys.readouterr()
    assert spec_report(["compare", str(sampled_run.directory), "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "prompts: 12 requests against 9" in line


def test_what_a_run_prints_is_what_show_prints_and_report_md_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert spec_eval("data.limit=3", "sampling.max_new_tokens=6") == 0
    printed = capsys.readouterr().out
    assert spec_report(["show", "run"]) == 0
    shown = capsys.readouterr().out
    assert printed.splitlines()[:-1] == shown.splitlines()[:-1]  # the last line names the folder
    assert "Only 3 requests: no intervals" in shown.replace("\n", " ")
    report = Path("run/report.md").read_text()
    results = load_run("run").results
    for note in results.notes:
        assert note in report.replace("\\", "")
    assert f"| acceptance rate | {100 * (results.proposal.acceptance_rate.value or 0):.1f} % |" in report


@pytest.mark.slow
def test_a_sweep_is_shown_best_first_with_its_failures(capsys: pytest.CaptureFixture[str]) -> None:
    points = ("proposal.max_proposal_len=1,4", "kv_cache.num_blocks=null,1")
    assert spec_eval("-m", *points, "data.limit=8", "sampling.max_new_tokens=12", "hydra.sweep.dir=sweep") == 1
    capsys.readouterr()
    assert spec_report(["show", "sweep"]) == 0
    out = capsys.readouterr().out
    assert "4 jobs, 2 with results" in out
    assert out.count("failed") == 2
    sweep = load_sweep("sweep")
    done = sweep.jobs.dropna(subset=["speedup"])
    ranked = done.sort_values("speculative_tokens_per_second", ascending=False)
    rows = [line.split()[0] for line in out.splitlines() if line[:3].strip().isdigit() and " k=" in line]
    assert rows[:2] == list(ranked.job)
    assert [job.name for job in sweep.failures] == rows[2:]
    assert all("kv_cache.num_blocks=1 is too small" in (job.error or "") for job in sweep.failures)
    assert set(ranked["proposal.max_proposal_len"]) == {1, 4}
