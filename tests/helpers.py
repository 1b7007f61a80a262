"""Tiny random models and plain helpers for the tests: float32, CPU, no download."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spec_harness.engine import EngineSettings, SamplerSettings, build_engine
from spec_harness.engine.native import NativeEngine
from spec_harness.engine.stopping import StopCriteria
from spec_harness.kv_cache.block_manager import blocks_for
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.models.load import LoadedModel, build_random, prepare
from spec_harness.models.paged_check import dense_logits
from spec_harness.proposers.base import ProposerEnv, ProposerSpec
from spec_harness.proposers.draft_model import DraftModel
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import Request, RequestRecord, SamplingParams, SequenceData, SequenceMetadata
from spec_harness.worker.model_runner import ModelRunner
from spec_harness.worker.randomness import Stream
from spec_harness.worker.sampler import Sampler
from tests.inspection import assert_nothing_left

CPU = torch.device("cpu")
SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Random models with small weights give nearly flat logits, and argmax margins near rounding: not what tests want.
    "initializer_range": 0.3,
}


def tiny_model(
    model_type: str = "llama", *, seed: int = 0, dtype: str = "float32", **overrides: Any
) -> PreTrainedModel:
    config = {"model_type": model_type, **SMALL, **overrides}
    return build_random(config, where="target", device=CPU, dtype=dtype, seed=seed)


def tiny_loaded(
    model_type: str = "llama", *, seed: int = 0, max_model_len: int | None = None, **overrides: Any
) -> LoadedModel:
    return prepare(tiny_model(model_type, seed=seed, **overrides), where="target", max_model_len=max_model_len)


def noisy_copy(loaded: LoadedModel, *, scale: float, seed: int = 1, max_model_len: int | None = None) -> LoadedModel:
    """A draft that often agrees with its target: the same weights plus noise."""
    model = copy.deepcopy(loaded.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale * parameter.std().nan_to_num(1.0))
    return prepare(model, where="draft", max_model_len=max_model_len)


def decode(token_ids: list[int]) -> str:
    return " ".join(map(str, token_ids))


def prompts(count: int, *, seed: int = 0, low: int = 3, high: int = 24, vocab: int = 128) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lens = torch.randint(low, high, (count,), generator=generator).tolist()
    return [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in lens]


def request(index: int, prompt: Sequence[int], *, num_samples: int = 1, **sampling: Any) -> Request:
    params = SamplingParams(**{"max_new_tokens": 20, "seed": 1000 + index, **sampling})
    return Request(
        request_id=f"r{index}",
        prompt=decode(list(prompt)),
        prompt_token_ids=list(prompt),
        num_samples=num_samples,
        sampling=params,
    )


def spec_of(draft: LoadedModel | ProposerSpec | None) -> ProposerSpec | None:
    return DraftModel(model=draft, label="draft") if isinstance(draft, LoadedModel) else draft


def scheduler(
    target: LoadedModel,
    draft: LoadedModel | ProposerSpec | None,
    *,
    k: int = 4,
    block_size: int = 8,
    batch: int = 4,
    num_blocks: int = 400,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop_strings: tuple[str, ...] = (),
    **engine: Any,
) -> NativeEngine:
    """``engine`` holds further ``EngineSettings``."""
    settings = SamplerSettings(temperature=temperature, top_k=top_k, top_p=top_p)
    return build_engine(
        target,
        spec_of(draft),
        EngineSettings(
            **{
                "block_size": block_size,
                "num_blocks": num_blocks,
                "max_num_seqs": batch,
                "max_proposal_len": k,
                "target_sampling": settings,
                "draft_sampling": settings,
                **engine,
            }
        ),
        StopCriteria(decode, stop_strings),
    )


def pool_for(share: float, requests: Iterable[Request], *, block_size: int) -> int:
    """Blocks for ``share`` times the longest of ``requests`` at its full length."""
    longest = max(len(r.prompt_token_ids) + r.sampling.max_new_tokens for r in requests)
    return max(blocks_for(longest - 1, block_size), int(share * longest / block_size))


def sampled_as(engine: NativeEngine, asked: Request) -> Request:
    """The request with the engine's temperature, top-k and top-p, as it must have them."""
    sampler = engine.worker.target.sampler
    own = {"temperature": sampler.temperature, "top_k": sampler.top_k, "top_p": sampler.top_p}
    return replace(asked, sampling=replace(asked.sampling, **own))


Hook = Callable[[NativeEngine], None]


@torch.inference_mode()
def run_samples(
    engine: NativeEngine,
    requests: Sequence[Request],
    *,
    before_step: Hook | None = None,
    after_step: Hook | None = None,
) -> dict[tuple[str, int], RequestRecord]:
    """Runs all samples of all requests to their end, with the block manager's integrity checked after every step. By
    request id and sample."""
    for r in requests:
        engine.add(sampled_as(engine, r))
    finished: dict[tuple[str, int], RequestRecord] = {}
    while engine.num_unfinished:
        if before_step is not None:
            before_step(engine)
        finished |= {(record.request_id, record.sample): record for record in engine.step()}
        engine.scheduler.blocks.check_integrity()
        if after_step is not None:
            after_step(engine)
    assert_nothing_left(engine)
    assert len(finished) == sum(r.num_samples for r in requests)
    return finished


def run(engine: NativeEngine, requests: Sequence[Request], **hooks: Hook) -> dict[str, RequestRecord]:
    """The same for requests of one sample, by request id."""
    return {request_id: record for (request_id, _), record in run_samples(engine, requests, **hooks).items()}


def acceptance_rate(records: Iterable[RequestRecord]) -> float:
    rounds = [r for record in records for r in record.rounds]
    return sum(r.num_accepted for r in rounds) / sum(r.proposal_len for r in rounds)


def generate(
    loaded: LoadedModel, prompt: Sequence[int], *, max_new_tokens: int, eos_token_ids: Sequence[int] = ()
) -> list[int]:
    """The reference for greedy output: transformers' own generation on a dense twin, batch 1, unpadded."""
    twin = copy.deepcopy(loaded.model)
    twin.set_attn_implementation("eager")
    twin.generation_config.eos_token_id = list(eos_token_ids) or None
    ids = torch.tensor([list(prompt)])
    output = twin.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens)
    return output[0, len(prompt) :].tolist()


def smallest_margin(loaded: LoadedModel, prompt: Sequence[int], output: Sequence[int]) -> float:
    """The smallest top-1 minus top-2 distance of the dense logits along ``output``: how far from a numerical tie."""
    logits = dense_logits(loaded.model, [*prompt, *output])[len(prompt) - 1 : -1]
    top = logits.topk(2).values
    return float((top[:, 0] - top[:, 1]).min())


def worker(
    loaded: LoadedModel,
    *,
    num_blocks: int = 32,
    block_size: int = 4,
    temperature: float = 0.0,
    stream: Stream = Stream.DRAFT_TOKEN,
    vocab_size: int | None = None,
    num_host_blocks: int = 0,
    min_prob: float = 0.0,
) -> MultiStepWorker:
    cache = KVCache(
        loaded.layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_host_blocks=num_host_blocks,
        dtype=loaded.dtype,
        device=CPU,
    )
    sampler = Sampler(temperature=temperature, stream=stream, vocab_size=vocab_size)
    runner = ModelRunner(loaded.model, cache)
    return MultiStepWorker(runner, sampler, max_model_len=loaded.max_model_len, min_prob=min_prob)


def proposer_env(target: LoadedModel, *, k: int = 4, temperature: float = 0.0) -> ProposerEnv:
    return ProposerEnv(
        target=target,
        max_proposal_len=k,
        sampler=Sampler(temperature=temperature, stream=Stream.DRAFT_TOKEN, vocab_size=target.vocab_size),
        new_cache=lambda loaded: KVCache(loaded.layers, num_blocks=32, block_size=4, dtype=loaded.dtype, device=CPU),
    )


def metadata(
    index: int, prompt: Sequence[int], block_table: Sequence[int], output: Sequence[int] = (), **sampling: Any
) -> SequenceMetadata:
    return SequenceMetadata(
        request_id=f"r{index}",
        seq_id=index,
        data=SequenceData(list(prompt), list(output)),
        block_table=list(block_table),
        sampling=SamplingParams(**{"max_new_tokens": 20, "seed": 1000 + index, **sampling}),
    )


def shuffled_tables(lengths: Sequence[int], block_size: int, *, num_blocks: int, seed: int = 0) -> list[list[int]]:
    """Block tables for sequences of ``lengths`` tokens out of blocks 1 ... ``num_blocks``, in random order."""
    widths = [-(-n // block_size) for n in lengths]
    order = (torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    starts = [sum(widths[:i]) for i in range(len(widths))]
    return [order[start : start + width] for start, width in zip(starts, widths, strict=True)]


@contextmanager
def forwards(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects the input ids of every forward of ``model`` inside the block."""
    seen: list[Tensor] = []
    handle = model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
