"""Prompt lookup: what followed the last few tokens the last time they occurred in this very sequence.

After Saxena, "Prompt lookup decoding" (2023), as vLLM's n-gram speculator does it. No model, so no KV cache.
"""

from collections.abc import Sequence

import torch

from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.proposers.base import SpeculativeProposals
from spec_harness.requests import SequenceMetadata, SkipReason


class NgramProposer:
    """A ``SpeculativeProposer`` whose draft distribution is one-hot at the looked-up token."""

    max_model_len: int | None = None
    mass_outside_vocab: float | None = None
    empty_reason: SkipReason = "no_match"

    def __init__(
        self, *, max_proposal_len: int, vocab_size: int, device: torch.device, max_window: int, min_window: int
    ) -> None:
        """Windows of ``max_window`` down to ``min_window`` last tokens are looked up, the longest first."""
        if not 1 <= min_window <= max_window:
            raise ValueError(f"1 <= min_window <= max_window must hold, not {min_window} and {max_window}")
        self._shape = (max_proposal_len, vocab_size)
        self._device = device
        self._windows = range(max_window, min_window - 1, -1)

    def get_proposals(
        self, metadata: Sequence[SequenceMetadata], max_lens: Sequence[int], cache_ops: CacheOps | None = None
    ) -> SpeculativeProposals:
        """See ``SpeculativeProposer``. No match: length 0."""
        k, vocab = self._shape
        found = [self._look_up(m.data.token_ids, n) if n else [] for m, n in zip(metadata, max_lens, strict=True)]
        padded = [[*row, *[-1] * (k - len(row))] for row in found]
        token_ids = torch.tensor(padded, dtype=torch.int64, device=self._device).view(len(found), k)
        probs = torch.zeros(len(found), k, vocab, device=self._device)
        probs.scatter_(-1, token_ids.clamp_min(0)[..., None], (token_ids >= 0)[..., None].float())
        return SpeculativeProposals(token_ids, probs, torch.tensor([len(row) for row in found]))

    def _look_up(self, tokens: list[int], max_len: int) -> list[int]:
        """Up to ``max_len`` tokens behind the most recent earlier occurrence of the longest window that has one."""
        for window in self._windows:
            if window >= len(tokens):
                continue
            suffix = tokens[-window:]
            # The suffix itself, at len - window, has nothing behind it: matches start before it.
            for start in range(len(tokens) - window - 1, -1, -1):
                if tokens[start : start + window] == suffix:
                    return tokens[start + window : start + window + max_len]
        return []

    def num_computed_tokens(self, seq_id: int) -> int | None:
        """Holds no KV."""
        return None

    def rewind(self, seq_id: int, length: int) -> None:
        """Holds no state."""

    def fork(self, parent: SequenceMetadata, children: Sequence[int]) -> None:
        """Holds no state."""

    def forget(self, seq_id: int) -> None:
        """Holds no state."""
