"""Files of prompts that are wrong: one line that names the file and the line, and exit code 2."""

import os
from pathlib import Path

import pytest

from spec_harness.cli.evaluate import main
from tests.run_helpers import error_line, everything_below

pytestmark = pytest.mark.usefixtures("clean_process")

GOOD = '{"prompt": "import os"}\n'
BAD_FILES = [
    ("", "is empty"),
    ("\n  \n", "is empty"),
    (GOOD * 2 + '{"prompt": \n', "line 3: not valid JSON"),
    (GOOD + '"import os"\n', "line 2: must be a JSON object"),
    (GOOD + '{"prompt": ""}\n', "line 2: prompt is empty"),
    (GOOD + "\n" + '{"turns": ["a", " "]}\n', "line 3: turns[1] is empty"),
    (GOOD + '{"text": "a"}\n', "line 2: must have exactly one of prompt, messages and turns; it has none of them"),
    (GOOD + '{"prompt": "a", "turns": ["b"]}\n', "it has prompt and turns"),
    (GOOD + '{"prompt": 3}\n', "line 2: prompt must be a text or null, not 3"),
    (GOOD + '{"messages": [{"role": "user"}]}\n', "line 2: messages[0].content is missing"),
    (GOOD + '{"prompt": "a", "max_new_tokens": 0}\n', "line 2: max_new_tokens must be at least 1, not 0"),
    (GOOD + '{"prompt": "a", "max_proposal_len": "4"}\n', "line 2: max_proposal_len must be a whole number"),
    (GOOD + '{"prompt": "a", "max_new_tokens": ' + "9" * 5000 + "}\n", "line 2: not valid JSON"),
    (GOOD + "[" * 100_000 + "\n", "line 2: not valid JSON"),
    (GOOD + '{"prompt": "\\ud800"}\n', "line 2: prompt holds half of a surrogate pair"),
    ('{"prompt": "x", "id": "\\ud800"}\n', "line 1: id holds half of a surrogate pair"),
    ('{"prompt": "x", "category": "\\udfff"}\n', "line 1: category holds half of a surrogate pair"),
    (
        '{"messages": [{"role": "\\ud800", "content": "x"}, {"role": "user", "content": "x"}]}\n',
        "line 1: messages[0].role holds half of a surrogate pair",
    ),
    ('{"prompt": "x", "category": "a\\u001b[31mb"}\n', "line 1: category 'a\\x1b[31mb' holds a control character"),
    ('{"prompt": "x", "id": "a\\nb"}\n', "line 1: id 'a\\nb' holds a control character"),
    ('{"prompt": "a", "id": 7}\n{"prompt": "b", "id": "7"}\n', "line 2: id '7' is already used in line 1"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_a_wrong_file_of_prompts(content: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    assert main(["data=jsonl", f"data.path={path}"]) == 2
    line = error_line(capfd.readouterr().err)
    assert f"data.path: {path}" in line
    assert message in line
    assert everything_below(tmp_path) == ["prompts.jsonl"]


def test_a_missing_file_of_prompts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["data=jsonl", "data.path=nowhere.jsonl"]) == 2
    assert f"data.path: {tmp_path / 'nowhere.jsonl'} does not exist" in error_line(capfd.readouterr().err)
    assert everything_below(tmp_path) == []


def test_a_file_of_prompts_that_is_no_regular_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main([f"data.path={tmp_path / 'pipe'}"]) == 2
    assert "is no regular file" in error_line(capfd.readouterr().err)
