"""A worker that runs its model several times in one call, each step feeding the token the step before it sampled."""

from collections.abc import Sequence

import torch

from spec_harness.sequence import SequenceMetadata
from spec_harness.worker.model_runner import QueryRow
from spec_harness.worker.sampler import SamplerOutput
from spec_harness.worker.worker import Worker


class MultiStepWorker(Worker):
    """Saves a scheduler round trip per step, given that enough KV slots were allocated beforehand.

    After aphrodite-engine's and vLLM v0's class of this name. Theirs feeds only the last token at the next call, which
    leaves a hole in the KV after a fully accepted proposal; ours feeds whatever is not computed (see ``Worker``).
    """

    def execute_model_multi_step(
        self, metadata: Sequence[SequenceMetadata], num_steps: int, *, row_steps: Sequence[int] | None = None
    ) -> list[SamplerOutput]:
        """``num_steps`` outputs; step i samples the token at position len + i of each sequence.

        ``row_steps[b]`` (1 ... num_steps; default all of them) lets a sequence stop early: it drops out of later steps'
        forwards and its rows there are void (see ``SamplerOutput``). The sampled tokens stay on the device. Neither the
        metadata nor its sequences are changed: the caller appends what it accepts, then calls ``rewind``.
        Raises ``ValueError`` before any forward if a sequence has too few KV slots.
        """
        steps = [num_steps] * len(metadata) if row_steps is None else list(row_steps)
        if not metadata or num_steps < 1 or len(steps) != len(metadata) or not all(1 <= s <= num_steps for s in steps):
            raise ValueError(f"each sequence needs 1 to num_steps = {num_steps} steps, not {steps}")
        self._assert_enough_kv_space(metadata, steps)
        probs = self.sampler.probs(self.compute_logits(metadata))
        outputs = [self.sampler.sample(probs, metadata, 0)]
        for step in range(1, num_steps):
            active = [b for b, n in enumerate(steps) if n > step]
            outputs.append(
                self._append_new_tokens(metadata, active, outputs[-1], step) if active else _void(outputs[0])
            )
        return outputs

    def _append_new_tokens(
        self, metadata: Sequence[SequenceMetadata], active: Sequence[int], previous: SamplerOutput, step: int
    ) -> SamplerOutput:
        """One further step of the ``active`` rows: feeds what they sampled last, at position len + step - 1."""
        chosen = [metadata[b] for b in active]
        everyone = len(active) == len(metadata)
        index = None if everyone else torch.tensor(active, device=previous.token_ids.device)
        pending = previous.token_ids if index is None else previous.token_ids[index]
        rows = [QueryRow(block_table=m.block_table, start=len(m.data) + step - 1, num_pending=1) for m in chosen]
        output = self.sampler.sample(self.sampler.probs(self._run(chosen, rows, pending)), chosen, step)
        if index is None:
            return output
        void = _void(previous)
        return SamplerOutput(
            void.token_ids.index_copy(0, index, output.token_ids), void.probs.index_copy(0, index, output.probs)
        )


def _void(like: SamplerOutput) -> SamplerOutput:
    return SamplerOutput(torch.full_like(like.token_ids, -1), torch.zeros_like(like.probs))
