"""The baseline: plain autoregressive decoding is speculative decoding that proposes nothing."""

from collections.abc import Sequence

import torch

from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.proposers.base import SpeculativeProposals
from spec_harness.requests import SequenceMetadata, SkipReason


class NoProposer:
    """A ``SpeculativeProposer`` with k = 0, so that the baseline runs through the very code it is compared with."""

    max_model_len: int | None = None
    mass_outside_vocab: float | None = None
    empty_reason: SkipReason = "cap"

    def __init__(self, *, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device

    def get_proposals(
        self, metadata: Sequence[SequenceMetadata], max_lens: Sequence[int], cache_ops: CacheOps | None = None
    ) -> SpeculativeProposals:
        batch = len(metadata)
        return SpeculativeProposals(
            torch.empty(batch, 0, dtype=torch.int64, device=self._device),
            torch.empty(batch, 0, self._vocab_size, device=self._device),
            torch.zeros(batch, dtype=torch.int64),
        )

    def num_computed_tokens(self, seq_id: int) -> int | None:
        """Holds no KV."""
        return None

    def rewind(self, seq_id: int, length: int) -> None:
        """Holds no state."""

    def fork(self, parent: SequenceMetadata, children: Sequence[int]) -> None:
        """Holds no state."""

    def forget(self, seq_id: int) -> None:
        """Holds no state."""
