"""Loading Hugging Face causal language models so that they can run on the paged cache.

Each model gets a config of its own: setting the attention implementation changes the config.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from spec_harness.errors import UserError
from spec_harness.kv_cache.kv_cache import LayerShape
from spec_harness.models.paged_check import PagedCheck, check_paged_attention

# What transformers raises for a config or a checkpoint that cannot be; out of memory is none of it.
WRONG_INPUT = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    AssertionError,
    ImportError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model that passed the checks at load, its attention set to the paged one."""

    model: PreTrainedModel
    layers: list[LayerShape]
    max_model_len: int  # tokens (positions)
    vocab_size: int  # width of the logits
    check: PagedCheck

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype


def load_pretrained(
    path: str,
    *,
    where: str,
    device: torch.device,
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> PreTrainedModel:
    """A hub id or a folder. ``where`` is the configuration group, for messages. Raises ``UserError``.

    Weights that are missing from the checkpoint are refused: they would be random, and measured as if they were the
    model's.
    """
    common = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(path, **common)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=copy.deepcopy(config),
            dtype=_dtype(dtype, config, device),
            attn_implementation="eager",
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **common,
        )
    except torch.OutOfMemoryError:
        raise
    except WRONG_INPUT as error:
        raise UserError(f"{where}.path={path}: {_reason(where, path, error)}") from error
    model, info = loaded
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise UserError(f"{where}.path={path}: the checkpoint lacks weights ({len(missing)}, e.g. {missing[0]})")
    return _to(device, model)


def build_random(
    config: Mapping[str, Any], *, where: str, device: torch.device, dtype: str, seed: int
) -> PreTrainedModel:
    """A model with random weights from ``config`` (``model_type`` and its sizes): for trying an architecture."""
    try:
        model_config = AutoConfig.for_model(**{str(key): value for key, value in config.items()})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: Any = AutoModelForCausalLM.from_config(model_config, attn_implementation="eager")
    except WRONG_INPUT as error:
        raise UserError(f"{where}.config: {first_line(error)}") from error
    return _to(device, model.to(_dtype(dtype, model_config, device)))


def prepare(
    model: PreTrainedModel,
    *,
    where: str,
    max_model_len: int | None,
    samples: Sequence[Sequence[int]] = (),
) -> LoadedModel:
    """Checks that the model may be measured, and switches it to paged attention. Raises ``UserError``.

    ``samples`` are token ids of real prompts to compare logits on; without them they are random.
    """
    length = effective_max_len(model, where=where, wanted=max_model_len)
    layers, check = check_paged_attention(model, where=where, max_model_len=length, samples=samples)
    return LoadedModel(model, layers, length, int(model.get_output_embeddings().weight.shape[0]), check)


def effective_max_len(model: PreTrainedModel, *, where: str, wanted: int | None) -> int:
    """Positions to use: ``wanted``, at most the model's own, which is the default."""
    limit: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and wanted is not None and wanted > limit:
        raise UserError(f"{where}.max_model_len={wanted} is above the model's maximum of {limit} positions")
    length = limit if wanted is None else wanted
    if length is None:
        raise UserError(f"{where}.max_model_len: the model's config names no maximum length; give one")
    return length


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids that end a text: the generation config's, else the config's, else the tokenizer's."""
    for source in (model.generation_config, model.config.get_text_config(), tokenizer):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            return frozenset([value] if isinstance(value, int) else value)
    return frozenset()


# Settings of a generation config that change what is generated, and the values that change nothing.
_NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_p": 0.0,
    "num_beams": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
}


def ignored_penalties(model: PreTrainedModel) -> list[str]:
    """A note for each setting of the checkpoint's generation config that changes logits and is not applied here."""
    notes = []
    for name, neutral in _NEUTRAL.items():
        found = getattr(model.generation_config, name, None)
        if found is not None and found != neutral:
            notes.append(f"The checkpoint's generation config asks for {name}={found}; it is not applied.")
    return notes


def _dtype(name: str, config: PreTrainedConfig, device: torch.device) -> torch.dtype:
    """``auto``: float32 on the CPU; elsewhere what the checkpoint was saved in."""
    if name != "auto":
        return DTYPES[name]
    saved = getattr(config, "dtype", None)
    return saved if device.type != "cpu" and isinstance(saved, torch.dtype) else torch.float32


def _to(device: torch.device, model: PreTrainedModel) -> PreTrainedModel:
    moved: PreTrainedModel = model.to(device).eval().requires_grad_(False)  # type: ignore[arg-type]  # typed for str only
    return moved


def _reason(where: str, path: str, error: Exception) -> str:
    folder = Path(path).expanduser()
    if folder.is_dir() and any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        return (
            "the folder holds only pickled weights; convert them to safetensors, or set "
            f"{where}.allow_pickle=true if you trust them"
        )
    if not folder.exists() and path.startswith(("/", ".", "~")):
        return "no such folder"
    if "ignore_mismatched_sizes" in str(error):
        return "the shapes of the checkpoint's weights are not those of its config"
    return first_line(error)


def first_line(error: Exception) -> str:
    """The first line that says something: a heading that ends in a colon is followed by the line after it."""
    if wrong := re.match(r"Unrecognized configuration class <class '[\w.]+\.(\w+)Config'>", str(error)):
        return f"{wrong[1]} is no causal language model in transformers"
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return f"{lines[0]} {lines[1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
