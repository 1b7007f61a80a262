"""Tiny random models and plain helpers for the tests: float32, CPU, no download."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from spec_harness.sequence import SamplingParams
from spec_harness.spec_decode.engine import EngineSettings, SamplerSettings, build_scheduler
from spec_harness.spec_decode.records import RequestRecord
from spec_harness.spec_decode.scheduler import Request, Scheduler
from spec_harness.spec_decode.stopping import StopCriteria
from spec_harness.worker.model_loader import LoadedModel, build_random, prepare

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


def tiny_model(model_type: str = "llama", *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    config = {"model_type": model_type, **SMALL, **overrides}
    return build_random(config, where="target", device=CPU, dtype="float32", seed=seed)


def tiny_loaded(
    model_type: str = "llama", *, seed: int = 0, max_model_len: int | None = None, **overrides: Any
) -> LoadedModel:
    return prepare(tiny_model(model_type, seed=seed, **overrides), where="target", max_model_len=max_model_len)


def noisy_copy(loaded: LoadedModel, *, scale: float, seed: int = 1, max_model_len: int | None = None) -> LoadedModel:
    """A draft that often agrees with its target: the same weights plus noise."""
    model = tiny_model(**{"model_type": loaded.model.config.model_type}, seed=0)
    model.load_state_dict(loaded.model.state_dict())
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


def request(index: int, prompt: Sequence[int], **sampling: Any) -> Request:
    params = SamplingParams(**{"max_new_tokens": 20, "seed": 1000 + index, **sampling})
    return Request(request_id=f"r{index}", prompt=decode(list(prompt)), prompt_token_ids=list(prompt), sampling=params)


def scheduler(
    target: LoadedModel,
    draft: LoadedModel | None,
    *,
    k: int = 4,
    block_size: int = 8,
    batch: int = 4,
    num_blocks: int = 400,
    temperature: float = 0.0,
    stop_strings: tuple[str, ...] = (),
    **sampling: Any,
) -> Scheduler:
    settings = SamplerSettings(temperature=temperature, **sampling)
    return build_scheduler(
        target,
        draft,
        EngineSettings(
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=batch,
            max_proposal_len=k,
            target_sampling=settings,
            draft_sampling=settings,
        ),
        StopCriteria(decode, stop_strings),
    )


@torch.inference_mode()
def run(engine: Scheduler, requests: Sequence[Request]) -> dict[str, RequestRecord]:
    """Runs all requests to their end, with the block manager's integrity checked after every step."""
    for r in requests:
        engine.add(r)
    finished: dict[str, RequestRecord] = {}
    while engine.num_waiting or engine.num_running:
        finished |= {record.request_id: record for record in engine.step()}
        engine.blocks.check_integrity()
    assert engine.blocks.num_allocated == 0
    return finished
