"""Putting a native engine together: two workers with their KV caches, a proposer, one block manager, a scheduler."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from spec_harness.engine.native import NativeEngine
from spec_harness.engine.proposal_length import ProposalLengths
from spec_harness.engine.round import SpecDecodeWorker
from spec_harness.engine.scheduler import Scheduler
from spec_harness.engine.stage_timer import StageTimer
from spec_harness.engine.stopping import StopCriteria
from spec_harness.kv_cache.block_manager import BlockManager
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.base import ProposerEnv, ProposerSpec
from spec_harness.proposers.none import NoProposals
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
    num_host_blocks: int = 0  # blocks that hold what is swapped out, for each cache
    preemption: Literal["recompute", "swap"] = "recompute"
    max_num_seqs: int  # sequences running at once
    max_proposal_len: int  # draft tokens per sequence and round
    min_draft_prob: float = 0.0  # a proposal ends where the draft's largest probability is lower
    disable_above_batch: int | None = None  # no proposals while more sequences run
    target_sampling: SamplerSettings = SamplerSettings()
    draft_sampling: SamplerSettings = SamplerSettings()


def build_engine(
    target: LoadedModel, proposer: ProposerSpec | None, settings: EngineSettings, stop: StopCriteria
) -> NativeEngine:
    """Allocates the KV caches on the models' device. Without a ``proposer`` it is the autoregressive baseline."""
    target_worker = Worker(
        ModelRunner(target.model, _cache(settings, target)),
        _sampler(settings.target_sampling, Stream.TARGET_TOKEN, None),
        max_model_len=target.max_model_len,
    )
    env = ProposerEnv(
        target=target,
        max_proposal_len=settings.max_proposal_len,
        sampler=_sampler(settings.draft_sampling, Stream.DRAFT_TOKEN, target.vocab_size),
        min_draft_prob=settings.min_draft_prob,
        new_cache=partial(_cache, settings),
    )
    built = (proposer or NoProposals()).build(env)
    lengths = ProposalLengths(
        max_proposal_len=built.env.max_proposal_len,
        target_max=target.max_model_len,
        draft_max=built.max_model_len,
        disable_above_batch=settings.disable_above_batch,
    )
    blocks = BlockManager(
        num_blocks=settings.num_blocks, block_size=settings.block_size, num_host_blocks=settings.num_host_blocks
    )
    return NativeEngine(
        SpecDecodeWorker(built, target_worker, StageTimer(target.model.device)),
        Scheduler(
            blocks,
            max_num_seqs=settings.max_num_seqs,
            max_proposal_len=lengths.max_proposal_len,
            swap=settings.preemption == "swap",
        ),
        lengths,
        stop,
    )


def _cache(settings: EngineSettings, loaded: LoadedModel) -> KVCache:
    return KVCache(
        loaded.layers,
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        num_host_blocks=settings.num_host_blocks,
        dtype=loaded.dtype,
        device=loaded.model.device,
    )


def _sampler(settings: SamplerSettings, stream: Stream, vocab_size: int | None) -> Sampler:
    return Sampler(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        stream=stream,
        vocab_size=vocab_size,
    )
