"""Batched greedy decoding of a Llama on a preallocated cache: one bf16 matmul a projection."""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM


class GreedyDecoder:
    """Greedy continuations of equally long prompts; residuals fp32, products bf16."""

    def __init__(self, model: LlamaForCausalLM, *, max_length: int) -> None:
        config = model.config
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads or config.num_attention_heads
        self.head_dim = config.head_dim or config.hidden_size // self.heads
        self.epsilon = config.rms_norm_eps
        self.max_length = max_length
        positions = torch.arange(max_length)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1), positions)
        self.cos, self.sin = cos[0, :, None].float(), sin[0, :, None].float()
        self.embedding = model.model.embed_tokens.weight.detach()
        self.head = self.embedding.bfloat16()
        self.final_norm = model.model.norm.weight.detach()
        self.layers = []
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            qkv = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
            gate_up = [mlp.gate_proj.weight, mlp.up_proj.weight]
            self.layers.append(
                (
                    layer.input_layernorm.weight.detach(),
                    torch.cat(qkv).detach().bfloat16(),
                    attention.o_proj.weight.detach().bfloat16(),
                    layer.post_attention_layernorm.weight.detach(),
                    torch.cat(gate_up).detach().bfloat16(),
                    mlp.down_proj.weight.detach().bfloat16(),
                )
            )

    @torch.inference_mode()
    def continue_prompts(self, prompts: Tensor, *, new_tokens: int, top: int) -> tuple[Tensor, Tensor]:
        """[B, L] prompts to the top log-probabilities and ids, both [B, new_tokens, top].

        ids[:, :, 0] is the greedy continuation; decoding does not stop at end-of-text.
        """
        batch, length = prompts.shape
        # Keys are kept transposed: the product with one query is twice as fast.
        outer, room = (len(self.layers), batch, self.kv_heads), length + new_tokens
        cache = (
            torch.zeros(*outer, self.head_dim, room, dtype=torch.bfloat16),
            torch.zeros(*outer, room, self.head_dim, dtype=torch.bfloat16),
        )
        values, ids = [], []
        tokens, start = prompts, 0
        for _ in range(new_tokens):
            logits = self._forward(tokens, start, cache)
            best = logits.topk(top, dim=-1)
            values.append(best.values - logits.logsumexp(dim=-1, keepdim=True))
            ids.append(best.indices)
            start += tokens.shape[1]
            tokens = best.indices[:, :1]
        return torch.stack(values, dim=1), torch.stack(ids, dim=1)

    def _forward(self, tokens: Tensor, start: int, cache: tuple[Tensor, Tensor]) -> Tensor:
        """[B, T] tokens at positions start… to fp32 logits [B, V] after the last one."""
        batch, count = tokens.shape
        end = start + count
        cos, sin = self.cos[start:end], self.sin[start:end]
        query_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        states = functional.embedding(tokens, self.embedding)
        for (norm_1, qkv, out, norm_2, gate_up, down), all_keys, all_values in zip(self.layers, *cache, strict=True):
            projected = (self._norm(states, norm_1) @ qkv.T).view(batch, count, -1, self.head_dim)
            query, key, value = projected.split([n // self.head_dim for n in (query_width, kv_width, kv_width)], dim=2)
            keys, values = all_keys[..., :end], all_values[:, :, :end]
            keys[..., start:] = rotate(key, cos, sin).permute(0, 2, 3, 1)
            values[:, :, start:] = value.transpose(1, 2)
            attended = self._attend(rotate(query, cos, sin), keys, values)
            states = states + attended @ out.T
            gate, up = (self._norm(states, norm_2) @ gate_up.T).chunk(2, dim=-1)
            states = states + (functional.silu(gate) * up) @ down.T
        last = self._norm(states[:, -1], self.final_norm)
        logits: Tensor = (last @ self.head.T).float()
        return logits

    def _norm(self, states: Tensor, weight: Tensor) -> Tensor:
        normed = functional.rms_norm(states, weight.shape, weight, self.epsilon)
        return normed.bfloat16()

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [B, T, H, D], keys [B, KV, D, S], values [B, KV, S, D]; returns [B, T, H * D]."""
        batch, count, heads, width = query.shape
        if count > 1:  # a prefill from an empty cache
            result = functional.scaled_dot_product_attention(
                query.transpose(1, 2), keys.mT, values, is_causal=True, enable_gqa=True
            )
            return result.transpose(1, 2).reshape(batch, count, heads * width)
        grouped = query.view(batch, self.kv_heads, heads // self.kv_heads, width)
        scores = (grouped @ keys).float() * width**-0.5
        mixed: Tensor = scores.softmax(dim=-1).bfloat16() @ values
        return mixed.reshape(batch, 1, heads * width)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on [B, T, heads, D]; cos and sin are [T, 1, D]."""
    first, second = states.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (states.float() * cos + turned * sin).bfloat16()
