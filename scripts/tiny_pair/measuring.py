"""What the model cards say: cross-entropy, overlap, and greedy acceptance by exact replay."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tiny_pair.decoding import GreedyDecoder
from tiny_pair.models import hidden_states


@dataclass(frozen=True)
class Acceptance:
    """Sums over prompts; a rate is a ratio of sums."""

    proposed: int
    accepted: int
    rounds: int
    agreeing: int
    compared: int
    ended: int
    prompts: int

    @property
    def rate(self) -> float:
        return self.accepted / self.proposed

    @property
    def agreement(self) -> float:
        return self.agreeing / self.compared

    def describe(self, *, k: int) -> str:
        return (
            f"greedy acceptance at k={k}: {self.rate:.4f} "
            f"({self.accepted} of {self.proposed} in {self.rounds} rounds, "
            f"same argmax {self.agreement:.4f}, {self.prompts} prompts, "
            f"{self.ended} ended by end-of-text)"
        )


def replay_rounds(agrees: list[bool], *, k: int, max_new_tokens: int) -> tuple[int, int, int]:
    """Proposed, accepted and rounds of greedy speculative decoding along a known continuation.

    agrees[t]: the draft's argmax, given the continuation before t, is its token t. The first
    token comes from the prefill. A round proposes min(k, remaining - 1) tokens; an accepted
    end-of-text (the last token) cuts its round.
    """
    proposed = accepted = rounds = 0
    generated, length = 1, len(agrees)
    while generated < length:
        count = max(0, min(k, max_new_tokens - generated - 1))
        window = agrees[generated : generated + count]
        run = next((i for i, agree in enumerate(window) if not agree), len(window))
        ended_inside = generated + run == length < max_new_tokens
        proposed += run if ended_inside else count
        accepted += run
        rounds += 1
        generated += run + 1
    return proposed, accepted, rounds


@torch.inference_mode()
def greedy_acceptance(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    prompts: list[Tensor],
    *,
    k: int = 4,
    max_new_tokens: int = 64,
) -> Acceptance:
    """Replays the draft along the target's greedy continuations; prompts are [B, L] batches."""
    sums = [0] * 7
    decoder = GreedyDecoder(target, max_length=1024)
    for batch in prompts:
        _, ids = decoder.continue_prompts(batch, new_tokens=max_new_tokens, top=1)
        continuation = ids[:, :, 0]
        tokens = torch.cat([batch, continuation], dim=1)
        states = hidden_states(draft, tokens[:, :-1])[:, batch.shape[1] - 1 :]
        agrees = draft.lm_head(states).argmax(dim=-1) == continuation
        for row, flags in zip(continuation.tolist(), agrees.tolist(), strict=True):
            end = row.index(0) + 1 if 0 in row else len(row)
            counts = replay_rounds(flags[:end], k=k, max_new_tokens=max_new_tokens)
            more = (sum(flags[:end]), end, int(0 in row), 1)
            sums = [total + part for total, part in zip(sums, (*counts, *more), strict=True)]
    return Acceptance(*sums)


@dataclass(frozen=True)
class TextFigures:
    """Means a token over held-out text, temperature 1."""

    target_cross_entropy: float
    draft_cross_entropy: float
    overlap: float
    same_argmax: float
    tokens: int


@torch.inference_mode()
def compare_on_text(target: LlamaForCausalLM, draft: LlamaForCausalLM, batches: list[Tensor]) -> TextFigures:
    """Batches are [rows, length + 1]; the overlap is the sum over the vocabulary of min(p, q)."""
    sums = torch.zeros(4, dtype=torch.float64)
    count = 0
    for batch in batches:
        inputs, labels = batch[:, :-1], batch[:, 1:].unsqueeze(-1)
        p = target(input_ids=inputs, use_cache=False).logits.float().log_softmax(dim=-1)
        q = draft(input_ids=inputs, use_cache=False).logits.float().log_softmax(dim=-1)
        sums += torch.stack(
            [
                -p.gather(-1, labels).sum(),
                -q.gather(-1, labels).sum(),
                torch.minimum(p, q).exp().sum(),
                (p.argmax(dim=-1) == q.argmax(dim=-1)).sum().float(),
            ]
        ).double()
        count += labels.numel()
    target_entropy, draft_entropy, overlap, same_argmax = (sums / count).tolist()
    return TextFigures(
        target_cross_entropy=target_entropy,
        draft_cross_entropy=draft_entropy,
        overlap=overlap,
        same_argmax=same_argmax,
        tokens=count,
    )
