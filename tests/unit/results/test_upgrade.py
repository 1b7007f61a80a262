"""Files of version 1, made by the code that wrote them, are read as version 2."""

import json
from pathlib import Path
from typing import Any

import pytest

from spec_harness.results.schema import ProposerIdentity, read_results, write_results
from spec_harness.results.upgrade import upgraded

V1 = Path(__file__).parents[2] / "fixtures" / "results_v1.json"


def test_a_file_of_version_1_is_read(tmp_path: Path) -> None:
    before = json.loads(V1.read_text())
    results = read_results(V1)
    assert results.provenance.proposer == ProposerIdentity(name="draft_model", label="tiny")
    write_results(tmp_path / "results.json", results)
    after = json.loads((tmp_path / "results.json").read_text())
    assert after["provenance"].pop("proposer") == {"name": "draft_model", "label": "tiny"}
    assert after == before | {"schema_version": 2}


@pytest.mark.parametrize(
    ("bars", "proposer"),
    [
        ([3, 1, 0], ProposerIdentity(name="ngram", label="n-gram lookup")),
        ([0], ProposerIdentity(name="none", label="no proposals")),
    ],
)
def test_a_proposer_without_a_model_is_inferred(tmp_path: Path, bars: list[int], proposer: ProposerIdentity) -> None:
    content: dict[str, Any] = json.loads(V1.read_text())
    content["provenance"]["draft"] = None
    content["proposal"]["accepted_length_histogram"] = bars
    (tmp_path / "results.json").write_text(json.dumps(content))
    assert read_results(tmp_path / "results.json").provenance.proposer == proposer


@pytest.mark.parametrize("text", [b"", b"[1]", b"{}", b'{"schema_version": 1}', b'{"schema_version": 2}', b"\xff"])
def test_what_is_no_whole_version_1_is_left_to_the_schema(text: bytes) -> None:
    assert upgraded(text) == text
