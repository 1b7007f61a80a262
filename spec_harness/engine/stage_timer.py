"""Where the time of the engine goes: seconds by stage."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class StageTimer:
    """Sums the time of named stages without waiting for the device.

    On a GPU a stage is timed by a pair of CUDA events, which are read in ``seconds`` once all work is done; on the CPU,
    where kernels run in the calling thread, by the clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self._cuda:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._events.append((name, start, end))
        else:
            began = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - began

    def seconds(self) -> dict[str, float]:
        """Seconds of each stage so far. Waits for the device on a GPU."""
        if self._events:
            torch.cuda.synchronize()
            for name, start, end in self._events:
                self._seconds[name] += start.elapsed_time(end) / 1e3
            self._events.clear()
        return dict(self._seconds)
