"""Faults of an engine to plant: in the forwards, caches and workers of one model only, or of a whole engine."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.load import LoadedModel
from spec_harness.worker.attention import PagedBatch, QueryGroup
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from spec_harness.worker.worker import Worker

Fault = Callable[[pytest.MonkeyPatch, LoadedModel], None]


def of_role(runner: ModelRunner, loaded: LoadedModel) -> bool:
    return runner.model is loaded.model


def flipped_table_entry(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """Once, a forward is given another sequence's block in the place of one that a sequence has just filled."""
    run, calls = ModelRunner.run, 0

    def flip(self: ModelRunner, rows: Sequence[QueryRow], pending: Tensor | None = None) -> Tensor:
        nonlocal calls
        calls += of_role(self, loaded) and rows[0].start > 0
        if calls == 2 and len(rows) > 1:
            calls += 1
            table, block = list(rows[0].block_table), (rows[0].start - 2) // self.cache.block_size
            table[block] = rows[1].block_table[block]
            rows = [replace(rows[0], block_table=table), *rows[1:]]
        return run(self, rows, pending)

    patch.setattr(ModelRunner, "run", flip)


def skipped_write(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """Once, the last layer's keys and values of a step after the prefill are not written."""
    run, write = ModelRunner.run, KVCache.write
    state = {"skip": False, "calls": 0}

    def watched(self: ModelRunner, rows: Sequence[QueryRow], pending: Tensor | None = None) -> Tensor:
        catches_up = rows[0].start > 0 and bool(rows[0].token_ids)  # what is fed is committed, so stays
        state["calls"] += of_role(self, loaded) and catches_up
        state["skip"] = state["calls"] == 2
        state["calls"] += state["skip"]
        return run(self, rows, pending)

    def skip(self: KVCache, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        if not (state["skip"] and layer == 1):
            write(self, layer, slots, key, value)

    patch.setattr(ModelRunner, "run", watched)
    patch.setattr(KVCache, "write", skip)


def _rewind_by(patch: pytest.MonkeyPatch, loaded: LoadedModel, to: Callable[[int, int], int]) -> None:
    """``to`` gives ``num_computed_tokens`` from what was computed and the new length."""
    rewind = Worker.rewind

    def wrong(self: Worker, seq_id: int, length: int) -> None:
        before = self.num_computed_tokens(seq_id)
        rewind(self, seq_id, length)
        if before and of_role(self.runner, loaded):
            self._num_computed_tokens[seq_id] = to(before, length)

    patch.setattr(Worker, "rewind", wrong)


def rewound_too_few(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """A rejected token's slot counts as computed."""
    _rewind_by(patch, loaded, lambda computed, length: min(computed, length))


def moved_forward(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """A slot that was never written counts as computed: the ancestors' fault."""
    _rewind_by(patch, loaded, lambda computed, length: length - 1)


def rewound_too_many(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    _rewind_by(patch, loaded, lambda computed, length: max(0, min(computed, length - 1) - 1))


def _attending(patch: pytest.MonkeyPatch, loaded: LoadedModel, change: Callable[[QueryGroup], QueryGroup]) -> None:
    build, run = PagedBatch.build.__func__, ModelRunner.run
    state = {"planted": False}

    def watched(self: ModelRunner, rows: Sequence[QueryRow], pending: Tensor | None = None) -> Tensor:
        state["planted"] = of_role(self, loaded)
        return run(self, rows, pending)

    def changed(cls: type[PagedBatch], *args: Any, **options: Any) -> PagedBatch:
        batch = build(cls, *args, **options)
        return replace(batch, groups=[change(g) for g in batch.groups]) if state["planted"] else batch

    patch.setattr(ModelRunner, "run", watched)
    patch.setattr(PagedBatch, "build", classmethod(changed))


def sees_the_next_token(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    _attending(patch, loaded, lambda group: replace(group, positions=group.positions + 1))


def does_not_see_itself(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    _attending(patch, loaded, lambda group: replace(group, positions=(group.positions - 1).clamp_min(0)))


def window_off_by_one(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    class Narrower(QueryGroup):
        def visible(self, window: int | None) -> Tensor:
            return super().visible(None if window is None else window - 1)

    _attending(patch, loaded, lambda group: Narrower(group.tokens, group.positions, group.slots))


def wrong_positions(patch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """Steps after the prefill are told positions one too high; the slots are right."""
    forward = ModelRunner._forward

    def shifted(self: ModelRunner, ids: Tensor, positions: Tensor, *args: Any) -> Tensor:
        decoding = of_role(self, loaded) and int(positions.min()) > 0
        return forward(self, ids, positions + 1 if decoding else positions, *args)

    patch.setattr(ModelRunner, "_forward", shifted)


FAULTS = [
    flipped_table_entry,
    skipped_write,
    rewound_too_few,
    moved_forward,
    rewound_too_many,
    sees_the_next_token,
    does_not_see_itself,
    window_off_by_one,
    wrong_positions,
]
