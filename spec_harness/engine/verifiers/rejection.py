"""Verification: which draft tokens are kept, and the token that follows them.

Modified rejection sampling (Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023;
Chen et al., "Accelerating large language model decoding with speculative sampling", 2023): the emitted tokens follow
the target's distribution exactly, whatever the draft.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from spec_harness.proposers.base import Proposals
from spec_harness.worker.randomness import Stream, sample_race, uniform


@dataclass(frozen=True)
class Verification:
    """The outcome of one round for B sequences, on the device; k1 = k + 1."""

    output_token_ids: Int[Tensor, "B k1"]  # accepted tokens, then one more (recovered or bonus); -1 padded
    num_accepted: Int[Tensor, " B"]
    passed: Bool[Tensor, "B k"]  # the acceptance test of each draft token, regardless of earlier rejections
    draft_probs: Float[Tensor, "B k"]  # of the draft tokens; 0 past the proposal
    target_probs: Float[Tensor, "B k"]
    expected_acceptance: Float[Tensor, "B k"]  # sum over v of min(draft, target): P(accept) before the token is drawn
    finite: Bool[Tensor, " B"]  # no NaN in any distribution used


@dataclass(frozen=True, kw_only=True)
class RejectionSampler:
    """Accepts draft token y iff ``u * draft(y) < target(y)``, keeps the unbroken prefix, and draws the next token from
    relu(target - draft), with draft = 0 past the end of the proposal.

    Recovered, bonus, skipped and greedy (one-hot) rows are one expression. Randomness comes from the requests' keys, so
    it is independent of the batch.
    """

    greedy: bool = False  # the target is: its distributions are one-hot, so the next token needs no draw

    def verify(
        self,
        target_probs: Float[Tensor, "B k1 V"],
        proposals: Proposals,
        keys: Int[Tensor, " B"],
        first_positions: Int[Tensor, " B"],
    ) -> Verification:
        """k1 = k + 1: one more distribution than draft tokens. ``first_positions[b]`` is the position that the first
        proposed token of row b would take."""
        batch, k = proposals.token_ids.shape
        device = target_probs.device
        offsets = torch.arange(k + 1, device=device)
        proposed = offsets[:k] < torch.tensor(proposals.lens, device=device)[:, None]
        tokens = proposals.token_ids.clamp_min(0)[..., None]
        target = target_probs[:, :k]
        target_token = target.gather(-1, tokens).squeeze(-1)
        if proposals.probs is None:
            draft_token, overlap = proposed.to(target.dtype), target_token.clamp_max(1.0) * proposed
        else:
            draft_token = proposals.probs.gather(-1, tokens).squeeze(-1)
            overlap = torch.minimum(proposals.probs, target).sum(-1)
        positions = first_positions[:, None] + offsets[:k]
        u = uniform(keys[:, None].expand(batch, k), positions, Stream.ACCEPTANCE)
        passed = (u * draft_token < target_token) & proposed
        num_accepted = passed.long().cumprod(-1).sum(-1)

        row = torch.arange(batch, device=device)
        next_target = target_probs[row, num_accepted]
        if self.greedy:
            next_token = next_target.argmax(-1)
        else:
            residual = next_target if k == 0 else _residual(next_target, proposals, num_accepted, proposed)
            next_token = sample_race(residual, keys, first_positions + num_accepted, Stream.TARGET_TOKEN)
        output = torch.full((batch, k + 1), -1, dtype=torch.int64, device=device)
        output[:, :k] = torch.where(offsets[:k] < num_accepted[:, None], proposals.token_ids, output[:, :k])
        output[row, num_accepted] = next_token
        return Verification(
            output_token_ids=output,
            num_accepted=num_accepted,
            passed=passed,
            draft_probs=draft_token * proposed,
            target_probs=target_token * proposed,
            expected_acceptance=overlap,
            finite=torch.isfinite(target_probs.sum((1, 2))) & _finite(proposals),
        )


def _residual(
    target: Float[Tensor, "B V"],
    proposals: Proposals,
    num_accepted: Int[Tensor, " B"],
    proposed: Bool[Tensor, "B k"],
) -> Float[Tensor, "B V"]:
    """relu(target - draft) at the position after the accepted prefix; the target where that is 0 everywhere, as
    rounding can make it where draft and target are equal."""
    row = torch.arange(len(num_accepted), device=target.device)
    k = proposals.token_ids.shape[1]
    at, inside = num_accepted.clamp_max(k - 1), (num_accepted < k)[:, None]  # past k there is nothing to read
    if proposals.probs is None:
        rejected = proposals.token_ids[row, at].clamp_min(0)[:, None]
        residual = target.scatter_add(-1, rejected, -(proposed[row, at][:, None] & inside).to(target.dtype)).relu()
    else:
        residual = (target - proposals.probs[row, at] * inside).relu()  # rows hold zeros past a proposal's length
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, target)


def _finite(proposals: Proposals) -> Bool[Tensor, " B"]:
    """The largest of a row is NaN or +inf if one of its logits is; -inf stands for ids that the draft lacks."""
    figures = torch.zeros_like(proposals.token_ids, dtype=torch.float32)
    if proposals.logits is not None:
        figures = figures + proposals.logits.amax(-1)
    if proposals.probs is not None:
        figures = figures + proposals.probs.sum(-1)
    return torch.isfinite(figures.sum(-1))
