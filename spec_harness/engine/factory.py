"""Putting a native engine together: two workers with their KV caches, a proposer, one block manager, a scheduler."""

from dataclasses import dataclass
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
from spec_harness.proposers.base import SpeculativeProposer
from spec_harness.proposers.draft_model import DraftModelTop1Proposer
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.proposers.ngram import NgramProposer
from spec_harness.proposers.none import NoProposer
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
class NgramSettings:
    """Prompt lookup instead of a draft model: windows of ``max_window`` down to ``min_window`` tokens."""

    max_window: int
    min_window: int


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
    target: LoadedModel, draft: LoadedModel | NgramSettings | None, settings: EngineSettings, stop: StopCriteria
) -> NativeEngine:
    """Allocates the KV caches on the models' device. Without a ``draft`` it is the autoregressive baseline."""
    target_worker = Worker(
        _runner(target, settings),
        _sampler(settings.target_sampling, Stream.TARGET_TOKEN, None),
        max_model_len=target.max_model_len,
    )
    proposer = _proposer(target, draft, settings)
    lengths = ProposalLengths(
        max_proposal_len=0 if draft is None else settings.max_proposal_len,
        target_max=target.max_model_len,
        draft_max=proposer.max_model_len,
        disable_above_batch=settings.disable_above_batch,
    )
    blocks = BlockManager(
        num_blocks=settings.num_blocks, block_size=settings.block_size, num_host_blocks=settings.num_host_blocks
    )
    return NativeEngine(
        SpecDecodeWorker(proposer, target_worker, StageTimer(target.model.device)),
        Scheduler(
            blocks,
            max_num_seqs=settings.max_num_seqs,
            max_proposal_len=lengths.max_proposal_len,
            swap=settings.preemption == "swap",
        ),
        lengths,
        stop,
    )


def _proposer(
    target: LoadedModel, draft: LoadedModel | NgramSettings | None, settings: EngineSettings
) -> SpeculativeProposer:
    k, vocab_size, device = settings.max_proposal_len, target.vocab_size, target.model.device
    if draft is None:
        return NoProposer(vocab_size=vocab_size, device=device)
    if isinstance(draft, NgramSettings):
        return NgramProposer(
            max_proposal_len=k,
            vocab_size=vocab_size,
            device=device,
            max_window=draft.max_window,
            min_window=draft.min_window,
        )
    worker = MultiStepWorker(
        _runner(draft, settings, known_ids=draft.vocab_size if draft.vocab_size < target.vocab_size else None),
        _sampler(settings.draft_sampling, Stream.DRAFT_TOKEN, vocab_size),
        max_model_len=draft.max_model_len,
        min_prob=settings.min_draft_prob,
    )
    return DraftModelTop1Proposer(worker, max_proposal_len=k, vocab_size=vocab_size)


def _runner(loaded: LoadedModel, settings: EngineSettings, *, known_ids: int | None = None) -> ModelRunner:
    cache = KVCache(
        loaded.layers,
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        num_host_blocks=settings.num_host_blocks,
        dtype=loaded.dtype,
        device=loaded.model.device,
    )
    return ModelRunner(loaded.model, cache, known_ids=known_ids)


def _sampler(settings: SamplerSettings, stream: Stream, vocab_size: int | None) -> Sampler:
    return Sampler(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        stream=stream,
        vocab_size=vocab_size,
    )
