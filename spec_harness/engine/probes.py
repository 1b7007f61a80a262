"""What the native engine shows of itself between two steps: its KV caches, and the time of single stages."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from spec_harness.engine.engine import CacheReading, ModelRole, SequenceState
from spec_harness.engine.round import SpecDecodeWorker
from spec_harness.engine.running import RunningSequence
from spec_harness.engine.scheduler import Scheduler
from spec_harness.engine.scorer import score_proposals
from spec_harness.kv_cache.block_manager import blocks_for
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.proposers.base import Proposals
from spec_harness.proposers.draft_model import DraftModelTop1Proposer
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import SequenceMetadata
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from spec_harness.worker.worker import Worker


class NativeProbe:
    """A ``CacheProbe`` and a ``StageProbe`` on the parts of one engine."""

    def __init__(
        self, worker: SpecDecodeWorker, scheduler: Scheduler, sequences: Mapping[int, RunningSequence]
    ) -> None:
        """``sequences``: the engine's own, by id."""
        self._worker = worker
        self._scheduler = scheduler
        self._sequences = sequences

    def sequences(self) -> list[SequenceState]:
        running = [self._sequences[seq_id] for seq_id in self._scheduler.running]
        return [SequenceState(s.seq_id, s.data.token_ids, s.rounds[-1] if s.rounds else None) for s in running]

    def read(self, role: ModelRole, seq_id: int, token_ids: list[int]) -> CacheReading | None:
        worker = self._worker.target if role == "target" else self._draft
        if worker is None:
            return None
        table = self._scheduler.blocks.block_table(seq_id)
        return CacheReading(worker.num_computed_tokens(seq_id), _kv_error(worker, token_ids, table))

    def stage_s(self) -> Mapping[str, float]:
        return self._worker.timer.seconds()

    def context_lens(self) -> list[int]:
        return [len(row.data) for row in self._rows(0)]

    def score_s(self, proposal_len: int) -> float:
        target = self._worker.target
        device, rows = target.runner.device, self._rows(proposal_len)
        last = [row.data.token_ids[-1:] * proposal_len for row in rows]
        ids = torch.tensor(last, dtype=torch.int64, device=device).view(len(rows), proposal_len)
        proposals = Proposals(ids, [proposal_len] * len(rows))
        _rewind(target, rows)
        return _seconds(lambda: score_proposals(target, rows, proposals), device)

    def draft_s(self, num_steps: int) -> float | None:
        draft = self._draft
        if draft is None:
            return None
        rows = self._rows(num_steps)
        _rewind(draft, rows)
        return _seconds(lambda: draft.execute_model_multi_step(rows, num_steps), draft.runner.device) / num_steps

    @property
    def _draft(self) -> MultiStepWorker | None:
        proposer = self._worker.proposer
        return proposer.worker if isinstance(proposer, DraftModelTop1Proposer) else None

    def _rows(self, proposal_len: int) -> list[SequenceMetadata]:
        """The running sequences, with KV slots for that many proposed tokens."""
        rows = []
        for seq_id in self._scheduler.running:
            metadata, blocks = self._sequences[seq_id].metadata, self._scheduler.blocks
            blocks.grow(seq_id, len(metadata.data) + proposal_len)
            rows.append(replace(metadata, block_table=blocks.block_table(seq_id)))
        return rows


def _rewind(worker: Worker, rows: Sequence[SequenceMetadata]) -> None:
    for row in rows:
        worker.rewind(row.seq_id, len(row.data))


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Of one call, the device idle before and after it."""
    _synchronize(device)
    began = time.perf_counter()
    call()
    _synchronize(device)
    return time.perf_counter() - began


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _kv_error(worker: Worker, token_ids: list[int], block_table: list[int]) -> float:
    """Largest difference between the cached keys and values of these tokens and a fresh prefill of them, as a share of
    the largest in each layer."""
    cache = worker.runner.cache
    size, count = cache.block_size, len(token_ids)
    fresh = KVCache.like(cache, num_blocks=blocks_for(count, size))
    own_table = list(range(1, fresh.num_blocks + 1))
    ModelRunner(worker.runner.model, fresh).run([QueryRow(block_table=own_table, start=0, token_ids=token_ids)])
    slots, wanted = (
        torch.tensor([[table[p // size] * size + p % size for p in range(count)]], device=cache.device)
        for table in (block_table, own_table)
    )
    errors = []
    for layer in range(len(cache.keys)):
        for ours, theirs in zip(cache.gather(layer, slots), fresh.gather(layer, wanted), strict=True):
            scale = theirs.float().abs().max()
            errors.append(float((ours.float() - theirs.float()).abs().max() / scale.clamp_min(1e-30)))
    return max(errors)
