"""Proposals of a draft model: its own top token (or a sample) at each of a few steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_harness.models.load import LoadedModel
from spec_harness.proposers.base import ProposalContext, Proposals, Proposer, ProposerEnv, ProposerSpec
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import SequenceMetadata, SkipReason
from spec_harness.worker.model_runner import ModelRunner
from spec_harness.worker.sampler import SamplerOutput


class DraftModelTop1Proposer(Proposer):
    """One candidate per position ("top 1": no tree), from a ``MultiStepWorker``."""

    skip_reason: SkipReason = "low_confidence"

    def __init__(self, env: ProposerEnv, worker: MultiStepWorker) -> None:
        super().__init__(env)
        self.worker = worker
        self.max_model_len: int = worker.max_model_len

    def propose(self, context: ProposalContext) -> Proposals:
        """If no sequence may speculate the draft model is not run."""
        rows = self._split_by_max_model_len(context)
        if not rows:
            self.worker.apply(context.cache_ops)
            return Proposals.from_lists([[] for _ in context.sequences], self.env)
        steps = [context.max_lens[b] for b in rows]
        chosen = [context.sequences[b] for b in rows]
        outputs = self.worker.execute_model_multi_step(chosen, max(steps), context.cache_ops, row_steps=steps)
        return self._merge_outputs(rows, outputs, context.max_lens)

    def _split_by_max_model_len(self, context: ProposalContext) -> list[int]:
        """The rows that speculate; the others keep their place. Positions fed go up to len + l - 2."""
        for m, length in zip(context.sequences, context.max_lens, strict=True):
            if length > self.env.max_proposal_len or (length and len(m.data) + length - 1 > self.max_model_len):
                raise ValueError(
                    f"request {m.request_id}: {length} draft tokens from {len(m.data)} tokens on pass the draft's "
                    f"maximum of {self.max_model_len} positions or max_proposal_len = {self.env.max_proposal_len}"
                )
        return [b for b, length in enumerate(context.max_lens) if length > 0]

    def _merge_outputs(
        self, rows: Sequence[int], outputs: Sequence[SamplerOutput], max_lens: Sequence[int]
    ) -> Proposals:
        """Puts the outputs of the speculating ``rows`` back into their places among all B."""
        index = torch.tensor(rows, device=self.worker.runner.device)

        def merged(parts: list[Tensor], padding: int) -> Tensor:
            shape = (len(max_lens), self.env.max_proposal_len, *parts[0].shape[1:])
            whole = parts[0].new_full(shape, padding)
            whole[:, : len(parts)].index_copy_(0, index, torch.stack(parts, dim=1))
            return whole

        token_ids = merged([o.token_ids for o in outputs], -1)
        probs = [o.probs for o in outputs if o.probs is not None]
        lens = list(max_lens)
        if self.worker.min_prob > 0.0:  # only then may a proposal be shorter than planned, and only the device knows
            lens = (token_ids >= 0).sum(-1).tolist()
        return Proposals(token_ids, lens, merged(probs, 0) if probs else None, merged([o.logits for o in outputs], 0))

    def rewind(self, seq_id: int, length: int) -> None:
        self.worker.rewind(seq_id, length)

    def preempt(self, seq_id: int) -> None:
        self.worker.forget(seq_id)

    def finish(self, seq_id: int) -> None:
        self.worker.forget(seq_id)

    def fork(self, parent: SequenceMetadata, children: Sequence[int]) -> None:
        """Computes the prompt before it is shared: else each child would write it, into a copy of its own."""
        if len(parent.data) <= self.max_model_len:
            self.worker.compute_logits([parent])
        for child in children:
            self.worker.fork(parent.seq_id, child)

    def num_computed_tokens(self, seq_id: int) -> int:
        return self.worker.num_computed_tokens(seq_id)

    def notes(self) -> list[str]:
        mass = self.worker.mass_outside_vocab
        if mass is None:
            return []
        return [
            f"The draft gave {mass:.2%} of its probability to token ids that the target lacks; it was masked and the "
            "rest renormalized."
        ]


@dataclass(frozen=True, kw_only=True)
class DraftModel(ProposerSpec):
    model: LoadedModel
    name: str = "draft_model"

    @property
    def kv_models(self) -> Sequence[LoadedModel]:
        return (self.model,)

    def build(self, env: ProposerEnv) -> DraftModelTop1Proposer:
        known_ids = self.model.vocab_size if self.model.vocab_size < env.vocab_size else None
        runner = ModelRunner(self.model.model, env.new_cache(self.model), known_ids=known_ids)
        worker = MultiStepWorker(
            runner, env.sampler, max_model_len=self.model.max_model_len, min_prob=env.min_draft_prob
        )
        return DraftModelTop1Proposer(env, worker)
