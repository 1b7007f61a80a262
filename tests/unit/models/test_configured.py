"""Models and tokenizers by configuration: which folder, which name, whose tokens."""

from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from spec_harness.errors import UserError
from spec_harness.model_config import DraftConfig, TargetConfig
from spec_harness.models.configured import (
    ASSETS,
    load_draft,
    load_model,
    load_tokenizer,
    model_name,
)
from spec_harness.models.load import LoadedModel
from spec_harness.models.vocabulary import check_vocabularies
from tests.helpers import CPU, SMALL

RANDOM = {**SMALL, "model_type": "llama"}


def tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerBase:
    """One whose token i is ``tokens[i]``."""
    vocab = {token: index for index, token in enumerate(tokens)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocab, unk_token=tokens[0])))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (TargetConfig(), "tiny"),
        (TargetConfig(path="org/name"), "org/name"),
        (DraftConfig(kind="self"), "self"),
        (DraftConfig(kind="random", config=RANDOM), "random llama"),
    ],
)
def test_what_a_model_is_called(config: Any, name: str) -> None:
    assert model_name(config) == name


def test_random_models_speak_the_packaged_tokens() -> None:
    packaged = load_tokenizer(TargetConfig())
    random = load_tokenizer(TargetConfig(kind="random", config=RANDOM))
    assert random.get_vocab() == packaged.get_vocab()


def test_the_packaged_pair_loads_and_shares_its_tokens() -> None:
    check_vocabularies(load_tokenizer(DraftConfig()), load_tokenizer(TargetConfig()))
    sizes = [
        sum(parameter.numel() for parameter in load_model(config, CPU).parameters())
        for config in (DraftConfig(), TargetConfig())
    ]
    assert sizes[0] < sizes[1]
    assert {path.name for path in ASSETS.iterdir() if path.is_dir()} >= {"draft", "target"}


def test_a_missing_tokenizer_names_its_key() -> None:
    with pytest.raises(UserError, match=r"draft\.path=/nowhere: no tokenizer can be loaded: "):
        load_tokenizer(DraftConfig(path="/nowhere"))


def test_random_weights_follow_their_seed() -> None:
    def weights(seed: int) -> Any:
        config = DraftConfig(kind="random", config=RANDOM, seed=seed)
        return load_model(config, CPU).get_output_embeddings().weight

    assert weights(1).equal(weights(1))
    assert not weights(1).equal(weights(2))


def test_a_draft_that_is_the_target_may_be_shorter(target: LoadedModel) -> None:
    packaged = load_tokenizer(TargetConfig())
    draft = load_draft(DraftConfig(kind="self", max_model_len=32), target, packaged, [])
    assert draft.model is target.model
    assert (draft.max_model_len, target.max_model_len) == (32, 256)
    with pytest.raises(UserError, match=r"draft\.max_model_len=300 is above the model's maximum of 256"):
        load_draft(DraftConfig(kind="self", max_model_len=300), target, packaged, [])


def test_a_random_draft_needs_no_tokenizer_of_its_own(target: LoadedModel) -> None:
    config = DraftConfig(kind="random", config=RANDOM)
    draft = load_draft(config, target, tokenizer("other"), [])
    assert draft.vocab_size == SMALL["vocab_size"]
