"""Scoring: the target's distribution at every position of the proposals, in one forward."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.proposers.base import SpeculativeProposals
from spec_harness.requests import SequenceMetadata
from spec_harness.worker.worker import Worker


@dataclass(frozen=True)
class TargetScores:
    """The target at positions len, len + 1, ... of each row; k1 = k + 1; 0 past the proposal's length."""

    probs: Float[Tensor, "B k1 V"]  # processed
    logits: Float[Tensor, "B k1 V"]  # raw


class TargetScorer:
    """Feeds each sequence's last token and its proposal (T = sum of 1 + proposal_lens tokens): no batch expansion."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def score(
        self,
        metadata: Sequence[SequenceMetadata],
        proposals: SpeculativeProposals,
        cache_ops: CacheOps | None = None,
    ) -> TargetScores:
        """The target's processed distributions, k1 = k + 1 of each row: entry i of a row is that of position len + i; 0
        past the proposal's length.

        Needs len + l KV slots of each sequence. The target's KV then covers the proposal: rewind after verification.
        """
        self.worker.apply(cache_ops)
        batch, k = proposals.proposal_token_ids.shape
        lens = proposals.lens
        packed = [b * k + i for b, n in enumerate(lens) for i in range(n)]
        pending = proposals.proposal_token_ids.reshape(-1)
        if len(packed) < batch * k:
            pending = pending[torch.tensor(packed, dtype=torch.int64, device=pending.device)]
        logits = self.worker.compute_logits(metadata, pending if packed else None, lens, score=True)
        raw = self.worker.sampler.restrict(logits)
        probs = self.worker.sampler.probs(raw)
        if len(raw) == batch * (k + 1):
            return TargetScores(probs.view(batch, k + 1, -1), raw.view(batch, k + 1, -1))
        places = [b * (k + 1) + i for b, n in enumerate(lens) for i in range(n + 1)]
        index = torch.tensor(places, device=probs.device)
        padded = [x.new_zeros(batch * (k + 1), x.shape[-1]).index_copy_(0, index, x) for x in (probs, raw)]
        return TargetScores(*(x.view(batch, k + 1, -1) for x in padded))
