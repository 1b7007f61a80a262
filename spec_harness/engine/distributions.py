"""How far apart draft and target are at each drafted position, whatever the sampling: from their raw distributions."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

_SMALLEST_LOG_PROB = -87.0  # about the log of the smallest normal float32: keeps a divergence finite


@dataclass(frozen=True)
class DistributionStatistics:
    """Of the temperature-1 softmax of both models at each drafted position; entropies and divergence in nats."""

    draft_entropy: Float[Tensor, "B k"]
    target_entropy: Float[Tensor, "B k"]
    kl_target_draft: Float[Tensor, "B k"]  # sum over v of target * log(target / draft)
    target_rank_in_draft: Int[Tensor, "B k"]  # of the target's most probable token: 1 if it is the draft's too


def compare_distributions(
    draft_logits: Float[Tensor, "B k V"], target_logits: Float[Tensor, "B k V"]
) -> DistributionStatistics:
    """Token ids that a model lacks have logit -inf; where the target has them and the draft not, the draft's
    log-probability counts as -87 nats."""
    draft = draft_logits.log_softmax(-1).clamp_min(_SMALLEST_LOG_PROB)
    target = target_logits.log_softmax(-1).clamp_min(_SMALLEST_LOG_PROB)
    target_probs = target.exp()
    target_entropy = -torch.linalg.vecdot(target_probs, target)
    best = draft_logits.gather(-1, target_logits.argmax(-1, keepdim=True))
    return DistributionStatistics(
        draft_entropy=-torch.linalg.vecdot(draft.exp(), draft),
        target_entropy=target_entropy,
        kl_target_draft=(-torch.linalg.vecdot(target_probs, draft) - target_entropy).clamp_min(0.0),
        target_rank_in_draft=1 + (draft_logits > best).sum(-1),
    )
