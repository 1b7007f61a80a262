"""What a proposer is, what it is told, what it gives. Nothing above this interface knows of draft models.

A proposer of one's own is a subclass of ``Proposer`` with a ``propose`` method; all other hooks do nothing by default.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.load import LoadedModel
from spec_harness.requests import SequenceMetadata, SkipReason
from spec_harness.worker.features import TargetFeatures, TargetView
from spec_harness.worker.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class ProposerEnv:
    """What a proposer may need of the engine that it works in."""

    target: LoadedModel
    max_proposal_len: int  # k
    sampler: Sampler  # how draft tokens are drawn, over the target's vocabulary
    min_draft_prob: float = 0.0  # a proposal ends where the draft's largest probability is lower
    new_cache: Callable[[LoadedModel], KVCache]  # a KV cache that the sequences' block tables address

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def device(self) -> torch.device:
        return self.target.model.device


@dataclass(frozen=True)
class Proposals:
    """The draft tokens of B sequences in one round; k is the run's ``max_proposal_len``.

    A sequence without a proposal keeps its row, of length 0. Without ``probs`` the draft's distribution is one-hot at
    each token: right for whoever chooses tokens without drawing (look-ups, greedy drafts).
    """

    token_ids: Int[Tensor, "B k"]  # -1 padded
    lens: list[int]
    probs: Float[Tensor, "B k V"] | None = None  # processed: what each token was drawn from; 0 past the length
    logits: Float[Tensor, "B k V"] | None = None  # raw, for entropy, divergence and rank; 0 past the length

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]], env: ProposerEnv) -> "Proposals":
        """One-hot proposals of at most k tokens a row. Raises ``ValueError`` for an id that the target lacks."""
        k, ids = env.max_proposal_len, [token for row in rows for token in row]
        if ids and not 0 <= min(ids) <= max(ids) < env.vocab_size:
            raise ValueError(f"token ids must be 0 to {env.vocab_size - 1}, not {min(ids)} to {max(ids)}")
        k = max([k, *map(len, rows)])  # a row that is too long is refused by its length
        padded = [[*row, *[-1] * (k - len(row))] for row in rows]
        token_ids = torch.tensor(padded, dtype=torch.int64, device=env.device).view(len(rows), k)
        return cls(token_ids, [len(row) for row in rows])


@dataclass(frozen=True)
class ProposalContext:
    """What is asked of a proposer in one round."""

    sequences: Sequence[SequenceMetadata]  # not to be changed
    max_lens: Sequence[int]  # most tokens wanted of each; 0: none
    cache_ops: CacheOps = field(default_factory=CacheOps)  # block moves, to be made first in each KV cache of its own


class Proposer(ABC):
    """Proposes tokens for sequences, and holds whatever state it needs for that, by ``seq_id``.

    The life of a sequence: ``admit``, the target's pass over the prompt, perhaps ``fork``; then in each round
    ``propose``, the target's pass over the proposal, ``commit`` and ``rewind``; in the end ``finish``. Whatever the
    proposer ``wants`` of the target is handed to ``observe`` after every pass. So when it proposes for a sequence of
    len tokens it has seen the features of positions 0 to len - 2: the last token has been fed to no model.
    """

    max_model_len: int | None = None  # positions it can speak about; None: any
    wants: TargetView = TargetView()
    skip_reason: SkipReason = "no_match"  # why it proposes nothing where it might have

    def __init__(self, env: ProposerEnv) -> None:
        self.env = env

    @abstractmethod
    def propose(self, context: ProposalContext) -> Proposals:
        """At most ``max_lens[b]`` tokens for each sequence; B rows in the order of ``sequences``."""

    def admit(self, sequences: Sequence[SequenceMetadata]) -> None:
        """New sequences, before their prompts are run; one for each request, see ``fork``."""

    def observe(self, sequences: Sequence[SequenceMetadata], features: Sequence[TargetFeatures]) -> None:
        """What the target has just computed of ``sequences``: their prompts, or their last tokens and the proposals."""

    def commit(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence goes on with ``tokens``: what was accepted of the proposal and the target's own; or its first
        one, after the prompt."""

    def rewind(self, seq_id: int, length: int) -> None:
        """The sequence now has ``length`` tokens: whatever was computed or seen at position length - 1 and after is no
        longer valid."""

    def preempt(self, seq_id: int) -> None:
        """The sequence's KV is lost. Once it is back the target runs over all but its last token, and ``observe`` sees
        that, before it is to be proposed for. (Blocks that were swapped out come back as they were: no call.)"""

    def finish(self, seq_id: int) -> None:
        """The sequence is complete; its id does not come back."""

    def fork(self, parent: SequenceMetadata, children: Sequence[int]) -> None:
        """The new sequences ``children`` go on from the prompt of ``parent``, just run, and share its blocks."""

    def num_computed_tokens(self, seq_id: int) -> int | None:
        """Tokens of the sequence in a KV cache of its own: before it writes after them, shared blocks are copied.
        ``None`` if it has none."""
        return None

    def notes(self) -> list[str]:
        """What the run's reader should know of it, in sentences; asked for at the end."""
        return []


@dataclass(frozen=True, kw_only=True)
class ProposerSpec(ABC):
    """Which proposer, under which name, with its settings: what everything outside the engine speaks of."""

    name: str  # as configured: a kind, or the path of a class
    label: str  # for people: in tables, plots and trackers

    @property
    def kv_models(self) -> Sequence[LoadedModel]:
        """Models that need a KV cache beside the target's."""
        return ()

    @abstractmethod
    def build(self, env: ProposerEnv) -> Proposer:
        """Raises ``UserError`` if it cannot be built with its settings."""
