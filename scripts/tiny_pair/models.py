"""Shapes of the two models, and the optimisers they share."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from tiny_pair.data import CONTEXT, VOCAB_SIZE


def llama_config(*, hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int) -> LlamaConfig:
    """A Llama with tied embeddings; token 0 is end-of-text, and there is no begin-of-text."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=32,
        intermediate_size=intermediate,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )


def target_config() -> LlamaConfig:
    return llama_config(hidden=256, layers=6, heads=8, kv_heads=4, intermediate=704)


def draft_config() -> LlamaConfig:
    return llama_config(hidden=128, layers=2, heads=4, kv_heads=4, intermediate=416)


def build_model(config: LlamaConfig, *, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def add_dropout(model: LlamaForCausalLM, probability: float) -> None:
    """Residual dropout, which Llama lacks; in evaluation mode it does nothing."""

    def drop(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return functional.dropout(output, probability, training=module.training)

    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_hook(drop)
        layer.mlp.down_proj.register_forward_hook(drop)


@torch.no_grad()
def start_from_embeddings(draft: LlamaForCausalLM, target: LlamaForCausalLM, *, deviation: float) -> None:
    """The target's embeddings on their leading directions, scaled: the draft need not learn which tokens are alike."""
    taught = target.model.embed_tokens.weight.detach()
    directions = torch.linalg.svd(taught, full_matrices=False).Vh[: draft.config.hidden_size]
    projected = taught @ directions.T
    draft.model.embed_tokens.weight.copy_(projected * (deviation / projected.std()))


def parameter_count(model: nn.Module) -> int:
    """Tied embeddings count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def hidden_states(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """[B, T] token ids to [B, T, hidden], before the output head."""
    states: Tensor = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    return states


def build_optimizers(model: nn.Module, *, matrix_lr: float, other_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name
        (matrices if matrix else others).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=0.1, momentum=0.95),
        torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def schedule_factor(fraction: float, *, warm_up: float = 0.015) -> float:
    """Learning-rate factor at a fraction of the run: short warm-up, then linearly to zero."""
    if fraction < warm_up:
        return max(fraction / warm_up, 0.02)
    return max((1.0 - fraction) / (1.0 - warm_up), 0.0)
