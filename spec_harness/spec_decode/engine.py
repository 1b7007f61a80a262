"""Putting an engine together: two workers with their KV caches, a proposer, one block manager, a scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_harness.kv_cache.block_manager import BlockManager
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.spec_decode.draft_model_proposer import DraftModelTop1Proposer
from spec_harness.spec_decode.interfaces import SpeculativeProposer
from spec_harness.spec_decode.multi_step_worker import MultiStepWorker
from spec_harness.spec_decode.no_proposer import NoProposer
from spec_harness.spec_decode.scheduler import Scheduler
from spec_harness.spec_decode.spec_decode_worker import SpecDecodeWorker
from spec_harness.spec_decode.stage_timer import StageTimer
from spec_harness.spec_decode.stopping import StopCriteria
from spec_harness.worker.model_loader import LoadedModel
from spec_harness.worker.model_runner import ModelRunner
from spec_harness.worker.randomness import Stream
from spec_harness.worker.sampler import Sampler
from spec_harness.worker.worker import Worker


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """How tokens are drawn: temperature 0 is greedy, top_k 0 and top_p 1 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What an engine needs to know beside its models."""

    block_size: int  # tokens
    num_blocks: int  # usable KV blocks, in each cache
    max_num_seqs: int  # sequences running at once
    max_proposal_len: int  # draft tokens per sequence and round
    target_sampling: SamplerSettings = SamplerSettings()
    draft_sampling: SamplerSettings = SamplerSettings()


def build_scheduler(
    target: LoadedModel, draft: LoadedModel | None, settings: EngineSettings, stop: StopCriteria
) -> Scheduler:
    """Allocates the KV caches on the models' device. Without a ``draft`` it is the autoregressive baseline."""
    device = target.model.device
    target_worker = Worker(
        _runner(target, settings),
        _sampler(settings.target_sampling, Stream.TARGET_TOKEN, None),
        max_model_len=target.max_model_len,
    )
    proposer: SpeculativeProposer = NoProposer(vocab_size=target.vocab_size, device=device)
    if draft is not None:
        draft_worker = MultiStepWorker(
            _runner(draft, settings),
            _sampler(settings.draft_sampling, Stream.DRAFT_TOKEN, target.vocab_size),
            max_model_len=draft.max_model_len,
        )
        proposer = DraftModelTop1Proposer(
            draft_worker, max_proposal_len=settings.max_proposal_len, vocab_size=target.vocab_size
        )
    return Scheduler(
        SpecDecodeWorker(proposer, target_worker, StageTimer(device)),
        BlockManager(num_blocks=settings.num_blocks, block_size=settings.block_size),
        max_num_seqs=settings.max_num_seqs,
        max_proposal_len=0 if draft is None else settings.max_proposal_len,
        stop=stop,
    )


def _runner(loaded: LoadedModel, settings: EngineSettings) -> ModelRunner:
    cache = KVCache(
        loaded.layers,
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        dtype=loaded.dtype,
        device=loaded.model.device,
    )
    return ModelRunner(loaded.model, cache)


def _sampler(settings: SamplerSettings, stream: Stream, vocab_size: int | None) -> Sampler:
    return Sampler(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        stream=stream,
        vocab_size=vocab_size,
    )


def bytes_per_block(models: Sequence[LoadedModel], block_size: int) -> int:
    """Bytes that one block id takes in the caches of all ``models``."""
    return sum(KVCache.bytes_per_block(m.layers, block_size=block_size, dtype=m.dtype) for m in models)


def blocks_that_fit(models: Sequence[LoadedModel], *, block_size: int, memory_share: float) -> int:
    """Blocks that fit into ``memory_share`` of a GPU's memory next to what is already allocated there."""
    free, total = torch.cuda.mem_get_info(models[0].model.device)
    budget = int(total * memory_share) - (total - free)
    return max(0, budget) // bytes_per_block(models, block_size) - 1  # block 0 comes on top
