"""One round: propose, score, verify. The scheduler commits what it returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch

from spec_harness.engine.distributions import compare_distributions
from spec_harness.engine.scorer import TargetScorer, TargetScores
from spec_harness.engine.stage_timer import StageTimer
from spec_harness.engine.verifiers.rejection import RejectionSampler, Verification
from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.proposers.base import SpeculativeProposals, SpeculativeProposer
from spec_harness.requests import SequenceMetadata
from spec_harness.worker.sampler import keys_of
from spec_harness.worker.worker import Worker


class NonFiniteLogitsError(FloatingPointError):
    """A model gave NaN or infinite logits: nothing drawn from them would mean anything."""


@dataclass(frozen=True)
class RoundOutcome:
    """What one round gave one sequence, on the host, before the end-of-sequence rule is applied."""

    output_token_ids: list[int]  # num_accepted + 1 of them
    num_accepted: int
    passed: list[bool]  # the acceptance test of each draft token
    draft_token_ids: list[int]
    draft_probs: list[float]
    target_probs: list[float]
    # At the accepted positions and the first rejected one; the last four are empty if the proposer has no distribution.
    expected_acceptance: list[float]
    draft_entropy: list[float] = field(default_factory=list)
    target_entropy: list[float] = field(default_factory=list)
    kl_target_draft: list[float] = field(default_factory=list)
    target_rank_in_draft: list[int] = field(default_factory=list)


class SpecDecodeWorker:
    """A proposer and a target worker. With ``NoProposer`` it is plain autoregressive decoding."""

    def __init__(self, proposer: SpeculativeProposer, target: Worker, timer: StageTimer) -> None:
        self.proposer = proposer
        self.target = target
        self.timer = timer
        self._scorer = TargetScorer(target)
        self._verifier = RejectionSampler()

    def prefill(self, groups: Sequence[Sequence[SequenceMetadata]]) -> list[list[int]]:
        """The target's pass over the prompts: the first token of each sequence. No round; the draft catches up later.

        Each group holds the sequences of one request. Its first one runs; the others fork from it, so share its blocks.
        """
        parents, everyone = [group[0] for group in groups], [m for group in groups for m in group]
        with self.timer.stage("prefill"):
            logits = self.target.compute_logits(parents)
            sizes = torch.tensor([len(group) for group in groups], device=logits.device)
            output = self.target.sampler.sample(logits.repeat_interleave(sizes, dim=0), everyone, 0)
            tokens, mass = torch.stack([output.token_ids.double(), output.probs.sum(-1).double()]).tolist()
            for parent, *children in groups:
                if children:
                    self._fork(parent, [child.seq_id for child in children])
        self._check_finite([m.request_id for m, total in zip(everyone, mass, strict=True) if not isfinite(total)])
        drawn = iter(tokens)
        return [[int(next(drawn)) for _ in group] for group in groups]

    def _fork(self, parent: SequenceMetadata, children: Sequence[int]) -> None:
        self.proposer.fork(parent, children)
        for child in children:
            self.target.fork(parent.seq_id, child)

    def first_write(self, seq_id: int, proposal_len: int) -> int:
        """The first position whose KV the next round writes, in either cache."""
        drafted = self.proposer.num_computed_tokens(seq_id) if proposal_len else None
        computed = self.target.num_computed_tokens(seq_id)
        return computed if drafted is None else min(computed, drafted)

    def execute_round(
        self, metadata: Sequence[SequenceMetadata], max_lens: Sequence[int], cache_ops: CacheOps | None = None
    ) -> list[RoundOutcome]:
        """One outcome per sequence. Needs len + max_lens[b] KV slots of each. Changes no metadata. Both models' caches
        carry out ``cache_ops`` first."""
        with self.timer.stage("propose"):
            proposals = self.proposer.get_proposals(metadata, max_lens, cache_ops)
        with self.timer.stage("score"):
            scores = self._scorer.score(metadata, proposals, cache_ops)
        with self.timer.stage("verify"):
            keys = keys_of(metadata, scores.probs.device)
            first = torch.tensor([len(m.data) for m in metadata], device=scores.probs.device)
            verified = self._verifier.verify(scores.probs, proposals, keys, first)
            rows = _pack(proposals, verified, scores).cpu().tolist()
        self._check_finite([m.request_id for m, row in zip(metadata, rows, strict=True) if not row[-1]])
        k = proposals.proposal_token_ids.shape[1]
        return [_unpack(row, k, length) for row, length in zip(rows, proposals.lens, strict=True)]

    def commit(self, seq_id: int, tokens: Sequence[int], length: int) -> None:
        """The sequence has got ``tokens`` and is ``length`` tokens long with them."""
        self.target.rewind(seq_id, length)
        self.proposer.rewind(seq_id, length)

    def preempt(self, seq_id: int, *, swapped: bool) -> None:
        """The sequence gave its blocks back unfinished; if ``swapped``, their contents come back with it."""
        if not swapped:
            self.target.forget(seq_id)
            self.proposer.forget(seq_id)

    def finish(self, seq_id: int) -> None:
        """The sequence is complete, and its blocks are free."""
        self.target.forget(seq_id)
        self.proposer.forget(seq_id)

    @staticmethod
    def _check_finite(request_ids: Sequence[str]) -> None:
        if request_ids:
            raise NonFiniteLogitsError(f"NaN or infinite logits for request {', '.join(request_ids)}")


def _pack(proposals: SpeculativeProposals, verified: Verification, scores: TargetScores) -> torch.Tensor:
    """All that the host needs of a round in one float64 tensor, so in one copy (token ids are exact up to 2^53)."""
    columns = [
        verified.num_accepted[:, None],
        verified.output_token_ids,
        proposals.proposal_token_ids,
        verified.passed,
        verified.draft_probs,
        verified.target_probs,
        verified.expected_acceptance,
    ]
    if proposals.proposal_logits is not None:
        k = proposals.proposal_token_ids.shape[1]
        apart = compare_distributions(proposals.proposal_logits, scores.logits[:, :k])
        columns += [apart.draft_entropy, apart.target_entropy, apart.kl_target_draft, apart.target_rank_in_draft]
    columns.append(verified.finite[:, None])
    return torch.cat([column.to(torch.float64) for column in columns], dim=1)


def _unpack(row: list[float], k: int, proposal_len: int) -> RoundOutcome:
    num_accepted = int(row[0])
    start = 1 + (k + 1)  # after the output tokens
    columns = [row[at : at + k][:proposal_len] for at in range(start, len(row) - 1, k)] if k else [[]] * 5
    drafted, passed, draft, target, expected, *apart = columns
    # Positions behind the first rejected one condition on a prefix that did not come about.
    judged = num_accepted + 1
    draft_entropy, target_entropy, kl, rank = [column[:judged] for column in apart] or [[], [], [], []]
    return RoundOutcome(
        output_token_ids=[int(t) for t in row[1 : num_accepted + 2]],
        num_accepted=num_accepted,
        passed=[bool(p) for p in passed],
        draft_token_ids=[int(t) for t in drafted],
        draft_probs=draft,
        target_probs=target,
        expected_acceptance=expected[:judged],
        draft_entropy=draft_entropy,
        target_entropy=target_entropy,
        kl_target_draft=kl,
        target_rank_in_draft=[int(r) for r in rank],
    )
