"""Sequences as the engine's loop holds them."""

import time
from dataclasses import dataclass, field, replace

from spec_harness.requests import Request, RequestRecord, RoundRecord, SequenceData, SequenceMetadata, StopReason


@dataclass(eq=False)  # a sequence is itself, whatever it holds
class RunningSequence:
    """A sequence that was admitted and has not finished; it may be preempted for a while."""

    request: Request
    metadata: SequenceMetadata  # its block table is refreshed before each forward
    admitted: float  # seconds, monotonic clock
    admitted_at: float  # seconds, Unix time
    queued_s: float  # from its arrival to its admission
    first_token: float = 0.0
    engine_s: float = 0.0  # its share of the steps it took part in, seconds
    preemptions: int = 0
    rounds: list[RoundRecord] = field(default_factory=list)
    stop_reason: StopReason | None = None  # set once it has finished
    finished: float = 0.0

    @classmethod
    def start(cls, request: Request, *, seq_id: int, sample: int, now: float, queued: float) -> "RunningSequence":
        metadata = SequenceMetadata(
            request_id=request.request_id,
            seq_id=seq_id,
            data=SequenceData(list(request.prompt_token_ids)),
            block_table=[],
            sampling=request.sampling,
            sample=sample,
        )
        return cls(request, metadata, admitted=now, admitted_at=time.time(), queued_s=queued)

    @property
    def seq_id(self) -> int:
        return self.metadata.seq_id

    @property
    def data(self) -> SequenceData:
        return self.metadata.data

    def with_table(self, block_table: list[int]) -> SequenceMetadata:
        self.metadata = replace(self.metadata, block_table=block_table)
        return self.metadata

    def record(self, text: str) -> RequestRecord:
        """What is left of the sequence, which has finished, and whose output says ``text``."""
        assert self.stop_reason is not None
        tokens = self.data.output_token_ids
        later = len(tokens) - 1
        return RequestRecord(
            request_id=self.request.request_id,
            turn=self.request.turn,
            sample=self.metadata.sample,
            category=self.request.category,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            token_ids=tokens,
            text=text,
            stop_reason=self.stop_reason,
            time_to_first_token=self.first_token - self.admitted,
            time_per_output_token=(self.finished - self.first_token) / later if later else None,
            engine_s=self.engine_s,
            admitted_at=self.admitted_at,
            queued_s=self.queued_s,
            preemptions=self.preemptions,
            rounds=self.rounds,
        )
