"""Which jobs there are, what each was asked to do, and how it ended."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_harness.errors import UserError
from spec_harness.report.html import write_html
from spec_harness.report.jobs import find_jobs, read_run, varying
from spec_harness.report.sweep import load_sweep
from spec_harness.report.sweep_tables import sweep_headline, sweep_tables
from spec_harness.results.round_log import ROUND_LOG, RoundLog
from spec_harness.results.schema import Estimate, TimingResults
from spec_harness.results.status import StatusFile
from tests.factories import config, header_of, random_requests

Save = Callable[..., Path]


def timing(speedup: float | None) -> TimingResults:
    return TimingResults(
        speculative_tokens_per_second=Estimate(value=100.0, ci95=(90.0, 110.0), n=10),
        baseline_tokens_per_second=Estimate(value=None, n=0),
        speedup=Estimate(value=speedup, ci95=None if speedup is None else (speedup - 0.1, speedup + 0.1), n=10),
    )


@pytest.fixture
def sweep(save_run: Save, tmp_path: Path) -> Path:
    """Twelve jobs: 0 to 9 done, 10 failed, 11 killed."""
    folder = tmp_path / "sweep"
    for job in range(10):
        overrides = (f"proposal.max_proposal_len={job}", "kv_cache=block8", "draft.path='a b'")
        save_run(folder / str(job), overrides=overrides, timing=timing(1 + job % 3 / 10))
    save_run(folder / "10", overrides=("proposal.max_proposal_len=99",), error="UserError: too\nlong")
    killed = folder / "11"
    killed.mkdir()
    StatusFile(killed / "status.json", requests_total=9).update(3)
    (folder / "multirun.yaml").write_text("hydra: {}\n")
    return folder


def test_a_sweep_is_no_run_and_says_which_it_holds(sweep: Path) -> None:
    with pytest.raises(UserError, match=r"results.json is missing; it holds runs \(0, ...\): give one of them"):
        read_run(sweep)


def test_results_of_a_run_that_is_not_done_are_none(save_run: Save, tmp_path: Path) -> None:
    """A kill between the two files left a run that says running beside finished results; faults leave failed ones."""
    running, failed = save_run(tmp_path / "0"), save_run(tmp_path / "1", status="failed")
    StatusFile(running / "status.json", requests_total=10)
    (failed / "status.json").unlink()
    jobs = find_jobs(tmp_path)
    assert [job.results for job in jobs] == [None, None]
    assert [job.error for job in jobs] == [
        "still running, or killed elsewhere: 0 of 10 requests done",
        "outputs differ from plain decoding",
    ]


@pytest.mark.parametrize("content", [b"5", b"{a: [", b"\xff\xfe\x00", b"- a=b=c\n- 7\n"])
def test_damaged_overrides_lose_labels_only(content: bytes, save_run: Save, tmp_path: Path) -> None:
    (save_run(tmp_path / "0", overrides=["a=1"]) / ".hydra" / "overrides.yaml").write_bytes(content)
    (job,) = find_jobs(tmp_path)
    assert job.results is not None
    assert set(job.overrides) <= {"a", "7"}


def test_jobs_come_in_the_order_of_their_numbers(sweep: Path) -> None:
    jobs = find_jobs(sweep)
    assert [job.name for job in jobs] == [str(job) for job in range(12)]
    assert [job.state for job in jobs] == ["done"] * 10 + ["failed", "running"]
    assert [job.error for job in jobs[9:]] == [
        None,
        "UserError: too",
        "still running, or killed elsewhere: 3 of 9 requests done",
    ]
    assert all((job.results is None) == (job.error is not None) for job in jobs)
    assert jobs[3].overrides == {"proposal.max_proposal_len": "3", "kv_cache": "block8", "draft.path": "a b"}


def test_a_job_whose_results_are_of_another_schema_has_none(sweep: Path) -> None:
    (sweep / "4" / "results.json").write_text("{}")
    job = find_jobs(sweep)[4]
    assert job.results is None
    assert "schema_version" in (job.error or "")


def test_a_job_that_failed_after_its_results_counts_as_failed(sweep: Path) -> None:
    """A greedy output that differs from plain decoding's is found when the figures are written already."""
    StatusFile(sweep / "4" / "status.json").failed("BaselineFaultError: 2 of 9 outputs differ")
    job = find_jobs(sweep)[4]
    assert (job.results, job.state, job.error) == (None, "failed", "BaselineFaultError: 2 of 9 outputs differ")


def test_a_killed_job_stands_below_the_ranked_ones_with_what_it_finished(save_run: Save, tmp_path: Path) -> None:
    for job in range(2):
        save_run(tmp_path / str(job), timing=timing(1.2))
    killed, records = tmp_path / "2", random_requests(0, max_proposal_len=4, num_requests=3)
    killed.mkdir()
    log = RoundLog(killed / ROUND_LOG, header_of(max_proposal_len=4, num_sequences=10, config=config()))
    for record in records:
        log.add("speculative", record)
    log.close()
    StatusFile(killed / "status.json", requests_total=10)
    status = json.loads((killed / "status.json").read_text()) | {"process_started_at": "another process"}
    (killed / "status.json").write_text(json.dumps(status))
    sweep = load_sweep(tmp_path)
    assert [job.state for job in sweep.all_jobs] == ["done", "done", "interrupted"]
    assert [row["job"] for row in sweep.ranked] == ["0", "1"]
    assert sweep.incomparable_keys == []
    (row,) = sweep.interrupted
    assert row["num_requests"] == 3
    assert row["pooled_speedup"] is None
    assert sweep_tables(sweep)[0].rows[-1][0] == "2 (interrupted)"
    assert "1 interrupted: figures of finished requests only." in [
        line.text for line in sweep_headline(sweep, name="x")
    ]
    write_html(killed)
    write_html(tmp_path)


def test_what_a_sweep_varied() -> None:
    overrides = [{"k": "1", "draft": "a", "n": "5"}, {"k": "2", "draft": "a", "n": "5"}, {"k": "2", "n": "5"}]
    assert varying(overrides) == ["k", "draft"]
    assert varying(overrides[:1]) == varying([]) == []


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run and no sweep"):
        find_jobs(tmp_path)
    with pytest.raises(UserError, match="is no directory"):
        find_jobs(tmp_path / "nowhere")


def test_a_run_without_results_says_how_it_ended(save_run: Save, tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", error="MemoryError: out")
    (run / ROUND_LOG).unlink()
    with pytest.raises(UserError, match=r"no finished results\.json: the run failed: MemoryError: out"):
        read_run(run)


def test_the_frame_of_a_sweep(sweep: Path) -> None:
    loaded = load_sweep(sweep)
    assert (len(loaded.runs), [job.name for job in loaded.failures]) == (10, ["10", "11"])
    jobs = loaded.jobs.set_index("job")
    assert list(jobs.index) == [str(job) for job in range(12)]
    assert jobs.loc["3", "proposal.max_proposal_len"] == 4  # as configured, with its type
    assert jobs.loc["3", "kv_cache"] == "block8"
    assert (jobs.loc["3", "draft.path"], jobs.loc["10", "proposal.max_proposal_len"]) == ("models/draft", "99")
    assert (jobs.loc["4", "speedup"], jobs.loc["4", "speedup_low"]) == pytest.approx((1.1, 1.0))
    proposal = loaded.runs[0].results.proposal
    assert jobs.loc["0", "acceptance_rate"] == proposal.acceptance_rate.value
    assert (
        jobs.loc["0", "acceptance_rate_low"],
        jobs.loc["0", "acceptance_rate_high"],
    ) == proposal.acceptance_rate.ci95
    assert jobs.loc["0", "num_rounds"] == proposal.num_rounds == len(loaded.runs[0].rounds)
    assert jobs.speedup.isna().tolist() == [False] * 10 + [True] * 2
    assert jobs.sort_values("speedup", ascending=False).index[0] in ("2", "5", "8")
    assert jobs.loc["10", "error"] == "UserError: too"


def test_a_failed_run_shows_what_it_had_finished(tmp_path: Path) -> None:
    """An interrupt from the keyboard, say, says so in the status; figures were then kept but not shown."""
    log = RoundLog(tmp_path / ROUND_LOG, header_of(max_proposal_len=4, num_sequences=10, config=config()))
    StatusFile(tmp_path / "status.json", requests_total=10).failed("interrupted")
    with pytest.raises(UserError, match="the run failed: interrupted"):  # nothing had finished
        read_run(tmp_path)
    for record in random_requests(0, max_proposal_len=4, num_requests=3):
        log.add("speculative", record)
    log.close()
    results = read_run(tmp_path)
    assert (results.status, results.proposal.num_requests) == ("interrupted", 3)
    assert results.notes[-1] == "It ended so: the run failed: interrupted."
    assert find_jobs(tmp_path)[0].results is None  # of a sweep's jobs, failed ones count for nothing
