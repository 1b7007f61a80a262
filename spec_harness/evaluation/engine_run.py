"""One engine's way through all requests: what it finished, and how long it took."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spec_harness.engine import Engine, EngineReport, EngineStats
from spec_harness.metrics.estimates import ratio
from spec_harness.requests import Request, RequestRecord


@dataclass(kw_only=True)
class EngineRun:
    """Built by ``build``, driven by the module. An engine lives from ``start`` to ``finish``; its figures stay."""

    name: str
    make_engine: Callable[[], Engine]
    records: list[RequestRecord] = field(default_factory=list)  # finished sequences, in the order of their finishing
    wall_s: float = 0.0  # seconds in the engine's steps
    report: EngineReport | None = None  # once it is drained
    engine: Engine | None = None  # while it runs

    def start(self) -> None:
        self.records, self.wall_s, self.report = [], 0.0, None
        self.engine = self.make_engine()

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Runs ``requests`` through an engine of its own, untimed."""
        engine = self.make_engine()
        for request in requests:
            engine.add(request)
        while engine.num_unfinished:
            engine.step()
        engine.finish()

    def step(self) -> list[RequestRecord]:
        assert self.engine is not None
        began = time.perf_counter()  # a step ends with a copy to the host, so the device's work is in it
        finished = self.engine.step()
        self.wall_s += time.perf_counter() - began
        self.records += finished
        return finished

    def finish(self) -> None:
        """Lets go of the engine, and so of its KV caches."""
        assert self.engine is not None
        self.report = self.engine.finish()
        self.engine = None

    @property
    def stats(self) -> EngineStats:
        if self.report is not None:
            return self.report.stats
        return EngineStats() if self.engine is None else self.engine.stats

    @property
    def stage_s(self) -> Mapping[str, float] | None:
        return None if self.report is None else self.report.stage_s

    @property
    def acceptance_rate(self) -> float | None:
        """So far, of finished and running sequences: for display; the results' counts come from the records."""
        return ratio("acceptance_rate", self.stats)

    @property
    def num_output_tokens(self) -> int:
        return sum(len(record.token_ids) for record in self.records)

    @property
    def tokens_per_second(self) -> float | None:
        return self.num_output_tokens / self.wall_s if self.wall_s > 0 else None
