"""Fabricated runs on disk."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spec_harness.__main__ import main
from spec_harness.analysis.load import Run, Sweep, load_sweep
from spec_harness.evaluation.results import write_results
from spec_harness.evaluation.run_files import RunFiles, StatusFile
from spec_harness.spec_decode.records import RequestRecord
from tests.inspection import shapes_unchecked
from tests.run_helpers import QUIET, working_directory
from tests.unit.evaluation.conftest import _random_requests, _results

CONFIG: dict[str, Any] = {
    "target": {
        "kind": "hf",
        "path": "models/target",
        "revision": None,
        "max_model_len": None,
        "trust_remote_code": False,
    },
    "draft": {"kind": "hf", "path": "models/draft"},
    "sampling": {"temperature": 0.7, "top_k": None, "top_p": 1.0, "seed": 0, "max_new_tokens": 64, "stop": [], "n": 1},
    "proposal": {"kind": "draft_model", "max_proposal_len": 4},
    "logger": {"kinds": []},
}


def config(**changes: Any) -> dict[str, Any]:
    """``CONFIG`` with changes by key, dots as two underscores."""
    made: dict[str, Any] = json.loads(json.dumps(CONFIG))
    for key, value in changes.items():
        section, name = key.split("__")
        made[section][name] = value
    return made


def _save(
    folder: Path,
    requests: Sequence[RequestRecord] | None = None,
    *,
    overrides: Sequence[str] = (),
    error: str | None = None,
    **sections: Any,
) -> Path:
    folder.mkdir(parents=True)
    records = _random_requests(0, max_proposal_len=4, num_requests=10) if requests is None else list(requests)
    with RunFiles(folder) as files:
        for record in records:
            files.add(record)
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "overrides.yaml").write_text("".join(f"- {text}\n" for text in overrides) or "[]\n")
    status = StatusFile(folder / "status.json", requests_total=len(records))
    if error is not None:
        status.failed(error)
        return folder
    status.done()
    results = _results(records, max_proposal_len=4, **{"config": config(), **sections})
    write_results(folder / "results.json", results)
    return folder


@pytest.fixture
def save_run() -> Callable[..., Path]:
    """``save_run(folder, requests, overrides=, error=, **sections of results)``: the files of a run, and its folder."""
    return _save


@pytest.fixture(scope="session")
def real_sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Two lengths on two block sizes, really run."""
    folder = tmp_path_factory.mktemp("real")
    points = ("proposal.max_proposal_len=1,3", "kv_cache.block_size=8,16", "kv_cache.num_blocks=24")
    small = ("data.limit=8", "sampling.max_new_tokens=6", "max_num_seqs=8", "logger=none", "hydra.sweep.dir=sweep")
    with working_directory(folder), shapes_unchecked():
        assert main(["-m", *points, *small, *QUIET]) == 0
    return load_sweep(folder / "sweep")


@pytest.fixture(scope="session")
def real_run(real_sweep: Sweep) -> Run:
    """One of its runs, with proposals of up to 3 tokens."""
    return real_sweep.runs[-1]
