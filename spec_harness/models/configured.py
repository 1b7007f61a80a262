"""From a description of a model to the model and its tokenizer."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from spec_harness.errors import UserError
from spec_harness.models.load import (
    WRONG_INPUT,
    LoadedModel,
    build_random,
    first_line,
    load_pretrained,
    prepare,
)
from spec_harness.models.paged_check import attention_set_to
from spec_harness.models.vocabulary import check_vocabularies

ASSETS = Path(__file__).parents[1] / "assets"


@runtime_checkable
class ModelSource(Protocol):
    """Where a model comes from, as plain values: the keys of the groups `draft` and `target`."""

    @property
    def group(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def path(self) -> str | None: ...

    @property
    def revision(self) -> str | None: ...

    @property
    def dtype(self) -> str: ...

    @property
    def max_model_len(self) -> int | None: ...

    @property
    def trust_remote_code(self) -> bool: ...

    @property
    def allow_pickle(self) -> bool: ...

    @property
    def config(self) -> dict[str, Any]: ...

    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class GivenModel:
    """A model in memory (kind ``memory``), taken as it is and where it is. Without a tokenizer a draft is taken to
    speak the target's tokens."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None = None

    @property
    def name(self) -> str:
        return self.model.name_or_path or f"{type(self.model).__name__} in memory"

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Afterwards its mode and its attention are what they were."""
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with attention_set_to(self.model, self.model.config._attn_implementation):
                yield
        finally:
            for module in training:  # one by one: parts of it may have been frozen in eval mode
                module.training = True


def quiet_transformers() -> None:
    """No progress bars and no advice in the terminal; what matters of a load is checked here."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def model_name(config: ModelSource) -> str:
    """What to call a model in a report."""
    if config.kind == "random":
        return f"random {config.config['model_type']}"
    return config.path if config.path is not None else config.kind


def load_tokenizer(config: ModelSource) -> PreTrainedTokenizerBase:
    """A model's own tokenizer; one with random weights speaks the packaged pair's."""
    path = str(ASSETS / "target") if config.kind != "hf" or config.path is None else config.path
    try:
        return AutoTokenizer.from_pretrained(
            path, revision=config.revision or "main", trust_remote_code=config.trust_remote_code
        )
    except WRONG_INPUT as error:
        if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "config.json")):
            raise UserError(f"{config.group}.path={config.path}: the folder holds no model (no config.json)") from error
        raise UserError(
            f"{config.group}.path={config.path}: no tokenizer can be loaded: {first_line(error)}"
        ) from error


def load_model(config: ModelSource, device: torch.device) -> PreTrainedModel:
    """The weights on ``device``, not yet checked."""
    if config.kind == "memory":
        raise UserError(f"{config.group}=memory: a model in memory is given to spec_harness.evaluate, in Python")
    if config.kind == "random":
        return build_random(config.config, where=config.group, device=device, dtype=config.dtype, seed=config.seed)
    path = str(ASSETS / config.group) if config.kind == "tiny" or config.path is None else config.path
    return load_pretrained(
        path,
        where=config.group,
        device=device,
        dtype=config.dtype,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        allow_pickle=config.allow_pickle,
    )


def load_draft(
    config: ModelSource,
    target: LoadedModel,
    tokenizer: PreTrainedTokenizerBase,
    samples: Sequence[Sequence[int]],
    given: GivenModel | None = None,
) -> LoadedModel:
    """The draft model, ``given`` or to be loaded; with ``draft=self`` the target's very weights. Random weights speak
    the target's tokens.

    Raises ``UserError`` if draft and target have different tokenizers.
    """
    if config.kind == "self":
        limit = target.max_model_len if config.max_model_len is None else config.max_model_len
        return prepare(target.model, where="draft", max_model_len=limit, samples=samples)
    own = given.tokenizer if given else load_tokenizer(config) if config.kind not in ("random", "memory") else None
    if own is not None:
        check_vocabularies(own, tokenizer)
    model = given.model if given else load_model(config, target.model.device)
    if model.device != target.model.device:
        raise UserError(
            f"the draft is on {model.device}, the target on {target.model.device}; both must be on one device"
        )
    return prepare(model, where="draft", max_model_len=config.max_model_len, samples=samples)
