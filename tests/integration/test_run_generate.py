"""Greedy output of whole runs equals transformers' own generation on the target, prompt by prompt, or differs by a tie.

The packaged pair is another kind of fixture than random models: its margins are those of real text, so a numerical tie
may come up. A first difference is then teacher-forced through the dense model and must be one.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from spec_harness.models.configured import ASSETS
from tests.run_helpers import generations_of, spec_eval

# Two differently shaped float32 forwards of the packaged model differ by less, as a share of the largest |logit|.
ROUNDING = 1e-5

pytestmark = pytest.mark.usefixtures("clean_process")


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(ASSETS / "target", dtype=torch.float32, attn_implementation="eager")


@torch.inference_mode()
def generate(target: PreTrainedModel, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    ids = torch.tensor([list(prompt)])
    output = target.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens)
    return output[0, len(prompt) :].tolist()


@torch.inference_mode()
def relative_margin(target: PreTrainedModel, context: Sequence[int], tokens: Sequence[int]) -> float:
    """How far the least likely of ``tokens`` is from the best one after ``context``, as a share of the largest
    |logit|."""
    logits = target(input_ids=torch.tensor([list(context)]), use_cache=False).logits[0, -1]
    return float((logits.max() - logits[list(tokens)].min()) / logits.abs().max())


def assert_equal_or_tied(target: PreTrainedModel, *, max_new_tokens: int, count: int) -> None:
    rows = generations_of(Path("run"))
    assert len(rows) == count
    ties = 0
    for row in rows:
        prompt, ours = row["prompt_token_ids"], row["token_ids"]
        theirs = generate(target, prompt, max_new_tokens)
        if ours == theirs:
            continue
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        assert at is not None, f"{row['request_id']}: {len(ours)} tokens against {len(theirs)}"
        assert relative_margin(target, prompt + ours[:at], [ours[at], theirs[at]]) <= ROUNDING, row["request_id"]
        ties += 1
    assert ties <= max(1, count // 10)


def test_eight_prompts_are_completed_as_transformers_completes_them(target: PreTrainedModel) -> None:
    assert spec_eval("data.limit=8", "sampling.max_new_tokens=32", "baseline=off") == 0
    assert_equal_or_tied(target, max_new_tokens=32, count=8)


@pytest.mark.slow
def test_every_builtin_prompt_is_completed_as_transformers_completes_it(target: PreTrainedModel) -> None:
    assert spec_eval("baseline=off") == 0
    assert_equal_or_tied(target, max_new_tokens=64, count=72)


def test_a_wrong_token_is_no_tie(target: PreTrainedModel) -> None:
    """The judgment itself can say no: the least likely token is far from the best."""
    context = [5, 6, 7]
    with torch.inference_mode():
        logits = target(input_ids=torch.tensor([context]), use_cache=False).logits[0, -1]
    assert relative_margin(target, context, [int(logits.argmax())]) == 0.0
    assert relative_margin(target, context, [int(logits.argmin())]) > ROUNDING
