"""Prompts from a JSONL file: read, checked and filtered with the standard library alone.

The command reads the file before it loads any model, so that a mistake in it costs no time. Nothing here knows models
or tokenizers: whether a prompt is too long is for them to say.
"""

import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from spec_harness.errors import UserError

BUILTIN_PROMPTS = Path(__file__).parents[1] / "assets" / "prompts.jsonl"
NO_CATEGORY = "uncategorized"
_FORMS = ("prompt", "messages", "turns")


@dataclass(frozen=True, kw_only=True)
class PromptRow:
    """One request as the file states it. Exactly one of ``prompt``, ``messages`` and ``turns`` is set."""

    id: str  # unique in its file; by default made of the line number
    category: str = NO_CATEGORY
    prompt: str | None = None
    messages: tuple[dict[str, str], ...] | None = None  # one conversation, each message with `role` and `content`
    turns: tuple[str, ...] | None = None  # what the user says, turn by turn
    max_new_tokens: int | None = None  # tokens; null: as the run
    max_proposal_len: int | None = None  # tokens; a cap below the run's


def rows_sha256(rows: Sequence[PromptRow]) -> str:
    """Of everything that the rows ask for: two runs with the same one had the same prompts, later turns and limits."""
    return sha256(json.dumps([asdict(row) for row in rows], sort_keys=True).encode()).hexdigest()


def read_jsonl(path: Path) -> list[PromptRow]:
    """All rows of the file, in its order; blank lines and unknown keys are ignored.

    Raises UserError, naming the file and the line, for anything that cannot be evaluated as it stands.
    """
    return _rows(_read_lines(path), str(path))


def rows_of(prompts: Sequence[str | Mapping[str, Any]]) -> list[PromptRow]:
    """Rows given in Python: texts to complete, or mappings with the keys of a line of the file. Each is what it would
    be as a line there. Raises ``UserError``."""
    objects = [{"prompt": prompt} if isinstance(prompt, str) else dict(prompt) for prompt in prompts]
    return _rows([(number, json.dumps(row)) for number, row in enumerate(objects, start=1)], "prompts")


def _rows(lines: Sequence[tuple[int, str]], source: str) -> list[PromptRow]:
    rows: list[PromptRow] = []
    lines_of_ids: dict[str, int] = {}
    for number, line in lines:
        try:
            row = _parse_row(line, default_id=f"line-{number}")
        except UserError as error:
            raise UserError(f"{source}, line {number}: {error}") from error
        if row.id in lines_of_ids:
            raise UserError(f"{source}, line {number}: id {row.id!r} is already used in line {lines_of_ids[row.id]}")
        lines_of_ids[row.id] = number
        rows.append(row)
    if not rows:
        raise UserError(f"{source} is empty: it needs one JSON object with a prompt on each line")
    return rows


def select_rows(rows: Sequence[PromptRow], *, limit: int | None, category: str | None) -> list[PromptRow]:
    """The first ``limit`` rows of the category; UserError if there is no such category."""
    if category is not None:
        known = sorted({row.category for row in rows})
        if category not in known:
            raise UserError(f"data.category: no prompt has the category {category!r}; there are {', '.join(known)}")
        rows = [row for row in rows if row.category == category]
    return list(rows[:limit])


def _read_lines(path: Path) -> list[tuple[int, str]]:
    """Numbered lines that are not blank. Only line feeds separate them: JSON strings may hold Unicode's separators."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path} is no regular file; it must be a JSONL file of prompts")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; it must be a JSONL file of prompts") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _parse_row(line: str, *, default_id: str) -> PromptRow:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"not valid JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets nested without end
        raise UserError(f"not valid JSON: {str(error).split(';')[0]}") from error
    if not isinstance(row, dict):
        raise UserError(f'must be a JSON object such as {{"prompt": "..."}}, not {_kind(row)}')
    given = [form for form in _FORMS if row.get(form) is not None]
    if len(given) != 1:
        found = f"it has {' and '.join(given)}" if given else "it has none of them"
        raise UserError(f"must have exactly one of prompt, messages and turns; {found}")
    return PromptRow(
        id=_row_id(row, default_id),
        category=_label("category", _text(row, "category") or NO_CATEGORY),
        prompt=_prompt(row),
        messages=_messages(row),
        turns=_turns(row),
        max_new_tokens=_count(row, "max_new_tokens", minimum=1),
        max_proposal_len=_count(row, "max_proposal_len", minimum=0),
    )


def _row_id(row: dict[str, Any], default: str) -> str:
    """Spec-Bench calls it ``question_id``, and numbers are as good as texts."""
    value = row.get("id", row.get("question_id"))
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f"id must be a text or a whole number, not {_kind(value)}")
    return _label("id", str(value))


def _prompt(row: dict[str, Any]) -> str | None:
    prompt = _text(row, "prompt")
    if prompt is not None:
        _check_not_empty("prompt", prompt)
    return prompt


def _turns(row: dict[str, Any]) -> tuple[str, ...] | None:
    turns = row.get("turns")
    if turns is None:
        return None
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise UserError("turns must be a list of at least one text")
    for index, turn in enumerate(turns):
        _check_not_empty(f"turns[{index}]", turn)
    return tuple(turns)


def _messages(row: dict[str, Any]) -> tuple[dict[str, str], ...] | None:
    messages = row.get("messages")
    if messages is None:
        return None
    if not isinstance(messages, list) or not messages:
        raise UserError("messages must be a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise UserError(f"messages[{index}] must be an object with the texts role and content")
        for key in ("role", "content"):
            _check_characters(f"messages[{index}].{key}", message[key])
    _check_not_empty(f"messages[{len(messages) - 1}].content", messages[-1]["content"])
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)


def _text(row: dict[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise UserError(f"{key} must be a text, not {_kind(value)}")
    return value


def _count(row: dict[str, Any], key: str, *, minimum: int) -> int | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{key} must be a whole number, not {_kind(value)}")
    if value < minimum:
        raise UserError(f"{key} must be at least {minimum}, not {value}")
    return value


def _check_not_empty(key: str, text: str) -> None:
    if not text.strip():
        raise UserError(f"{key} is empty")
    _check_characters(key, text)


def _label(key: str, text: str) -> str:
    """Names stand in tables and titles, where a control character would do as it likes."""
    _check_characters(key, text)
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise UserError(f"{key} {text!r} holds a control character")
    return text


def _check_characters(key: str, text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{key} holds half of a surrogate pair (\\ud800 to \\udfff), which is no character")


def _kind(value: Any) -> str:
    """JSON's name of a value's type."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"
