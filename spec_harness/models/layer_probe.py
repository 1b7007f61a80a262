"""Which layers of a model cache keys and values, and of what shape: found by one dense forward that records them.

Some architectures never call the registered attention function, or only in some layers, or several times in one layer,
or attend within chunks: they are refused by name.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from spec_harness.errors import UserError
from spec_harness.kv_cache.kv_cache import LayerShape

_PROBE = "spec_harness_probe"
_LAYER_TYPES = {"full_attention", "sliding_attention"}

Refuse = Callable[[str], UserError]


@dataclass(frozen=True)
class _Call:
    """A layer that called the attention interface."""

    layer: int
    shape: LayerShape
    has_mask: bool


_probe_calls: ContextVar[list[_Call]] = ContextVar("calls of the attention interface in one forward, in order")


@contextmanager
def refusing_errors(refuse: Refuse) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        raise refuse(f"its forward fails ({(str(error).strip() or type(error).__name__).splitlines()[0]})") from error


def check_config(model: PreTrainedModel, max_model_len: int, refuse: Refuse) -> None:
    config = model.config.get_text_config()
    others = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if others:
        raise refuse(f"it has layers of type {', '.join(sorted(others))}; only full and sliding attention can be paged")
    if getattr(config, "attention_chunk_size", None) is not None:
        raise refuse("it attends within chunks (attention_chunk_size)")
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if parameters.get("rope_type") not in ("dynamic", "longrope"):
            continue
        original = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
        if max_model_len > original:
            raise refuse(
                f"its {parameters['rope_type']} rotary scale depends on the longest sequence of a batch beyond "
                f"{original} tokens; set max_model_len={original} or lower"
            )


def probe_layers(model: PreTrainedModel, refuse: Refuse) -> list[LayerShape]:
    """One dense forward that records which layers call the attention interface, and what they would cache."""
    model.set_attn_implementation(_PROBE)
    if model.config._attn_implementation != _PROBE:
        raise refuse("transformers cannot set its attention function")
    calls: list[_Call] = []
    token = _probe_calls.set(calls)
    try:
        with torch.inference_mode(), refusing_errors(refuse):
            ids = torch.arange(1, 5, device=model.device)[None]
            model(input_ids=ids, position_ids=torch.arange(4, device=model.device)[None], use_cache=False)
    finally:
        _probe_calls.reset(token)
    seen = {call.layer: call.shape for call in calls}
    expected = int(model.config.get_text_config().num_hidden_layers)
    if set(seen) != set(range(expected)):
        raise refuse(f"{len(seen)} of its {expected} layers use the attention interface, all must")
    if len(calls) != expected:
        raise refuse(
            f"its {expected} layers attend {len(calls)} times in one forward, and only one set of keys and values is "
            "cached per layer"
        )
    if any(call.has_mask for call in calls):
        raise refuse("its layers mask their attention themselves")
    return [seen[i] for i in range(expected)]


def _probe_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **_: Any
) -> tuple[Tensor, None]:
    shape = LayerShape(key.shape[1], key.shape[3], value.shape[3])
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # nn.Module types every attribute as Tensor | Module
    _probe_calls.get().append(_Call(layer, shape, attention_mask is not None))
    shared = query.shape[1] // key.shape[1]
    out = scaled_dot_product_attention(
        query, key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1), is_causal=True
    )
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(_PROBE, _probe_attention)
