"""One round: propose, score, verify. The scheduler commits what it returns."""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from spec_harness.engine.distributions import compare_distributions
from spec_harness.engine.scorer import TargetScores, score_proposals
from spec_harness.engine.stage_timer import StageTimer
from spec_harness.engine.verifiers.rejection import RejectionSampler, Verification
from spec_harness.errors import UserError
from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.proposers.base import ProposalContext, Proposals, Proposer
from spec_harness.requests import RoundOutcome, SequenceMetadata
from spec_harness.worker.features import FeatureReader
from spec_harness.worker.sampler import keys_of
from spec_harness.worker.worker import Worker


class NonFiniteLogitsError(FloatingPointError):
    """A model gave NaN or infinite logits: nothing drawn from them would mean anything."""


class SpecDecodeWorker:
    """A proposer and a target worker. With ``NoProposer`` it is plain autoregressive decoding."""

    def __init__(self, proposer: Proposer, target: Worker, timer: StageTimer) -> None:
        self.proposer = proposer
        self.target = target
        self.timer = timer
        self._verifier = RejectionSampler(greedy=target.sampler.greedy)
        if proposer.wants:
            target.watch(FeatureReader(proposer.env.target.model, proposer.wants), proposer.observe)

    def prefill(self, groups: Sequence[Sequence[SequenceMetadata]]) -> list[list[int]]:
        """The target's pass over the prompts: the first token of each sequence. No round; a draft catches up later.

        Each group holds the sequences of one request. Its first one runs; the others fork from it, so share its blocks.
        """
        parents, everyone = [group[0] for group in groups], [m for group in groups for m in group]
        with self.timer.stage("prefill"):
            self.proposer.admit(parents)
            logits = self.target.compute_logits(parents)
            sizes = torch.tensor([len(group) for group in groups], device=logits.device)
            output = self.target.sampler.sample(logits.repeat_interleave(sizes, dim=0), everyone, 0)
            tokens, largest = torch.stack([output.token_ids.double(), output.logits.amax(-1).double()]).tolist()
            for parent, *children in groups:
                if children:
                    self._fork(parent, [child.seq_id for child in children])
        self._check_finite([m.request_id for m, top in zip(everyone, largest, strict=True) if not isfinite(top)])
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
        with self.timer.stage("score"):
            self.target.apply(cache_ops)
            if self.proposer.wants:  # features come before the proposal, also of what a preemption has lost
                self.target.catch_up(metadata)
        with self.timer.stage("propose"):
            proposals = self.proposer.propose(ProposalContext(metadata, max_lens, cache_ops or CacheOps()))
            self._check_shape(proposals, max_lens)
        with self.timer.stage("score"):
            scores = score_proposals(self.target, metadata, proposals)
        with self.timer.stage("verify"):
            keys = keys_of(metadata, scores.probs.device)
            first = torch.tensor([len(m.data) for m in metadata], device=scores.probs.device)
            verified = self._verifier.verify(scores.probs, proposals, keys, first)
            rows = _to_host(_columns(proposals, verified, scores))
        self._check_finite([m.request_id for m, row in zip(metadata, rows, strict=True) if not row["finite"][0]])
        for row, length in zip(rows, proposals.lens, strict=True):
            self._check_probs(row["draft_probs"][:length])
        return [_outcome(row, length) for row, length in zip(rows, proposals.lens, strict=True)]

    def commit(self, seq_id: int, tokens: Sequence[int], length: int) -> None:
        """The sequence has got ``tokens`` and is ``length`` tokens long with them."""
        self.target.rewind(seq_id, length)
        self.proposer.commit(seq_id, tuple(tokens))  # the list itself is the record's
        self.proposer.rewind(seq_id, length)

    def preempt(self, seq_id: int, *, swapped: bool) -> None:
        """The sequence gave its blocks back unfinished; if ``swapped``, their contents come back with it."""
        if not swapped:
            self.target.forget(seq_id)
            self.proposer.preempt(seq_id)

    def finish(self, seq_id: int) -> None:
        """The sequence is complete, and its blocks are free."""
        self.target.forget(seq_id)
        self.proposer.finish(seq_id)

    def _check_shape(self, proposals: Proposals, max_lens: Sequence[int]) -> None:
        """A user's own proposer may do anything."""
        lens, (rows, columns) = proposals.lens, proposals.token_ids.shape
        if not rows == len(lens) == len(max_lens) or any(
            not 0 <= n <= min(most, columns) for n, most in zip(lens, max_lens, strict=True)
        ):
            raise UserError(
                f"{type(self.proposer).__name__} proposed {lens} tokens in {rows} rows of {columns}, where at most "
                f"{list(max_lens)} were asked for"
            )

    def _check_probs(self, drawn: Sequence[float]) -> None:
        """Log-probabilities, say, would be accepted whatever the target says."""
        if any(not 0.0 < prob < 1.001 for prob in drawn):
            raise UserError(
                f"{type(self.proposer).__name__} gave its own tokens the probabilities {list(drawn)}: each must be "
                "above 0 and at most 1, what the token was drawn with"
            )

    @staticmethod
    def _check_finite(request_ids: Sequence[str]) -> None:
        if request_ids:
            raise NonFiniteLogitsError(f"NaN or infinite logits for request {', '.join(request_ids)}")


def _columns(proposals: Proposals, verified: Verification, scores: TargetScores) -> dict[str, Tensor]:
    """All that the host needs of a round, by name: B rows of one or more values each."""
    columns = {
        "num_accepted": verified.num_accepted[:, None],
        "output_token_ids": verified.output_token_ids,
        "draft_token_ids": proposals.token_ids,
        "passed": verified.passed,
        "draft_probs": verified.draft_probs,
        "target_probs": verified.target_probs,
        "expected_acceptance": verified.expected_acceptance,
        "finite": verified.finite[:, None],
    }
    if proposals.logits is not None:
        apart = compare_distributions(proposals.logits, scores.logits[:, : proposals.token_ids.shape[1]])
        columns |= vars(apart)
    return columns


def _to_host(columns: dict[str, Tensor]) -> list[dict[str, list[float]]]:
    """Row by row, in one copy: token ids are exact in float64 up to 2^53."""
    flat = torch.cat([column.to(torch.float64) for column in columns.values()], dim=1).cpu()
    parts = flat.split([column.shape[1] for column in columns.values()], dim=1)
    return [dict(zip(columns, row, strict=True)) for row in zip(*(part.tolist() for part in parts), strict=True)]


def _outcome(row: dict[str, list[float]], proposal_len: int) -> RoundOutcome:
    """On the host, before the end-of-sequence rule is applied."""
    num_accepted = int(row["num_accepted"][0])
    # Positions past the first rejected one condition on a prefix that did not come about.
    judged = min(proposal_len, num_accepted + 1)
    return RoundOutcome(
        output_token_ids=[int(t) for t in row["output_token_ids"][: num_accepted + 1]],
        num_accepted=num_accepted,
        num_aligned=int(sum(row["passed"][:proposal_len])),
        draft_token_ids=[int(t) for t in row["draft_token_ids"][:proposal_len]],
        draft_probs=row["draft_probs"][:proposal_len],
        target_probs=row["target_probs"][:proposal_len],
        expected_acceptance=row["expected_acceptance"][:judged],
        draft_entropy=row.get("draft_entropy", [])[:judged],
        target_entropy=row.get("target_entropy", [])[:judged],
        kl_target_draft=row.get("kl_target_draft", [])[:judged],
        target_rank_in_draft=[int(r) for r in row.get("target_rank_in_draft", [])[:judged]],
    )
