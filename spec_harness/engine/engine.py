"""What every engine is to its callers: requests go in, records of finished sequences come out.

The LightningModule, the gate, the step profile and the warm-up see this and nothing else. What an engine cannot give is
``None`` in its records and its report, and said in its notes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from spec_harness.requests import Request, RequestRecord


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


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an engine can give beside token ids."""

    rounds: bool  # a record for each round
    probabilities: bool  # draft and target probabilities in them


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
