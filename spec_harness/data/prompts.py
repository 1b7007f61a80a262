"""Prompts from a JSONL file: read, checked and filtered.

The command reads the file before it loads any model, so that a mistake in it costs no time. Nothing here knows models
or tokenizers: whether a prompt is too long is for them to say.
"""

import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import TypedDict

from spec_harness.errors import UserError
from spec_harness.validation import shown, validated

BUILTIN_PROMPTS = Path(__file__).parents[1] / "assets" / "prompts.jsonl"
NO_CATEGORY = "uncategorized"
_FORMS = ("prompt", "messages", "turns")


class Message(TypedDict):
    """One message of a conversation. Further keys are ignored."""

    role: str
    content: str


class PromptRow(BaseModel):
    """One request as the file states it. Exactly one of ``prompt``, ``messages`` and ``turns`` is set."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    id: str  # unique in its file; by default made of the line number
    category: str = NO_CATEGORY
    prompt: str | None = None
    messages: tuple[Message, ...] | None = Field(default=None, min_length=1, strict=False)  # one conversation
    turns: tuple[str, ...] | None = Field(default=None, min_length=1, strict=False)  # what the user says, turn by turn
    max_new_tokens: int | None = Field(default=None, ge=1)  # tokens; null: as the run
    max_proposal_len: int | None = Field(default=None, ge=0)  # tokens; a cap below the run's

    @field_validator("id", mode="before")
    @classmethod
    def _number_as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("category", mode="before")
    @classmethod
    def _none_as_uncategorized(cls, value: object) -> object:
        return NO_CATEGORY if value in (None, "") else value

    @model_validator(mode="after")
    def _texts_can_be_used(self) -> "PromptRow":
        for name in ("id", "category"):
            text = getattr(self, name)
            _check_characters(name, text)
            if any(unicodedata.category(character) == "Cc" for character in text):  # names stand in tables and titles
                raise UserError(f"{name} {text!r} holds a control character")
        if self.prompt is not None:
            _check_text("prompt", self.prompt)
        for index, turn in enumerate(self.turns or ()):
            _check_text(f"turns[{index}]", turn)
        for index, message in enumerate(self.messages or ()):
            _check_characters(f"messages[{index}].role", message["role"])
            _check_characters(f"messages[{index}].content", message["content"])
        if self.messages:
            _check_text(f"messages[{len(self.messages) - 1}].content", self.messages[-1]["content"])
        return self


def rows_sha256(rows: Sequence[PromptRow]) -> str:
    """Of everything that the rows ask for: two runs with the same one had the same prompts, later turns and limits."""
    return sha256(json.dumps([row.model_dump() for row in rows], sort_keys=True).encode()).hexdigest()


def read_jsonl(path: Path) -> list[PromptRow]:
    """All rows of the file, in its order; blank lines and unknown keys are ignored. An unchanged file is read once: the
    command checks it before it loads any model, at each point of a sweep, and then runs it.

    Raises UserError, naming the file and the line, for anything that cannot be evaluated as it stands.
    """
    try:
        found = path.stat()
    except OSError:
        return list(_read(path, None))  # says why
    return list(_read(path, (found.st_ino, found.st_size, found.st_mtime_ns)))


@lru_cache(maxsize=4)
def _read(path: Path, version: tuple[int, int, int] | None) -> tuple[PromptRow, ...]:
    """``version`` tells one state of the file from another."""
    return tuple(_rows(_read_lines(path), str(path)))


def rows_of(prompts: Sequence[str | Mapping[str, Any]]) -> list[PromptRow]:
    """Rows given in Python: texts to complete, or mappings with the keys of a line of the file. Each is what it would
    be as a line there. Raises ``UserError``."""
    if isinstance(prompts, Mapping):
        raise UserError("prompts must be a list of texts or mappings, not one mapping")
    for number, prompt in enumerate(prompts := list(prompts), start=1):
        if not isinstance(prompt, str | Mapping):
            raise UserError(f"prompts, line {number}: must be a text or a mapping, not {shown(prompt)}")
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
        raise UserError(f'must be a JSON object such as {{"prompt": "..."}}, not {shown(row)}')
    given = [form for form in _FORMS if row.get(form) is not None]
    if len(given) != 1:
        found = f"it has {' and '.join(given)}" if given else "it has none of them"
        raise UserError(f"must have exactly one of prompt, messages and turns; {found}")
    name = row.get("id", row.get("question_id"))  # as Spec-Bench calls it
    return validated(PromptRow, {**row, "id": default_id if name is None else name})


def _check_text(key: str, text: str) -> None:
    if not text.strip():
        raise UserError(f"{key} is empty")
    _check_characters(key, text)


def _check_characters(key: str, text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{key} holds half of a surrogate pair (\\ud800 to \\udfff), which is no character")
