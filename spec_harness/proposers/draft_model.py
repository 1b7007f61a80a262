"""Proposals of a draft model: its own top token (or a sample) at each of a few steps."""

from collections.abc import Sequence

import torch

from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.proposers.base import SpeculativeProposals
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import SequenceMetadata, SkipReason
from spec_harness.worker.sampler import SamplerOutput


class DraftModelTop1Proposer:
    """One candidate per position ("top 1": no tree), from a ``MultiStepWorker``. A ``SpeculativeProposer``."""

    empty_reason: SkipReason = "low_confidence"

    def __init__(self, worker: MultiStepWorker, *, max_proposal_len: int, vocab_size: int) -> None:
        self.worker = worker
        self.max_proposal_len = max_proposal_len
        self.vocab_size = vocab_size  # that of the target, and of the worker's sampler

    @property
    def max_model_len(self) -> int:
        return self.worker.max_model_len

    @property
    def mass_outside_vocab(self) -> float | None:
        return self.worker.mass_outside_vocab

    def get_proposals(
        self, metadata: Sequence[SequenceMetadata], max_lens: Sequence[int], cache_ops: CacheOps | None = None
    ) -> SpeculativeProposals:
        """See ``SpeculativeProposer``. If no sequence may speculate the draft model is not run."""
        rows = self._split_by_max_model_len(metadata, max_lens)
        if not rows:
            self.worker.apply(cache_ops)
            return self._merge_outputs(rows, [], max_lens)
        steps = [max_lens[b] for b in rows]
        chosen = [metadata[b] for b in rows]
        outputs = self.worker.execute_model_multi_step(chosen, max(steps), cache_ops, row_steps=steps)
        return self._merge_outputs(rows, outputs, max_lens)

    def _split_by_max_model_len(self, metadata: Sequence[SequenceMetadata], max_lens: Sequence[int]) -> list[int]:
        """The rows that speculate; the others keep their place. Positions fed go up to len + l - 2."""
        for m, length in zip(metadata, max_lens, strict=True):
            if length > self.max_proposal_len or (length and len(m.data) + length - 1 > self.max_model_len):
                raise ValueError(
                    f"request {m.request_id}: {length} draft tokens from {len(m.data)} tokens on pass the draft's "
                    f"maximum of {self.max_model_len} positions or max_proposal_len = {self.max_proposal_len}"
                )
        return [b for b, length in enumerate(max_lens) if length > 0]

    def _merge_outputs(
        self, rows: Sequence[int], outputs: Sequence[SamplerOutput], max_lens: Sequence[int]
    ) -> SpeculativeProposals:
        """Puts the outputs of the speculating ``rows`` back into their places among all B."""
        shape, device = (len(max_lens), self.max_proposal_len), self.worker.runner.device
        token_ids = torch.full(shape, -1, dtype=torch.int64, device=device)
        probs = torch.zeros(*shape, self.vocab_size, device=device)
        logits = torch.zeros_like(probs)
        if outputs:
            index = torch.tensor(rows, device=device)
            for merged, parts in (
                (token_ids, [o.token_ids for o in outputs]),
                (probs, [o.probs for o in outputs]),
                (logits, [o.logits for o in outputs]),
            ):
                merged[:, : len(outputs)].index_copy_(0, index, torch.stack(parts, dim=1))
        lens = torch.tensor(list(max_lens), dtype=torch.int64)
        if self.worker.min_prob > 0.0:  # only then may a proposal be shorter than planned, and only the device knows
            lens = (token_ids >= 0).sum(-1).cpu()
        return SpeculativeProposals(token_ids, probs, lens, logits)

    def num_computed_tokens(self, seq_id: int) -> int | None:
        return self.worker.num_computed_tokens(seq_id)

    def rewind(self, seq_id: int, length: int) -> None:
        self.worker.rewind(seq_id, length)

    def fork(self, parent: SequenceMetadata, children: Sequence[int]) -> None:
        """Computes the prompt before it is shared: else each child would write it, into a copy of its own."""
        if len(parent.data) <= self.max_model_len:
            self.worker.compute_logits([parent])
        for child in children:
            self.worker.fork(parent.seq_id, child)

    def forget(self, seq_id: int) -> None:
        self.worker.forget(seq_id)
