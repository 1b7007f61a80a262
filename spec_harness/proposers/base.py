"""What a proposer gives, and what a proposer is. Nothing above this interface knows of draft models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.requests import SequenceMetadata, SkipReason


@dataclass(frozen=True)
class SpeculativeProposals:
    """The draft tokens of a batch in one round; k is the run's ``max_proposal_len``.

    A row without a proposal holds -1 tokens, zero probabilities and length 0, in its place.
    """

    proposal_token_ids: Int[Tensor, "B k"]  # -1 padded
    proposal_probs: Float[Tensor, "B k V"]  # the draft's processed distribution at each position; 0 past the length
    proposal_lens: Int[Tensor, " B"]  # on the host
    proposal_logits: Float[Tensor, "B k V"] | None = None  # raw; None where the proposer has no distribution of its own

    @property
    def lens(self) -> list[int]:
        return [int(n) for n in self.proposal_lens.tolist()]


@runtime_checkable
class SpeculativeProposer(Protocol):
    """Proposes tokens for sequences; holds whatever state it needs for that."""

    @property
    def max_model_len(self) -> int | None:
        """Positions it can speak about; ``None``: any."""
        ...

    @property
    def empty_reason(self) -> SkipReason:
        """Why it proposes nothing where it might have."""
        ...

    @property
    def mass_outside_vocab(self) -> float | None:
        """Mean probability that it gave to ids the target lacks, masked away; ``None`` if there are none."""
        ...

    def get_proposals(
        self, metadata: Sequence[SequenceMetadata], max_lens: Sequence[int], cache_ops: CacheOps | None = None
    ) -> SpeculativeProposals:
        """At most ``max_lens[b]`` tokens for each sequence; B rows in the order of ``metadata``, which is not changed.

        ``cache_ops`` are carried out first, once, in its KV cache if it has one; also if nobody may speculate.
        """
        ...

    def num_computed_tokens(self, seq_id: int) -> int | None:
        """Tokens of the sequence in its KV cache; ``None`` if it has none."""
        ...

    def rewind(self, seq_id: int, length: int) -> None:
        """The sequence has ``length`` committed tokens; whatever was computed past the last but one no longer holds."""
        ...

    def fork(self, parent: SequenceMetadata, children: Sequence[int]) -> None:
        """The new sequences ``children`` share the blocks of ``parent``, which has just been prefilled."""
        ...

    def forget(self, seq_id: int) -> None:
        """The sequence's KV blocks are gone."""
        ...
