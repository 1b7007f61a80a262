"""A worker that runs its model several times in one call, each step feeding the token the step before it sampled."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.requests import SequenceMetadata
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from spec_harness.worker.sampler import Sampler, SamplerOutput
from spec_harness.worker.worker import Worker


class MultiStepWorker(Worker):
    """Saves a scheduler round trip per step, given that enough KV slots were allocated beforehand.

    After aphrodite-engine's and vLLM v0's class of this name. Theirs feeds only the last token at the next call, which
    leaves a hole in the KV after a fully accepted proposal; ours feeds whatever is not computed (see ``Worker``).
    Theirs refuses cache operations; ours carries them out once, before the first step.
    """

    def __init__(self, runner: ModelRunner, sampler: Sampler, *, max_model_len: int, min_prob: float = 0.0) -> None:
        """A sequence stops before the first token at whose position the model's largest probability (raw softmax, so
        that it means the same under greedy sampling) is below ``min_prob``."""
        super().__init__(runner, sampler, max_model_len=max_model_len)
        self.min_prob = min_prob
        self._outside_mass: float | Tensor = 0.0
        self._num_sampled = 0

    @property
    def mass_outside_vocab(self) -> float | None:
        """Mean probability that the model gave to ids beyond the sampler's vocabulary, at the positions sampled."""
        return float(self._outside_mass) / self._num_sampled if self._num_sampled else None

    def execute_model_multi_step(
        self,
        metadata: Sequence[SequenceMetadata],
        num_steps: int,
        cache_ops: CacheOps | None = None,
        *,
        row_steps: Sequence[int] | None = None,
    ) -> list[SamplerOutput]:
        """``num_steps`` outputs; step i samples the token at position len + i of each sequence.

        ``row_steps[b]`` (1 ... num_steps; default all of them) lets a sequence stop early, and so does ``min_prob``: it
        drops out of later steps' forwards and its rows there are padding (see ``SamplerOutput``). The sampled tokens
        stay on the device. Neither the metadata nor its sequences are changed: the caller appends what it accepts,
        then calls ``rewind``. Raises ``ValueError`` before any forward if a sequence has too few KV slots.
        """
        steps = [num_steps] * len(metadata) if row_steps is None else list(row_steps)
        if not metadata or num_steps < 1 or len(steps) != len(metadata) or not all(1 <= s <= num_steps for s in steps):
            raise ValueError(f"each sequence needs 1 to num_steps = {num_steps} steps, not {steps}")
        self._assert_enough_kv_space(metadata, steps)
        self.apply(cache_ops)
        logits, active = self.compute_logits(metadata), list(range(len(metadata)))
        outputs: list[SamplerOutput] = []
        for step in range(num_steps):
            if step:
                active = [b for b in active if steps[b] > step]
                logits = self._append_new_tokens(metadata, active, outputs[-1], step) if active else logits[:0]
            logits, active = self._confident(logits, active)
            outputs.append(self._sample(metadata, active, logits, step))
        return outputs

    def _append_new_tokens(
        self, metadata: Sequence[SequenceMetadata], active: Sequence[int], previous: SamplerOutput, step: int
    ) -> Float[Tensor, "A V"]:
        """One further forward of the ``active`` rows: feeds what they sampled last, at position len + step - 1."""
        chosen = [metadata[b] for b in active]
        pending = _select(previous.token_ids, active)
        rows = [QueryRow(block_table=m.block_table, start=len(m.data) + step - 1, num_pending=1) for m in chosen]
        return self._run(chosen, rows, pending)

    def _confident(self, logits: Float[Tensor, "A V"], active: list[int]) -> tuple[Float[Tensor, "C V"], list[int]]:
        """The rows that go on. The test looks at the whole distribution, not at the token drawn: dropping a token for
        its own probability would bias what is proposed."""
        if self.min_prob <= 0.0 or not active:
            return logits, active
        raw = logits.to(torch.float32)
        largest = (raw.max(-1).values - raw.logsumexp(-1)).exp()
        keep = [i for i, p in enumerate(largest.tolist()) if not p < self.min_prob]  # NaN goes on: it is to be found
        return _select(logits, keep), [active[i] for i in keep]

    def _sample(
        self, metadata: Sequence[SequenceMetadata], active: Sequence[int], logits: Float[Tensor, "A V"], step: int
    ) -> SamplerOutput:
        """The ``active`` rows' tokens at position len + step, in their places among all B."""
        if self.sampler.vocab_size is not None and logits.shape[-1] > self.sampler.vocab_size:
            outside = logits.to(torch.float32).softmax(-1)[:, self.sampler.vocab_size :]
            self._outside_mass, self._num_sampled = self._outside_mass + outside.sum(), self._num_sampled + len(active)
        output = self.sampler.sample(logits, [metadata[b] for b in active], step)
        if len(active) == len(metadata):
            return output
        index = torch.tensor(active, dtype=torch.int64, device=logits.device)

        def place(rows: Tensor, padding: int) -> Tensor:
            return rows.new_full((len(metadata), *rows.shape[1:]), padding).index_copy_(0, index, rows)

        probs = None if output.probs is None else place(output.probs, 0)
        return SamplerOutput(place(output.token_ids, -1), probs, place(output.logits, 0))


def _select(rows: Tensor, index: Sequence[int]) -> Tensor:
    if len(index) == len(rows):
        return rows
    return rows[torch.tensor(index, dtype=torch.int64, device=rows.device)]
