"""Rows of every form: turns, messages, chat templates, caps and budgets of single rows, ends of text."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spec_harness.models.configured import ASSETS
from spec_harness.report.load import load_run
from tests.run_helpers import (
    TEMPLATE,
    copy_packaged,
    error_line,
    generations_of,
    outputs_of,
    packaged_tokenizer,
    random_checkpoint,
    spec_eval,
    write_jsonl,
)

pytestmark = pytest.mark.usefixtures("clean_process")


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose tokenizer has a chat template; its maximum is 256 tokens."""
    return random_checkpoint(tmp_path_factory.mktemp("models") / "chatty", chat_template=TEMPLATE)


def by_turn(request_id: str) -> list[dict[str, Any]]:
    rows = [row for row in generations_of(Path("run")) if row["request_id"] == request_id]
    return sorted(rows, key=lambda row: row["turn"])


def evaluate(rows: list[dict[str, Any]], *overrides: str, target: Path | None = None) -> int:
    path = write_jsonl(Path("rows.jsonl"), rows)
    models = [] if target is None else [f"target.path={target}", "draft=self"]
    return spec_eval(f"data.path={path}", "sampling.max_new_tokens=6", *models, *overrides)


TALK = [
    {"id": "talk", "turns": ["How many?", "And then?", "Why?"]},
    {"id": "messages", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]},
    {"id": "plain", "prompt": "import os"},
]


def test_turns_and_messages_go_through_the_chat_template(chatty: Path) -> None:
    assert evaluate(TALK, target=chatty) == 0
    first, second, third = by_turn("talk")
    assert first["prompt"] == "<user>How many?</user>\n<assistant>"
    answer = f"<assistant>{first['text']}</assistant>\n"
    assert second["prompt"] == f"<user>How many?</user>\n{answer}<user>And then?</user>\n<assistant>"
    assert third["prompt"].startswith(second["prompt"] + second["text"])
    (messages,) = by_turn("messages")
    assert messages["prompt"] == "<system>Be brief.</system>\n<user>Hello</user>\n<assistant>"
    (plain,) = by_turn("plain")
    assert plain["prompt"] == "import os"
    tokenizer = packaged_tokenizer()
    for row in (first, second, third, messages):
        assert row["prompt_token_ids"] == tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("template", ["auto", "off"])
def test_without_a_template_turns_are_plain_lines(template: str, chatty: Path) -> None:
    """With the packaged tokenizer, which has none, or with the template turned off."""
    target = chatty if template == "off" else None
    assert evaluate(TALK, f"data.chat_template={template}", target=target) == 0
    first, second, _ = by_turn("talk")
    assert first["prompt"] == "How many?\n"
    assert second["prompt"] == f"How many?\n{first['text']}\nAnd then?\n"
    (messages,) = by_turn("messages")
    assert messages["prompt"] == "Be brief.\nHello\n"


def test_later_turns_are_counted_with_their_request(chatty: Path) -> None:
    assert evaluate(TALK, target=chatty) == 0
    results = load_run("run").results
    assert results.proposal.num_requests == 3
    assert results.proposal.num_prefill_tokens == 5
    requests = pq.read_table("run/requests.parquet").to_pylist()
    assert sorted((row["request_id"], row["turn"]) for row in requests) == [
        ("messages", 0),
        ("plain", 0),
        ("talk", 0),
        ("talk", 1),
        ("talk", 2),
    ]
    equality = results.integrity.baseline_equality
    assert equality is not None
    assert (equality.equal + equality.tie, equality.fault) == (5, 0)
    assert not [note for note in results.notes if "ended early" in note]


def test_a_conversation_that_no_longer_fits_ends_early_with_a_note(chatty: Path) -> None:
    long = "word " * 60
    rows = [{"id": "long", "turns": [long, long, long]}, {"id": "short", "turns": ["Hello", "Bye"]}]
    assert evaluate(rows, "target.max_model_len=160", target=chatty) == 0
    assert len(by_turn("short")) == 2
    assert 1 <= len(by_turn("long")) < 3
    (note,) = [note for note in load_run("run").results.notes if "ended early" in note]
    assert note == "1 conversations ended early: their next turn did not fit the target's length or its chat template."


def test_a_template_that_refuses_a_row_is_a_mistake_of_the_input(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}" + TEMPLATE
    target = random_checkpoint(tmp_path / "strict", chat_template=strict)
    assert evaluate(TALK, target=target) == 2
    line = error_line(capfd.readouterr().err)
    assert "rows.jsonl" in line
    assert "prompt 'messages': the chat template refuses its messages: no system role here" in line
    assert not Path("run").exists()


def test_only_prompts_of_the_category() -> None:
    rows = [{"prompt": f"x = {i}", "category": "even" if i % 2 == 0 else "odd"} for i in range(6)]
    assert evaluate(rows, "data.category=odd", "data.limit=2", "baseline=off") == 0
    assert [row["prompt"] for row in sorted(generations_of(Path("run")), key=lambda row: row["request_id"])] == [
        "x = 1",
        "x = 3",
    ]


def test_caps_and_budgets_of_single_rows() -> None:
    rows = [
        {"id": "never", "prompt": "import os", "max_proposal_len": 0},
        {"id": "two", "prompt": "import os", "max_proposal_len": 2},
        {"id": "many", "prompt": "import os", "max_proposal_len": 99},
        {"id": "short", "prompt": "import os", "max_new_tokens": 3},
        {"id": "one", "prompt": "import os", "max_new_tokens": 1},
    ]
    assert evaluate(rows, "sampling.max_new_tokens=12", "sampling.ignore_eos=true") == 0
    lengths = {row["request_id"]: len(row["token_ids"]) for row in generations_of(Path("run"))}
    assert lengths == {"never": 12, "two": 12, "many": 12, "short": 3, "one": 1}
    rounds: dict[str, list[dict[str, Any]]] = {row["id"]: [] for row in rows}
    for row in pq.read_table("run/rounds.parquet").to_pylist():
        rounds[row["request_id"]].append(row)
    longest = {name: max((row["proposal_len"] for row in own), default=None) for name, own in rounds.items()}
    assert longest == {"never": 0, "two": 2, "many": 4, "short": 1, "one": None}
    assert {row["skip_reason"] for row in rounds["never"][:-1]} == {"cap"}
    assert rounds["short"][-1]["skip_reason"] in (None, "budget")
    outputs = outputs_of(Path("run"))
    assert outputs["never", 0] == outputs["two", 0] == outputs["many", 0]  # a cap changes no token
    requests = {row["request_id"]: row for row in pq.read_table("run/requests.parquet").to_pylist()}
    assert requests["never"]["acceptance_rate"] is None
    assert requests["one"]["time_per_output_token"] is None
    assert {row["stop_reason"] for row in requests.values()} == {"length"}


def a_word_in_the_middle(text: str) -> str:
    """A word of letters that ends behind the first third of the text and before its last one."""
    words = "".join(
        c if c.isascii() and c.isalpha() else " " for c in text[len(text) // 3 : 2 * len(text) // 3]
    ).split()
    return max(words, key=len)


def test_a_stop_string_ends_a_text_with_the_token_that_completes_it() -> None:
    rows = [
        {"id": "a", "prompt": "import os\nimport sys\n\n\ndef main("},
        {"id": "b", "prompt": "class Node:\n    def"},
    ]
    assert evaluate(rows, "sampling.max_new_tokens=32", "baseline=off") == 0
    free = {row["request_id"]: row for row in generations_of(Path("run"))}
    stop = a_word_in_the_middle(free["a"]["text"])
    assert evaluate(rows, "sampling.max_new_tokens=32", f"sampling.stop=['{stop}']", "hydra.run.dir=stopped") == 0
    tokenizer = packaged_tokenizer()
    stopped = {row["request_id"]: row for row in generations_of(Path("stopped"))}
    for name, row in free.items():
        tokens = row["token_ids"]
        ends = [n for n in range(1, len(tokens) + 1) if stop in tokenizer.decode(tokens[:n], skip_special_tokens=True)]
        expected = tokens[: ends[0]] if ends else tokens
        assert stopped[name]["token_ids"] == expected
        assert stopped[name]["stop_reason"] == ("stop" if ends else row["stop_reason"])
    assert stopped["a"]["stop_reason"] == "stop"
    assert len(stopped["a"]["token_ids"]) < len(free["a"]["token_ids"])
    assert stop in stopped["a"]["text"]
    verdicts = {row["baseline_verdict"] for row in pq.read_table("stopped/requests.parquet").to_pylist()}
    assert verdicts <= {"equal", "tie"}


def test_an_end_of_sequence_token_ends_a_text_unless_ignored(tmp_path: Path) -> None:
    """A token that the target emits on its own way is declared to be one of its ends of text."""
    small = ("data.limit=3", "sampling.max_new_tokens=20", "proposal.max_proposal_len=6")
    assert spec_eval(*small, "baseline=off", "sampling.ignore_eos=true", run_dir="free") == 0
    free = outputs_of(Path("free"))
    end = next(iter(free.values()))[12]
    target = copy_packaged("target", tmp_path / "target")
    generation = json.loads((ASSETS / "target" / "generation_config.json").read_text())
    (target / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": [end]}))
    assert spec_eval(*small, f"target.path={target}", "draft=self", run_dir="ended") == 0
    ended = {(row["request_id"], row["turn"]): row for row in generations_of(Path("ended"))}
    for key, tokens in free.items():
        expected = tokens[: tokens.index(end) + 1] if end in tokens else tokens
        assert ended[key]["token_ids"] == expected
        assert ended[key]["stop_reason"] == ("eos" if end in tokens else "length")
    assert any(row["stop_reason"] == "eos" for row in ended.values())
    assert load_run("ended").results.proposal.acceptance_rate.value == 1.0
    ignored = ("sampling.ignore_eos=true", f"target.path={target}", "baseline=off")
    assert spec_eval(*small, *ignored, run_dir="ignored") == 0
    assert outputs_of(Path("ignored")) == free
