"""Tokenizers are compared token by token."""

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from spec_harness.errors import UserError
from spec_harness.models.vocabulary import check_vocabularies


def tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerBase:
    """One whose token i is ``tokens[i]``."""
    vocab = {token: index for index, token in enumerate(tokens)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocab, unk_token=tokens[0])))


def test_equal_vocabularies_pass() -> None:
    check_vocabularies(tokenizer("abc"), tokenizer("abc"))


def test_the_first_token_that_differs_is_named() -> None:
    with pytest.raises(UserError, match="token 1 is 'x' to the draft and 'b' to the target"):
        check_vocabularies(tokenizer("axyd"), tokenizer("abcd"))


@pytest.mark.parametrize(("draft", "target"), [("ab", "abcd"), ("abcd", "ab")])
def test_only_ids_that_both_have_are_compared(draft: str, target: str) -> None:
    check_vocabularies(tokenizer(draft), tokenizer(target))
