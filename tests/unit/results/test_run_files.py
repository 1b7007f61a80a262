"""The files of a run: exact columns, and what is left of them after a fault or a kill."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spec_harness.results.run_files import REQUESTS_SCHEMA, ROUNDS_SCHEMA, RunFiles, StatusFile

Make = Callable[..., Any]

ROUND_COLUMNS = (
    "request_id, turn, sample, round, context_len, proposal_len, num_accepted, num_aligned, num_emitted, skip_reason, "
    "draft_token_ids, output_token_ids, draft_probs, target_probs, expected_acceptance, draft_entropy, target_entropy, "
    "kl_target_draft, target_rank_in_draft, num_draft_tokens_past_end, ended_by_accepted_eos"
)
REQUEST_COLUMNS = (
    "request_id, turn, sample, category, prompt_tokens, output_tokens, stop_reason, rounds, draft_tokens, "
    "accepted_tokens, acceptance_rate, mean_acceptance_length, time_to_first_token, time_per_output_token, "
    "engine_s, preemptions, baseline_verdict"
)
GENERATION_KEYS = "request_id, turn, sample, category, prompt, prompt_token_ids, text, token_ids, stop_reason"


def lines_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "generations.jsonl").read_text(encoding="utf-8").splitlines()]


def test_parquet_schemas(tmp_path: Path, random_requests: Make) -> None:
    requests = random_requests(2, max_proposal_len=3)
    with RunFiles(tmp_path) as files:
        for request in requests:
            files.add(request)
    rounds, rows = pq.read_table(tmp_path / "rounds.parquet"), pq.read_table(tmp_path / "requests.parquet")
    assert ", ".join(rounds.column_names) == ROUND_COLUMNS
    assert ", ".join(rows.column_names) == REQUEST_COLUMNS
    assert (rounds.schema, rows.schema) == (ROUNDS_SCHEMA, REQUESTS_SCHEMA)
    records = [record for request in requests for record in request.rounds]
    for row, record in zip(rounds.to_pylist(), records, strict=True):
        assert row == {name: getattr(record, name) for name in rounds.column_names}
    for row, request in zip(rows.to_pylist(), requests, strict=True):
        assert row["prompt_tokens"] == 3
        assert row["output_tokens"] == len(request.token_ids)
        assert row["rounds"] == len(request.rounds)
        assert row["accepted_tokens"] == sum(record.num_accepted for record in request.rounds)


def test_a_request_without_proposals_has_null_rates(tmp_path: Path, make_round: Make, make_request: Make) -> None:
    with RunFiles(tmp_path) as files:
        files.add(make_request([make_round(0, 0)], request_id="plain"))
        files.add(make_request([], request_id="prefill only", time_per_output_token=None))
        files.add(make_request([make_round(4, 1), make_round(2, 2)], request_id="drafted"))
    rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    rates = [(row["acceptance_rate"], row["mean_acceptance_length"]) for row in rows]
    assert rates == [(None, None), (None, None), (3 / 6, 1 + 3 / 2)]
    assert rows[1]["time_per_output_token"] is None


def test_no_request_at_all_still_gives_readable_files(tmp_path: Path) -> None:
    with RunFiles(tmp_path):
        pass
    assert pq.read_table(tmp_path / "rounds.parquet").schema == ROUNDS_SCHEMA
    assert pq.read_table(tmp_path / "requests.parquet").num_rows == 0
    assert lines_of(tmp_path) == []


def test_generations_are_on_disk_as_requests_finish(tmp_path: Path, make_round: Make, make_request: Make) -> None:
    with RunFiles(tmp_path) as files:
        request = make_request([make_round(2, 1)], prompt="größer\u2028\ud800", text="x\ny")
        files.add(request)
        text = (tmp_path / "generations.jsonl").read_text(encoding="utf-8")
        assert "größer" in text  # readable as it is
        (line,) = [json.loads(part) for part in text.rstrip("\n").split("\n")]
        assert ", ".join(line) == GENERATION_KEYS
        assert (line["prompt"], line["text"], line["token_ids"]) == (request.prompt, "x\ny", request.token_ids)
        assert files.num_generated_tokens == 3


def test_a_fault_leaves_whole_files_of_the_finished_requests(
    tmp_path: Path, make_round: Make, make_request: Make
) -> None:
    def run() -> None:
        with RunFiles(tmp_path) as files:
            files.add(make_request([make_round(2, 1)]))
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run()
    assert pq.read_table(tmp_path / "requests.parquet").num_rows == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "generations.jsonl",
        "requests.parquet",
        "rounds.parquet",
    ]


def test_a_verdict_found_after_the_request_was_added_is_written(
    tmp_path: Path, make_round: Make, make_request: Make
) -> None:
    request = make_request([make_round(2, 1)])
    with RunFiles(tmp_path) as files:
        files.add(request)
        request.baseline_verdict = "tie"
    assert pq.read_table(tmp_path / "requests.parquet").to_pylist()[0]["baseline_verdict"] == "tie"


KILLED = """
import os, signal, sys
from pathlib import Path
from spec_harness.results.run_files import RunFiles, StatusFile
from spec_harness.requests import RequestRecord
directory = Path(sys.argv[1])
status = StatusFile(directory / "status.json", requests_total=3)
with RunFiles(directory) as files:
    for number in range(2):
        files.add(RequestRecord(
            request_id=str(number), turn=0, sample=0, category="", prompt="", prompt_token_ids=[1], token_ids=[2],
            text="", stop_reason="eos", time_to_first_token=0.0, time_per_output_token=None,
        ))
        status.update(number + 1)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_process_keeps_its_finished_requests(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert process.returncode == -signal.SIGKILL
    assert [line["request_id"] for line in lines_of(tmp_path)] == ["0", "1"]
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["requests_done"], status["requests_total"]) == ("running", 2, 3)


def test_status_from_the_first_second_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "status.json"

    def read() -> dict[str, Any]:
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    status = StatusFile(path)
    first = read()
    assert list(first) == ["state", "started_at", "updated_at", "requests_done", "requests_total", "error"]
    assert (first["state"], first["requests_done"], first["requests_total"]) == ("running", 0, None)
    assert datetime.fromisoformat(first["started_at"]).tzinfo is not None
    status.update(0, requests_total=5)
    status.update(2)
    assert (read()["requests_done"], read()["requests_total"]) == (2, 5)
    assert read()["started_at"] == first["started_at"] <= read()["updated_at"]
    status.failed(ValueError("logits are not finite\nsecond line"))
    assert (read()["state"], read()["error"]) == ("failed", "ValueError: logits are not finite")
    assert read()["requests_done"] == 2
    status.done()
    assert (read()["state"], read()["error"]) == ("done", None)
    assert [item.name for item in tmp_path.iterdir()] == ["status.json"]
