"""A worker: one model, one paged KV cache, one sampler, and how far each sequence's KV is computed."""

from collections.abc import Callable, Sequence

from jaxtyping import Float, Int
from torch import Tensor

from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.requests import SequenceMetadata
from spec_harness.worker.features import FeatureReader, TargetFeatures
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from spec_harness.worker.sampler import Sampler, SamplerOutput

Observer = Callable[[Sequence[SequenceMetadata], Sequence[TargetFeatures]], None]


class Worker:
    """Always feeds ``tokens[num_computed_tokens:]`` of each sequence, so whatever a sequence lacks is caught up in its
    next forward: the prompt, the token after a fully accepted proposal, what a skipped round left out."""

    def __init__(self, runner: ModelRunner, sampler: Sampler, *, max_model_len: int) -> None:
        self.runner = runner
        self.sampler = sampler
        self.max_model_len = max_model_len  # positions the model has
        self._num_computed_tokens: dict[int, int] = {}
        self._reader: FeatureReader | None = None
        self._observer: Observer | None = None

    def num_computed_tokens(self, seq_id: int) -> int:
        """Tokens of ``seq_id`` whose KV is in the cache."""
        return self._num_computed_tokens.get(seq_id, 0)

    def rewind(self, seq_id: int, length: int) -> None:
        """To be called once a round is committed: drops what was cached past the last committed token.

        ``num_computed_tokens`` is cut to ``length - 1`` and never raised: a token's KV counts only once it was fed.
        """
        self._num_computed_tokens[seq_id] = min(self.num_computed_tokens(seq_id), length - 1)

    def forget(self, seq_id: int) -> None:
        """The sequence's blocks are gone; should it come back it is computed from its first token."""
        self._num_computed_tokens.pop(seq_id, None)

    def fork(self, parent: int, child: int) -> None:
        """The new sequence ``child`` shares the parent's blocks, and what is computed in them."""
        self._num_computed_tokens[child] = self.num_computed_tokens(parent)

    def watch(self, reader: FeatureReader, observer: Observer) -> None:
        """After every forward ``observer`` is given what ``reader`` read."""
        self._reader, self._observer = reader, observer

    def apply(self, cache_ops: CacheOps | None) -> None:
        """Moves KV blocks, before the forward that relies on it."""
        if cache_ops:
            self.runner.cache.apply(cache_ops)

    def execute_model(self, metadata: Sequence[SequenceMetadata], cache_ops: CacheOps | None = None) -> SamplerOutput:
        """Carries out ``cache_ops``, then one forward over what each sequence lacks, and one sampled token each.
        Changes no metadata."""
        self.apply(cache_ops)
        return self.sampler.sample(self.compute_logits(metadata), metadata, 0)

    def catch_up(self, metadata: Sequence[SequenceMetadata]) -> None:
        """Feeds what the sequences lack before their last tokens."""
        lacking = [m for m in metadata if self.num_computed_tokens(m.seq_id) < len(m.data) - 1]
        rows = []
        for m in lacking:
            start = self.num_computed_tokens(m.seq_id)
            rows.append(QueryRow(block_table=m.block_table, start=start, token_ids=m.data.tokens_from(start)[:-1]))
        if rows:
            self._run(lacking, rows, None)

    def compute_logits(
        self,
        metadata: Sequence[SequenceMetadata],
        pending: Int[Tensor, " P"] | None = None,
        pending_lens: Sequence[int] | None = None,
        *,
        score: bool = False,
    ) -> Float[Tensor, "N V"]:
        """Feeds each sequence's uncomputed tokens and then its ``pending`` ones (tokens not yet appended, on the
        device).

        One row of logits per sequence, at its last fed token; with ``score``, 1 + pending_lens[b] rows: at the
        sequence's own last token and at every pending one.
        """
        lens = [0] * len(metadata) if pending_lens is None else pending_lens
        self._assert_enough_kv_space(metadata, [1 + extra for extra in lens])
        rows = []
        for m, extra in zip(metadata, lens, strict=True):
            start = self.num_computed_tokens(m.seq_id)
            token_ids = m.data.tokens_from(start)
            if not token_ids:  # as far as the sequence or further: an earlier call fed its last token, or drafted ones
                raise ValueError(
                    f"sequence {m.seq_id} of request {m.request_id} has {len(m.data)} tokens but {start} are cached: "
                    "rewind it after each round"
                )
            rows.append(
                QueryRow(
                    block_table=m.block_table,
                    start=start,
                    token_ids=token_ids,
                    num_pending=extra,
                    num_logits=1 + extra if score else 1,
                )
            )
        return self._run(metadata, rows, pending)

    def _run(
        self, metadata: Sequence[SequenceMetadata], rows: Sequence[QueryRow], pending: Int[Tensor, " P"] | None
    ) -> Float[Tensor, "N V"]:
        if self._reader is None or self._observer is None:
            logits = self.runner.run(rows, pending)
        else:
            logits, features = self._reader.run(self.runner, rows, pending)
            self._observer(metadata, features)
        for m, row in zip(metadata, rows, strict=True):
            self._num_computed_tokens[m.seq_id] = row.end
        return logits

    def _assert_enough_kv_space(self, metadata: Sequence[SequenceMetadata], num_steps: Sequence[int]) -> None:
        """Before any forward. A sequence of length ``len`` run for n steps needs len + n - 1 slots: the last token's KV
        is written only when it is next fed."""
        block_size = self.runner.cache.block_size
        for m, steps in zip(metadata, num_steps, strict=True):
            required, allocated = len(m.data) + steps - 1, len(m.block_table) * block_size
            if required > allocated:
                raise ValueError(
                    f"request {m.request_id}, sequence {m.seq_id}: {steps} steps (num_steps) need {required} KV slots, "
                    f"but its block table has {allocated}"
                )
