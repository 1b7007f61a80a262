"""From prompt rows to requests: tokenizing, chat templates, turns."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedTokenizerBase

from spec_harness.data.prompts import PromptRow
from spec_harness.errors import UserError
from spec_harness.requests import Request, RequestRecord, SamplingParams


def request_seed(run_seed: int, request_id: str, turn: int) -> int:
    """A 63-bit seed that depends on the request alone, not on its place in the data set."""
    digest = hashlib.sha256(f"{run_seed}:{request_id}:{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True, kw_only=True)
class PromptEncoder:
    """Makes requests from rows. ``prompt`` texts are completed as they are; ``messages`` and ``turns`` go through the
    tokenizer's chat template (where there is none, or with ``chat_template="off"``, as plain lines)."""

    tokenizer: PreTrainedTokenizerBase
    chat_template: Literal["auto", "off"]
    max_new_tokens: int  # tokens; a row's own value goes before
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    num_samples: int = 1
    seed: int
    stop_token_ids: frozenset[int]
    max_model_len: int  # tokens: the target's maximum

    def first(self, row: PromptRow) -> Request:
        """The request of a row, or of its first turn. Raises ``UserError`` if its prompt is empty or too long."""
        request = self._request(row, 0, self._conversation(row, []))
        length = len(request.prompt_token_ids)
        if not 0 < length < self.max_model_len:
            raise UserError(
                f"prompt {row.id!r} has {length} tokens; the target takes 1 to {self.max_model_len - 1} "
                f"(target.max_model_len is {self.max_model_len})"
            )
        return request

    def next_turn(self, row: PromptRow, history: Sequence[RequestRecord]) -> Request | None:
        """The request of the turn after those in ``history``, if there is one and it still fits the target."""
        if row.turns is None or len(history) >= len(row.turns):
            return None
        request = self._request(row, len(history), self._conversation(row, history))
        return request if len(request.prompt_token_ids) < self.max_model_len else None

    def decode(self, token_ids: list[int]) -> str:
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def token_text(self, token_id: int) -> str:
        """What one token says inside a text; special tokens by their name. Part of a character is a question mark.

        After another token, since some tokenizers drop the space before a text's first.
        """
        before = self.tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
        texts = [self.tokenizer.decode(ids, skip_special_tokens=False) for ids in (before, [*before, token_id])]
        assert all(isinstance(text, str) for text in texts)
        return str(texts[1][len(texts[0]) :])

    def _request(self, row: PromptRow, turn: int, prompt: str | list[dict[str, str]]) -> Request:
        if isinstance(prompt, str):
            text, token_ids = prompt, self.tokenizer(prompt)["input_ids"]
        else:
            try:
                rendered = self.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            except Exception as error:  # a template is a program: many refuse a system message, or two users in a row
                raise UserError(f"prompt {row.id!r}: the chat template refuses its messages: {error}") from error
            assert isinstance(rendered, str)
            # The template writes the special tokens itself.
            text, token_ids = rendered, self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return Request(
            request_id=row.id,
            turn=turn,
            category=row.category,
            prompt=text,
            prompt_token_ids=list(token_ids),
            num_samples=self.num_samples,
            sampling=SamplingParams(
                max_new_tokens=row.max_new_tokens or self.max_new_tokens,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                seed=request_seed(self.seed, row.id, turn),
                stop_token_ids=self.stop_token_ids,
                max_proposal_len=row.max_proposal_len,
            ),
        )

    def _conversation(self, row: PromptRow, history: Sequence[RequestRecord]) -> str | list[dict[str, str]]:
        if row.prompt is not None:
            return row.prompt
        messages: list[dict[str, str]] = [
            {"role": message["role"], "content": message["content"]} for message in row.messages or ()
        ]
        for turn, said in enumerate((row.turns or ())[: len(history) + 1]):
            messages.append({"role": "user", "content": said})
            if turn < len(history):
                messages.append({"role": "assistant", "content": history[turn].text})
        if self.chat_template == "auto" and self.tokenizer.chat_template:
            return messages
        return "\n".join(message["content"] for message in messages) + "\n"
