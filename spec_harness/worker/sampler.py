"""From logits to a processed distribution, and from it to a token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from spec_harness.requests import SequenceMetadata
from spec_harness.worker.randomness import Stream, request_keys, sample_race


@dataclass(frozen=True)
class SamplerOutput:
    """One sampled token per sequence, and the distribution it was drawn from.

    A row that took no part in a step of a multi-step call holds token -1, zero probabilities and zero logits.
    """

    token_ids: Int[Tensor, " B"]
    probs: Float[Tensor, "B V"] | None  # None if greedy: one-hot at the token
    logits: Float[Tensor, "B V"]  # raw, before temperature; 0 where it took no part


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Temperature, then top-k, then top-p; temperature 0 is greedy. ``top_k`` 0 and ``top_p`` 1 are off.

    ``stream`` says what this sampler's tokens are (the draft's or the target's), so that their randomness is
    independent. ``vocab_size`` is that of the target: further draft ids are masked and their mass renormalized away,
    ids the draft lacks get probability 0. ``None`` takes the model's own.
    """

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    stream: Stream
    vocab_size: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def restrict(self, logits: Float[Tensor, "N W"]) -> Float[Tensor, "N V"]:
        """The raw logits as float32, over V = ``vocab_size`` ids (W: those of the model)."""
        logits = logits.to(torch.float32)
        if self.vocab_size is None:
            return logits
        missing = self.vocab_size - logits.shape[-1]
        return pad(logits, (0, missing), value=float("-inf")) if missing > 0 else logits[..., : self.vocab_size]

    def probs(self, logits: Float[Tensor, "N W"]) -> Float[Tensor, "N V"]:
        """The processed distribution, float32, over V = ``vocab_size`` ids (W: those of the model). A row with NaN or
        +inf logits becomes NaN at its maximum, greedy too, so that whoever copies results to the host can tell (a check
        here would wait for the device).

        Ties at the edge: top-k keeps all logits equal to the k-th; top-p keeps the smallest set that reaches ``top_p``.
        """
        logits = self.restrict(logits)
        if self.greedy:
            best, index = logits.max(-1, keepdim=True)
            return torch.zeros_like(logits).scatter_(-1, index, best - best + 1.0)
        logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            kth = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < kth, float("-inf"))
        if self.top_p < 1.0:
            ranked, order = logits.sort(dim=-1, descending=True, stable=True)
            before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)
            ranked = ranked.masked_fill(before >= self.top_p, float("-inf"))
            logits = torch.empty_like(logits).scatter_(-1, order, ranked)
        return logits.softmax(-1)

    def sample(self, logits: Float[Tensor, "B W"], metadata: Sequence[SequenceMetadata], offset: int) -> SamplerOutput:
        """Draws the token at position ``len(sequence) + offset`` of each sequence."""
        raw = self.restrict(logits)
        if self.greedy:
            return SamplerOutput(raw.max(-1).indices, None, raw)
        probs = self.probs(raw)
        keys = keys_of(metadata, probs.device)
        positions = torch.tensor([len(m.data) + offset for m in metadata], dtype=torch.int64, device=probs.device)
        return SamplerOutput(sample_race(probs, keys, positions, self.stream), probs, raw)


def keys_of(metadata: Sequence[SequenceMetadata], device: torch.device) -> Int[Tensor, " B"]:
    """The random key of each sequence."""
    return request_keys([m.sampling.seed for m in metadata], [m.sample for m in metadata], device=device)
