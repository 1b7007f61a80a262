"""Rows of JSONL files. What is refused, and in which words, is tested where the command prints it."""

import json
from pathlib import Path
from typing import Any

import pytest

from spec_harness.data.prompts import BUILTIN_PROMPTS, NO_CATEGORY, PromptRow, read_jsonl, select_rows
from spec_harness.errors import UserError


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_three_forms(tmp_path: Path) -> None:
    message = {"role": "user", "content": "hi", "name": "ignored"}
    path = write(
        tmp_path / "p.jsonl",
        {"prompt": "import os", "id": "a", "category": "code", "max_new_tokens": 3, "max_proposal_len": 0},
        {"messages": [message], "unknown": 1},
        {"turns": ["one", "two"], "question_id": 81},
    )
    assert read_jsonl(path) == [
        PromptRow(id="a", category="code", prompt="import os", max_new_tokens=3, max_proposal_len=0),
        PromptRow(id="line-2", messages=({"role": "user", "content": "hi"},)),
        PromptRow(id="81", turns=("one", "two")),
    ]


def test_a_line_ends_only_at_a_line_feed(tmp_path: Path) -> None:
    """U+2028 is a legal character of a JSON string, and ``str.splitlines`` cuts there."""
    path = write(tmp_path / "p.jsonl", {"prompt": "a\u2028b"}, {"prompt": "c"})
    assert [row.prompt for row in read_jsonl(path)] == ["a\u2028b", "c"]


def test_windows_line_ends_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}')
    assert [(row.id, row.prompt) for row in read_jsonl(path)] == [("line-1", "a"), ("line-3", "b")]


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        read_jsonl(path)


def test_an_unchanged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command read it at each point of a sweep, and again for the run."""
    path = write(tmp_path / "p.jsonl", {"prompt": "a"})
    first = read_jsonl(path)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("read again"))
    assert read_jsonl(path) == first
    monkeypatch.undo()
    write(path, {"prompt": "ab"})
    assert [row.prompt for row in read_jsonl(path)] == ["ab"]


def test_selection() -> None:
    rows = [PromptRow(id=str(index), category="even" if index % 2 == 0 else "odd", prompt="x") for index in range(6)]
    assert [row.id for row in select_rows(rows, limit=2, category="odd")] == ["1", "3"]
    assert select_rows(rows, limit=None, category=None) == rows
    with pytest.raises(UserError, match="'prime'; there are even, odd"):
        select_rows(rows, limit=None, category="prime")


def test_the_packaged_prompts() -> None:
    rows = read_jsonl(BUILTIN_PROMPTS)
    assert len(rows) >= 8
    assert all(row.prompt and row.category != NO_CATEGORY for row in rows)
