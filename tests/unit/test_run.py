"""How a run ends, whatever happens in it: status.json, the loggers and the exception. The engine is replaced."""

import json
from pathlib import Path
from typing import Any

import pytest

import spec_harness.run
from spec_harness.config import EvalConfig
from spec_harness.errors import UserError
from spec_harness.run import run

Calls = list[Any]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What was called at the end, in order."""
    seen: Calls = []
    monkeypatch.setattr(spec_harness.run, "finish", lambda loggers, exit_code: seen.append(("finish", exit_code)))
    monkeypatch.setattr(spec_harness.run, "print_summary", lambda results, folder: seen.append(("print", results)))
    return seen


def status(folder: Path) -> tuple[str, str | None]:
    content = json.loads((folder / "status.json").read_text())
    return content["state"], content["error"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("CUDA out of memory\nTried to allocate"), "RuntimeError: CUDA out of memory"),
        (UserError("kv_cache.num_blocks=1 is too small"), "UserError: kv_cache.num_blocks=1 is too small"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(1), "interrupted"),
    ],
)
def test_what_ends_a_run_is_recorded_and_raised(
    error: BaseException, message: str, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: Any) -> None:
        raise error

    monkeypatch.setattr(spec_harness.run, "build", build)
    with pytest.raises(type(error)):
        run(EvalConfig(), run_dir=tmp_path, sweep=None)
    assert status(tmp_path) == ("failed", message)
    assert calls == [("finish", 1)]


def test_a_mistake_in_the_evaluation_s_building_finishes_no_logger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none yet; and nothing but the status was written."""

    def build(*_: Any) -> None:
        raise UserError("no")

    monkeypatch.setattr(spec_harness.run, "build", build)
    with pytest.raises(UserError):
        run(EvalConfig(), run_dir=tmp_path, sweep=None)
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
