"""What every engine is to its callers: requests go in, records of finished sequences come out.

The LightningModule, the gate, the step profile and the warm-up see this and nothing else. What an engine cannot give is
``None`` in its records and its report, and said in its notes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from spec_harness.requests import Request, RequestRecord, RoundRecord

ModelRole = Literal["target", "draft"]


@dataclass
class EngineStats:
    """Running totals of one engine. KV figures are sums over steps, so that ratios are taken once, at the end."""

    num_steps: int = 0
    rows_run: int = 0  # sequences, summed over steps
    tokens_held: int = 0
    slots_held: int = 0
    preemptions: int = 0  # times a sequence gave its blocks back unfinished
    swaps: int = 0  # preemptions that moved its blocks to the host
    num_draft_tokens: int = 0  # these three: running sums for display; the results' counts come from the records
    num_accepted_tokens: int = 0
    num_emitted_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class BlockUsage:
    """KV blocks of one engine over its life."""

    peak: int  # most blocks owned at one time
    total: int  # blocks handed out


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """What an engine says of itself once it is drained."""

    stats: EngineStats
    stage_s: Mapping[str, float] | None = None  # seconds by stage; None: not timed
    blocks: BlockUsage | None = None  # None: it has no KV blocks of its own
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SequenceState:
    """A running sequence between two steps."""

    seq_id: int
    token_ids: list[int]  # prompt and output
    last_round: RoundRecord | None


@dataclass(frozen=True)
class CacheReading:
    """What one model's KV cache holds of one sequence."""

    num_computed_tokens: int  # by the engine's own account
    error: float  # largest difference from a fresh prefill, as a share of the largest value in its layer


@runtime_checkable
class CacheProbe(Protocol):
    """Reads an engine's KV caches between two steps. Changes nothing."""

    def sequences(self) -> list[SequenceState]:
        """The running ones."""
        ...

    def read(self, role: ModelRole, seq_id: int, token_ids: list[int]) -> CacheReading | None:
        """What is cached at the positions of ``token_ids``, the sequence's first ones, against a fresh prefill of them;
        ``None`` if that model has no KV cache."""
        ...


@runtime_checkable
class StageProbe(Protocol):
    """Times single stages on the running sequences between two steps, with the device idle before and after. No step
    may follow, since the sequences' KV blocks grow."""

    def stage_s(self) -> Mapping[str, float]:
        """Seconds of each stage in the steps so far."""
        ...

    def context_lens(self) -> list[int]:
        """Tokens of each running sequence."""
        ...

    def score_s(self, proposal_len: int) -> float:
        """Seconds of one scoring pass over proposals of that length; 0: over the last token alone."""
        ...

    def draft_s(self, num_steps: int) -> float | None:
        """Seconds of one draft step among ``num_steps`` with nothing to catch up; ``None`` if no model drafts."""
        ...


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an engine shows of itself beside its records."""

    cache: CacheProbe | None = None  # None: the gate has nothing to read
    stages: StageProbe | None = None  # None: no step times


@runtime_checkable
class Engine(Protocol):
    """Keeps up to ``max_num_seqs`` sequences running."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def stats(self) -> EngineStats:
        """Running totals, read between steps."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Sequences running or preempted, and requests not yet admitted."""
        ...

    @property
    def has_free_slot(self) -> bool:
        """Nobody waits and one more sequence could be taken on."""
        ...

    def add(self, request: Request, *, arrival_s: float | None = None) -> None:
        """Queues a request; ``arrival_s``: when it arrived, seconds on the engine's monotonic clock (default: now).

        Raises ``ValueError`` if it could never be run.
        """
        ...

    def step(self) -> list[RequestRecord]:
        """Runs one step and returns the sequences that finished in it."""
        ...

    def finish(self) -> EngineReport:
        """Checks that nothing is left over, and gives the totals. No step may follow."""
        ...
