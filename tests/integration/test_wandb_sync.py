"""`wandb sync` of a finished offline run, end to end, against a server on this machine that keeps what it is sent."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from spec_harness.results.figures import plain_numbers
from spec_harness.results.schema import read_results
from tests.inspection import shapes_unchecked
from tests.run_helpers import spec_eval, working_directory


class FakeServer(ThreadingHTTPServer):
    """The few requests of W&B's that a sync makes; runs, streamed lines and files are kept by name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.runs: list[dict[str, Any]] = []  # variables of each upsert
        self.streams: dict[str, list[str]] = {}  # lines by file
        self.ends: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.unknown: list[str] = []  # operations that it has no answer to

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        if operation == "UpsertBucket":
            self.runs.append(variables)
            project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "someone"}}
            bucket = {"id": "r", "name": variables["name"], "project": project, "historyLineCount": 0}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        self.unknown.append(operation)
        return {}


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_POST(self) -> None:
        content = json.loads(self._body())
        if self.path == "/graphql":
            operation = content.get("operationName") or content["query"].split("(")[0].split()[-1]
            self._reply({"data": self.server.answer(operation, content.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            for name, part in (content.get("files") or {}).items():
                lines = self.server.streams.setdefault(name, [])
                lines[part["offset"] :] = part["content"]
            if content.get("complete"):
                self.server.ends.append(content)
            self._reply({})

    def do_PUT(self) -> None:
        self.server.files[self.path.removeprefix("/upload/")] = self._body()
        self._reply({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _reply(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[FakeServer]:
    with FakeServer() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose folder was moved away from where it ran."""
    began, ended = tmp_path_factory.mktemp("began"), tmp_path_factory.mktemp("ended")
    with working_directory(began), shapes_unchecked():
        assert spec_eval("data.limit=10", "sampling.max_new_tokens=12", "logger.tags=[one]", logger="wandb") == 0
    return Path(shutil.move(began / "run", ended / "kept"))


@pytest.fixture(scope="module")
def server(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    """After the sync; W&B skips a run that was synced before."""
    with serving() as server:
        sync(run_dir, server, tmp_path_factory.mktemp("home"))
        yield server


def sync(run_dir: Path, server: FakeServer, home: Path) -> None:
    (run,) = (run_dir / "wandb").glob("offline-run-*")
    environment = os.environ | {
        "HOME": str(home),
        "WANDB_BASE_URL": server.url,
        "WANDB_API_KEY": "x" * 40,
        "WANDB_MODE": "online",
        "no_proxy": "127.0.0.1",
    }
    command = [Path(sys.executable).with_name("wandb"), "sync", run]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_moved_run_is_synced_whole(run_dir: Path, server: FakeServer) -> None:
    assert server.unknown == []  # above all no artifact: its record would name files by where the folder was
    run = server.runs[0]
    assert (run["project"], run["jobType"], run["tags"]) == ("spec_harness", "eval", ["one"])
    config = {key: item["value"] for key, item in json.loads(run["config"]).items() if key != "_wandb"}
    assert config["sampling"]["max_new_tokens"] == 12
    results = read_results(run_dir / "results.json")
    summary = json.loads(server.streams["wandb-summary.json"][-1])
    numbers = plain_numbers(results)
    assert {key: summary.get(key) for key in numbers} == numbers
    assert [end["exitcode"] for end in server.ends] == [0]


def test_tables_and_colored_tokens_arrive_as_files(run_dir: Path, server: FakeServer) -> None:
    summary = json.loads(server.streams["wandb-summary.json"][-1])
    table = json.loads(server.files[summary["requests"]["path"]])
    requests = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert len(requests) == 10
    generations = [json.loads(line) for line in (run_dir / "generations.jsonl").read_text().splitlines()]
    assert [row["text"] for row in requests] == [row["text"] for row in generations]
    page = server.files[summary["worst_requests_tokens"]["path"]].decode()
    assert page.count("<h4>") == 10
    assert page.count(': accepted">') == sum(row["accepted_tokens"] for row in requests)
    shares = json.loads(server.files[summary["time_share"]["path"]])["data"]
    assert sum(share for _, share, _ in shares) == pytest.approx(1)


def test_the_lines_over_positions_are_those_of_the_results(run_dir: Path, server: FakeServer) -> None:
    history = [json.loads(line) for line in server.streams["wandb-history.jsonl"]]
    lines = {item["position/draft_token"]: item for item in history if "position/draft_token" in item}
    estimates = read_results(run_dir / "results.json").proposal.acceptance_rate_per_position
    assert [lines[i + 1].get("position/acceptance_rate") for i in range(4)] == [e.value for e in estimates]
    assert [lines[i + 1].get("position/acceptance_rate_low") for i in range(4)] == [
        e.ci95 and e.ci95[0] for e in estimates
    ]
