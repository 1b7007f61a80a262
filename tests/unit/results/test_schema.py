"""results.json: written whole, read back equal, and refused with one clear line where it does not fit."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from spec_harness.errors import UserError
from spec_harness.results.schema import (
    Estimate,
    RunResults,
    latency,
    read_results,
    write_results,
)

Make = Callable[..., Any]


@pytest.fixture
def results(random_requests: Make, make_results: Make) -> RunResults:
    made: RunResults = make_results(random_requests(1, max_proposal_len=4), max_proposal_len=4)
    return made


def test_round_trip(tmp_path: Path, results: RunResults) -> None:
    path = tmp_path / "results.json"
    write_results(path, results)
    assert read_results(path) == results
    assert [item.name for item in tmp_path.iterdir()] == ["results.json"]  # no temporary file left


def test_top_level_keys_and_shapes(tmp_path: Path, results: RunResults) -> None:
    write_results(tmp_path / "results.json", results)
    content = json.loads((tmp_path / "results.json").read_text())
    assert ", ".join(content) == (
        "schema_version, status, mode, config, provenance, integrity, proposal, timing, kv, breakdowns, notes"
    )
    proposal = content["proposal"]
    assert proposal["acceptance_rate"].keys() == {"value", "ci95", "n"}
    assert proposal["acceptance_rate"]["ci95"] is None
    assert len(proposal["acceptance_rate_per_position"]) == 4
    assert all(type(count) is int for count in proposal["accepted_length_histogram"])
    assert set(content["breakdowns"]["category"]) == {"code", "prose"}
    parts = content["breakdowns"]["category"].values()
    assert sum(part["num_rounds"] for part in parts) == proposal["num_rounds"]
    assert sum(part["num_requests"] for part in parts) == proposal["num_requests"]


def models_of(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The model and every model below it."""
    yield model
    stack: list[Any] = [item.annotation for item in model.model_fields.values()]
    while stack:
        annotation = stack.pop()
        stack.extend(get_args(annotation))
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from models_of(annotation)


def test_every_key_is_described() -> None:
    for model in models_of(RunResults):
        for name, item in model.model_fields.items():
            assert item.description, f"{model.__name__}.{name}"


def test_n_counts_the_requests_that_contribute(make_round: Make, make_request: Make, make_results: Make) -> None:
    requests = [
        make_request([make_round(2, 1)], request_id="a"),
        make_request([make_round(1, 1), make_round(0, 0)], request_id="b"),
        make_request([make_round(0, 0)], request_id="c"),  # proposes nothing
        make_request([], request_id="d"),  # ends with its prefill
    ]
    proposal = make_results(requests, max_proposal_len=3).proposal
    assert proposal.num_requests == 4
    assert (proposal.coverage.n, proposal.acceptance_rate.n) == (3, 2)
    assert [estimate.n for estimate in proposal.acceptance_rate_per_position] == [2, 1, 0]
    assert [estimate.value for estimate in proposal.acceptance_rate_per_position] == [1, 0, None]
    assert proposal.macro_mean_acceptance_length == Estimate(value=2.0, n=2)


def test_a_run_without_requests_or_proposals(tmp_path: Path, make_results: Make) -> None:
    results = make_results([], max_proposal_len=0)
    write_results(tmp_path / "results.json", results)
    proposal = read_results(tmp_path / "results.json").proposal
    assert proposal.acceptance_rate == Estimate(value=None, n=0)
    assert proposal.acceptance_rate_per_position == []
    assert make_results([], max_proposal_len=2).proposal.acceptance_rate_per_position == [Estimate(value=None, n=0)] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surprise": 1}, "surprise: Extra inputs"),
        ({"schema_version": 3}, r"schema_version: .*this version reads schema_version 1 and 2"),
        ({"status": "finished"}, "status: "),
        ({"notes": "one"}, "notes: "),
        ({"proposal": {}}, r"proposal\.num_prefill_tokens: Field required"),
    ],
)
def test_what_does_not_fit_is_refused_by_key(tmp_path: Path, results: RunResults, change: Any, message: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(json.loads(results.model_dump_json()) | change))
    with pytest.raises(UserError, match=message) as caught:
        read_results(path)
    assert str(path) in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_results(tmp_path / "results.json")
    (tmp_path / "results.json").write_text('{"schema_version": 1, ')
    with pytest.raises(UserError, match="the file: Invalid JSON"):
        read_results(tmp_path / "results.json")


def test_what_is_not_a_number_cannot_be_written() -> None:
    """JSON has no NaN: it would silently be written as null, which means "not measured"."""
    with pytest.raises(ValidationError):
        Estimate(value=float("nan"), n=1)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, results: RunResults) -> None:
    path = tmp_path / "results.json"
    write_results(path, results)
    broken = results.model_copy(update={"status": "perhaps"})
    with pytest.raises(ValidationError, match="status"):
        write_results(path, broken)
    assert read_results(path) == results


def test_latency() -> None:
    assert latency([]) is None
    times = latency([0.1, 0.2, 0.3, 0.4, 0.5])
    assert times is not None
    assert (times.mean, times.p50, times.p95) == pytest.approx((0.3, 0.3, 0.48))
