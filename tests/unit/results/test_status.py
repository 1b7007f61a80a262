"""status.json: how far a run is, and whether its process is still there."""

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from spec_harness.results.status import StatusFile, read_status

KEYS = [
    "state",
    "started_at",
    "updated_at",
    "requests_done",
    "requests_total",
    "error",
    "pid",
    "host",
    "process_started_at",
]


def test_status_from_the_first_second_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "status.json"

    def read() -> dict[str, Any]:
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    status = StatusFile(path)
    first = read()
    assert list(first) == KEYS
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


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_live_run_is_running(tmp_path: Path) -> None:
    StatusFile(tmp_path / "status.json")
    assert read_status(tmp_path)["state"] == "running"
    rewrite(tmp_path, pid=1)  # somebody else's process, which exists
    rewrite(tmp_path, process_started_at=None)
    assert read_status(tmp_path)["state"] == "running"  # who cannot tell does not call it dead


def test_a_number_that_went_to_another_process_is_not_the_run(tmp_path: Path) -> None:
    StatusFile(tmp_path / "status.json")
    rewrite(tmp_path, process_started_at="another boot 17")
    assert read_status(tmp_path)["state"] == "interrupted"
    rewrite(tmp_path, host="another host")  # where its number says nothing here
    assert read_status(tmp_path)["state"] == "running"
    rewrite(tmp_path, state="done")
    assert read_status(tmp_path)["state"] == "done"


KILLED = """
import os, signal, sys
from pathlib import Path
from spec_harness.results.status import StatusFile
StatusFile(Path(sys.argv[1]) / "status.json", requests_total=3).update(2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_run_is_interrupted(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, but its parent has not asked yet
    assert read_status(tmp_path)["state"] == "interrupted"
    assert process.wait() == -signal.SIGKILL
    status = read_status(tmp_path)
    assert (status["state"], status["requests_done"], status["requests_total"]) == ("interrupted", 2, 3)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_half_a_status_says_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(content)
    assert read_status(tmp_path) == {}
