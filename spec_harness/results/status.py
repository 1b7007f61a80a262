"""``status.json``: how far a run is, how it ended, and whether the process that wrote it is still there."""

import json
import os
import socket
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from spec_harness.results.schema import replace_text

STATUS_FILE = "status.json"
State = Literal["running", "done", "failed"]


class StatusFile:
    """Replaced as a whole at every change. Created in state ``running``."""

    def __init__(self, path: Path, *, requests_total: int | None = None) -> None:
        self.path = path
        self.requests_done = 0
        self.requests_total = requests_total  # null until the data set is read
        self.started_at = _now()
        self._process = {"pid": os.getpid(), "host": _host(), "process_started_at": _process_start(os.getpid())}
        self._write("running")

    def update(self, requests_done: int, *, requests_total: int | None = None) -> None:
        """Requests finished so far; ``requests_total`` once it is known."""
        self.requests_done = requests_done
        self.requests_total = self.requests_total if requests_total is None else requests_total
        self._write("running")

    def done(self) -> None:
        self._write("done")

    def failed(self, error: BaseException | str) -> None:
        """The run ended in ``error``: its type and the first line of its message are kept."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._write("failed", text.strip().split("\n", 1)[0])

    def _write(self, state: State, error: str | None = None) -> None:
        content = {
            "state": state,
            "started_at": self.started_at,
            "updated_at": _now(),
            "requests_done": self.requests_done,
            "requests_total": self.requests_total,
            "error": error,
        } | self._process
        text = json.dumps(content, indent=2) + "\n"
        try:
            replace_text(self.path, text)
        except OSError:
            if state != "failed":
                raise
            # The disk is full, say: the old file's own space may do, and what ended the run must not be hidden.
            with suppress(OSError):
                self.path.write_text(text, encoding="utf-8")


def read_status(run_dir: Path) -> dict[str, Any]:
    """What status.json says, with state ``interrupted`` where it says ``running`` and its process is gone; empty where
    there is none, or half of one. On another host than the run's nobody can tell: there it stays ``running``."""
    try:
        status = json.loads((run_dir / STATUS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # not written yet, or cut off with its process
        return {}
    if not isinstance(status, dict):
        return {}
    return status | {"state": "interrupted"} if status.get("state") == "running" and _is_gone(status) else status


def _is_gone(status: dict[str, Any]) -> bool:
    pid, started = status.get("pid"), status.get("process_started_at")
    if not isinstance(pid, int) or started is None or status.get("host") != _host():
        return False
    if not _exists(pid):
        return True
    found = _process_start(pid)  # its number may have been given to another process
    return found is not None and found != started


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def _host() -> str:
    """Where process ids mean the same: the machine, and on Linux the container in it."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()} {space}"


def _process_start(pid: int) -> str | None:
    """When a process started, to be compared only: ticks since the boot of this very boot, so that setting the clock
    changes nothing; ``None`` where it cannot be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if after_name[0] == "Z":  # ended, and its parent has not asked yet
            return "ended"
        return f"{boot} {after_name[19]}"
    except (OSError, IndexError):
        pass
    with suppress(OSError, subprocess.SubprocessError):
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip() or None
    return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
