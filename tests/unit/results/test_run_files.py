"""The files of a run: exact columns, made of the log of what finished."""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from spec_harness.requests import RequestRecord, RoundRecord
from spec_harness.results.columns import REQUESTS_SCHEMA, ROUNDS_SCHEMA
from spec_harness.results.round_log import LoggedRuns
from spec_harness.results.run_files import RunFiles
from tests.factories import header_of

Make = Callable[..., Any]

ROUND_COLUMNS = ", ".join(field.name for field in fields(RoundRecord))
REQUEST_COLUMNS = (
    "request_id, turn, sample, category, stop_reason, time_to_first_token, time_per_output_token, engine_s, "
    "admitted_at, queued_s, preemptions, baseline_verdict, prompt_tokens, output_tokens, rounds, draft_tokens, "
    "accepted_tokens, acceptance_rate, mean_acceptance_length"
)
GENERATION_KEYS = "request_id, turn, sample, category, prompt, prompt_token_ids, text, token_ids, stop_reason"


def lines_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "generations.jsonl").read_text(encoding="utf-8").splitlines()]


def keep(directory: Path, requests: Sequence[RequestRecord]) -> int:
    files = RunFiles(directory, header_of(len(requests), max_proposal_len=4))
    for request in requests:
        files.add("speculative", request)
    return files.finalize(requests)


def test_parquet_schemas(tmp_path: Path, random_requests: Make) -> None:
    requests = random_requests(2, max_proposal_len=3)
    assert keep(tmp_path, requests) == sum(len(request.token_ids) for request in requests)
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
    plain = make_request([make_round(0, 0)], request_id="plain")
    short = make_request([], request_id="prefill only", time_per_output_token=None)
    keep(tmp_path, [plain, short, make_request([make_round(4, 1), make_round(2, 2)], request_id="drafted")])
    rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    rates = [(row["acceptance_rate"], row["mean_acceptance_length"]) for row in rows]
    assert rates == [(None, None), (None, None), (3 / 6, 1 + 3 / 2)]
    assert rows[1]["time_per_output_token"] is None


def test_no_request_at_all_still_gives_readable_files(tmp_path: Path) -> None:
    assert keep(tmp_path, []) == 0
    assert pq.read_table(tmp_path / "rounds.parquet").schema == ROUNDS_SCHEMA
    assert pq.read_table(tmp_path / "requests.parquet").num_rows == 0
    assert lines_of(tmp_path) == []


def test_generations_are_on_disk_as_requests_finish(tmp_path: Path, make_round: Make, make_request: Make) -> None:
    files = RunFiles(tmp_path, header_of(1, max_proposal_len=4))
    request = make_request([make_round(2, 1)], prompt="größer\u2028\ud800", text="x\ny")
    files.add("speculative", request)
    files.add("baseline", request)
    text = (tmp_path / "generations.jsonl").read_text(encoding="utf-8")
    assert "größer" in text  # readable as it is
    (line,) = [json.loads(part) for part in text.rstrip("\n").split("\n")]
    assert ", ".join(line) == GENERATION_KEYS
    assert (line["prompt"], line["text"], line["token_ids"]) == (request.prompt, "x\ny", request.token_ids)
    files.finalize()


def test_a_verdict_found_after_the_request_was_added_is_written(
    tmp_path: Path, make_round: Make, make_request: Make
) -> None:
    request = make_request([make_round(2, 1)])
    files = RunFiles(tmp_path, header_of(1, max_proposal_len=4))
    files.add("speculative", request)
    request.baseline_verdict = "tie"
    files.finalize([request])
    files.finalize([request])  # again, it rewrites them
    assert pq.read_table(tmp_path / "requests.parquet").to_pylist()[0]["baseline_verdict"] == "tie"
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_a_log_cut_off_within_a_character_gives_what_was_finished(
    tmp_path: Path, make_round: Make, make_request: Make
) -> None:
    keep(tmp_path, [make_request([make_round(2, 1)], prompt=prompt) for prompt in ("a", "größer")])
    log = tmp_path / "round_log.jsonl"
    log.write_bytes(log.read_bytes().partition("ö".encode())[0] + b"\xc3")
    assert [record.prompt for record in LoggedRuns(log).sequences("speculative")] == ["a"]
