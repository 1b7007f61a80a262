"""From rows to requests."""

from dataclasses import replace
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from spec_harness.data.encoder import PromptEncoder, request_seed
from spec_harness.data.prompts import PromptRow
from spec_harness.errors import UserError
from spec_harness.requests import RequestRecord
from tests.run_helpers import TEMPLATE, packaged_tokenizer


def encoder(template: str | None = None, **changes: Any) -> PromptEncoder:
    tokenizer = packaged_tokenizer()
    tokenizer.chat_template = template
    values = {
        "tokenizer": tokenizer,
        "chat_template": "auto",
        "max_new_tokens": 8,
        "seed": 0,
        "stop_token_ids": frozenset({3}),
        "max_model_len": 100,
    }
    return PromptEncoder(**(values | changes))


def answer(text: str) -> RequestRecord:
    return RequestRecord(
        request_id="r",
        turn=0,
        sample=0,
        category="",
        prompt="",
        prompt_token_ids=[1],
        token_ids=[2],
        text=text,
        stop_reason="eos",
        time_to_first_token=0.0,
        time_per_output_token=None,
    )


def test_what_a_request_takes_from_its_row_and_from_the_run() -> None:
    made = encoder().first(PromptRow(id="r", category="code", prompt="import os"))
    assert (made.request_id, made.turn, made.category, made.prompt) == ("r", 0, "code", "import os")
    assert made.prompt_token_ids == packaged_tokenizer()("import os")["input_ids"]
    assert (made.sampling.max_new_tokens, made.sampling.max_proposal_len) == (8, None)
    assert made.sampling.stop_token_ids == frozenset({3})
    sampled = encoder(temperature=0.5, top_k=7, top_p=0.9).first(PromptRow(id="r", prompt="x")).sampling
    assert (sampled.temperature, sampled.top_k, sampled.top_p) == (0.5, 7, 0.9)
    own = encoder().first(PromptRow(id="r", prompt="x", max_new_tokens=2, max_proposal_len=0))
    assert (own.sampling.max_new_tokens, own.sampling.max_proposal_len) == (2, 0)


def test_a_request_s_seed_depends_on_nothing_but_itself() -> None:
    """Not on its place in the data set, and the same in every process (unlike ``hash``)."""
    assert request_seed(0, "r", 0) == 8828645712938687264
    seeds = {request_seed(seed, name, turn) for seed in (0, 1) for name in ("a", "b") for turn in (0, 1)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert encoder(seed=5).first(PromptRow(id="r", prompt="x")).sampling.seed == request_seed(5, "r", 0)


MESSAGES = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"})


@pytest.mark.parametrize(
    ("template", "mode", "expected"),
    [
        (TEMPLATE, "auto", "<system>Be brief.</system>\n<user>Hello</user>\n<assistant>"),
        (TEMPLATE, "off", "Be brief.\nHello\n"),
        (None, "auto", "Be brief.\nHello\n"),
    ],
)
def test_messages(template: str | None, mode: str, expected: str) -> None:
    made = encoder(template, chat_template=mode).first(PromptRow(id="r", messages=MESSAGES))
    assert made.prompt == expected


def test_a_template_writes_the_special_tokens_itself() -> None:
    """Tokenized with its own start token, a templated prompt would have two of them."""
    plain = encoder(TEMPLATE)
    start = plain.tokenizer.eos_token
    plain.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, plain.tokenizer.eos_token_id)]
    )
    completed = plain.first(PromptRow(id="r", prompt="Hello")).prompt_token_ids
    templated = plain.first(PromptRow(id="r", messages=MESSAGES)).prompt_token_ids
    assert completed[0] == plain.tokenizer.eos_token_id
    assert templated[0] != plain.tokenizer.eos_token_id


def test_turns_carry_the_answers() -> None:
    row = PromptRow(id="r", turns=("One?", "Two?", "Three?"))
    made = encoder(TEMPLATE)
    assert made.first(row).prompt == "<user>One?</user>\n<assistant>"
    second = made.next_turn(row, [answer("1")])
    assert second is not None
    assert second.turn == 1
    assert second.prompt == "<user>One?</user>\n<assistant>1</assistant>\n<user>Two?</user>\n<assistant>"
    assert second.sampling.seed == request_seed(0, "r", 1)
    assert made.next_turn(row, [answer("1"), answer("2"), answer("3")]) is None


def test_a_row_without_turns_has_no_next_one() -> None:
    assert encoder().next_turn(PromptRow(id="r", prompt="x"), [answer("y")]) is None


def test_a_next_turn_that_does_not_fit_is_none() -> None:
    row = PromptRow(id="r", turns=("One?", "word " * 60))
    made = encoder(max_model_len=100)
    following = made.next_turn(row, [answer("1")])
    assert following is not None
    length = len(following.prompt_token_ids)
    assert replace(made, max_model_len=length + 1).next_turn(row, [answer("1")]) is not None
    assert replace(made, max_model_len=length).next_turn(row, [answer("1")]) is None


def test_a_prompt_must_leave_room_for_a_token() -> None:
    row = PromptRow(id="long", prompt="word " * 20)
    length = len(encoder().first(row).prompt_token_ids)
    assert encoder(max_model_len=length + 1).first(row)
    with pytest.raises(UserError, match=f"prompt 'long' has {length} tokens; the target takes 1 to {length - 1} "):
        encoder(max_model_len=length).first(row)


def test_a_template_s_refusal_names_the_prompt() -> None:
    strict = "{{ raise_exception('Only users may speak') }}"
    with pytest.raises(UserError, match="prompt 'r': the chat template refuses its messages: Only users may speak"):
        encoder(strict).first(PromptRow(id="r", messages=MESSAGES))


def test_text_of_an_output_leaves_special_tokens_out() -> None:
    made = encoder()
    tokens = made.tokenizer("import os")["input_ids"]
    assert made.decode([*tokens, made.tokenizer.eos_token_id]) == "import os"
