"""Scoring: the target's distribution at every position of the proposals, in one forward."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spec_harness.proposers.base import Proposals
from spec_harness.requests import SequenceMetadata
from spec_harness.worker.worker import Worker


@dataclass(frozen=True)
class TargetScores:
    """The target at positions len, len + 1, ... of each row; k1 = k + 1; 0 past the proposal's length."""

    probs: Float[Tensor, "B k1 V"]  # processed
    logits: Float[Tensor, "B k1 V"]  # raw


def score_proposals(worker: Worker, metadata: Sequence[SequenceMetadata], proposals: Proposals) -> TargetScores:
    """Feeds each sequence's last token and its proposal (T = sum of 1 + lens tokens): no batch expansion.

    Needs len + l KV slots of each sequence. The target's KV then covers the proposal: rewind after verification.
    """
    batch, k = proposals.token_ids.shape
    packed = [b * k + i for b, n in enumerate(proposals.lens) for i in range(n)]
    pending = proposals.token_ids.reshape(-1)
    if len(packed) < batch * k:
        pending = pending[torch.tensor(packed, dtype=torch.int64, device=pending.device)]
    logits = worker.compute_logits(metadata, pending if packed else None, proposals.lens, score=True)
    raw = worker.sampler.restrict(logits)
    probs = worker.sampler.probs(raw)
    if len(raw) == batch * (k + 1):
        return TargetScores(probs.view(batch, k + 1, -1), raw.view(batch, k + 1, -1))
    places = [b * (k + 1) + i for b, n in enumerate(proposals.lens) for i in range(n + 1)]
    index = torch.tensor(places, device=probs.device)
    padded = [x.new_zeros(batch * (k + 1), x.shape[-1]).index_copy_(0, index, x) for x in (probs, raw)]
    return TargetScores(*(x.view(batch, k + 1, -1) for x in padded))
