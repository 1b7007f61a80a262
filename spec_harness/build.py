"""The composition root: from a checked configuration to the objects of one run. The only place that knows them all."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from spec_harness.config import EvalConfig, ProposalConfig
from spec_harness.errors import UserError
from spec_harness.evaluation.data import PromptDataModule, PromptEncoder
from spec_harness.evaluation.module import Pass, SpecDecodeEvalModule
from spec_harness.evaluation.prompts import BUILTIN_PROMPTS, PromptRow, read_jsonl, select_rows
from spec_harness.evaluation.report import BASELINE, SPECULATIVE
from spec_harness.kv_cache.block_manager import blocks_for
from spec_harness.models import load_draft, load_model, load_tokenizer
from spec_harness.spec_decode.engine import EngineSettings, SamplerSettings, blocks_that_fit, build_scheduler
from spec_harness.spec_decode.records import RequestRecord
from spec_harness.spec_decode.running import Request
from spec_harness.spec_decode.stopping import StopCriteria
from spec_harness.worker.model_loader import LoadedModel, effective_max_len, eos_token_ids, ignored_penalties, prepare


@dataclass
class Conversations:
    """Which request follows a finished one, in each pass on its own: the answers may differ by a tie."""

    encoder: PromptEncoder
    rows: dict[str, PromptRow]
    _history: dict[tuple[str, str], list[RequestRecord]] = field(default_factory=lambda: defaultdict(list))
    cut_short: set[str] = field(default_factory=set)  # conversations whose next turn no longer fits the target

    def next_turn(self, current: Pass, record: RequestRecord) -> Request | None:
        row, history = self.rows[record.request_id], self._history[current.name, record.request_id]
        history.append(record)
        if row.turns is None or len(history) >= len(row.turns):
            return None
        following = self.encoder.next_turn(row, history)
        if following is None:
            self.cut_short.add(row.id)
        return following

    def notes(self) -> list[str]:
        if not self.cut_short:
            return []
        return [f"{len(self.cut_short)} conversations ended early: their next turn did not fit the target's length."]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One run, put together but not started."""

    target: LoadedModel
    draft: LoadedModel | None
    requests: list[Request]
    conversations: Conversations
    settings: EngineSettings
    passes: list[Pass]
    data: PromptDataModule
    notes: list[str]

    def module(
        self,
        on_finished: Callable[[Pass, RequestRecord], None],
        on_step: Callable[[SpecDecodeEvalModule], None],
    ) -> SpecDecodeEvalModule:
        return SpecDecodeEvalModule(
            self.target,
            self.draft,
            self.passes,
            num_requests=len(self.requests),
            max_proposal_len=self.settings.max_proposal_len,
            next_turn=self.conversations.next_turn,
            on_finished=on_finished,
            on_step=on_step,
        )


def build(config: EvalConfig) -> Evaluation:
    """Loads, checks and connects everything; allocates no KV cache. Raises ``UserError``."""
    device = _device(config.trainer.accelerator)
    source = BUILTIN_PROMPTS if config.data.path is None else Path(config.data.path)
    rows = select_rows(read_jsonl(source), limit=config.data.limit, category=config.data.category)
    tokenizer = load_tokenizer(config.target)
    model = load_model(config.target, device)
    encoder = PromptEncoder(
        tokenizer=tokenizer,
        chat_template="off" if config.data.chat_template == "off" else "auto",
        max_new_tokens=config.sampling.max_new_tokens,
        seed=config.sampling.seed,
        stop_token_ids=frozenset() if config.sampling.ignore_eos else eos_token_ids(model, tokenizer),
        max_model_len=effective_max_len(model, where="target", wanted=config.target.max_model_len),
    )
    requests = [_first_request(encoder, row, source) for row in rows]
    samples = [request.prompt_token_ids for request in requests]
    target = prepare(model, where="target", max_model_len=config.target.max_model_len, samples=samples)
    speculative = config.proposal.kind != "none"
    draft = load_draft(config.draft, target, tokenizer, samples) if speculative else None
    models = [target] if draft is None else [target, draft]
    _check_tokens(models, requests)
    settings = _settings(config, models, requests, rows)
    stop = StopCriteria(encoder.decode, tuple(config.sampling.stop))
    passes = [Pass(name=BASELINE, scheduler=partial(build_scheduler, target, None, settings, stop))]
    if draft is not None:
        engine = partial(build_scheduler, target, draft, settings, stop)
        passes = [Pass(name=SPECULATIVE, scheduler=engine), *(passes if config.baseline == "measure" else [])]
    return Evaluation(
        target=target,
        draft=draft,
        requests=requests,
        conversations=Conversations(encoder, {row.id: row for row in rows}),
        settings=settings,
        passes=passes,
        data=PromptDataModule(requests, max_num_seqs=config.max_num_seqs, num_passes=len(passes)),
        notes=ignored_penalties(model),
    )


def _first_request(encoder: PromptEncoder, row: PromptRow, source: Path) -> Request:
    try:
        return encoder.first(row)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _check_tokens(models: list[LoadedModel], requests: list[Request]) -> None:
    """A tokenizer may know more tokens than a model has embeddings for."""
    for role, model in zip(("target", "draft"), models, strict=False):
        num_tokens = int(model.model.config.get_text_config().vocab_size)
        for request in requests:
            largest = max(request.prompt_token_ids)
            if largest >= num_tokens:
                raise UserError(
                    f"{role}: the model has {num_tokens} tokens, but prompt {request.request_id!r} has token {largest} "
                    "in the target's tokenizer; the two do not belong together"
                )


def _device(accelerator: str) -> torch.device:
    if accelerator == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("trainer=gpu: this machine has no CUDA device that torch can use; take trainer=cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _settings(
    config: EvalConfig, models: list[LoadedModel], requests: list[Request], rows: list[PromptRow]
) -> EngineSettings:
    k = 0 if len(models) == 1 else config.proposal.max_proposal_len
    for role, model in zip(("target", "draft"), models, strict=False):
        if k >= model.max_model_len:
            raise UserError(
                f"proposal.max_proposal_len={k} must be below the {role}'s maximum of {model.max_model_len} tokens"
            )
    sampling = SamplerSettings(
        temperature=config.sampling.temperature, top_k=config.sampling.top_k or 0, top_p=config.sampling.top_p
    )
    return EngineSettings(
        block_size=config.kv_cache.block_size,
        num_blocks=_num_blocks(config, models, requests, rows),
        max_num_seqs=config.max_num_seqs,
        max_proposal_len=k,
        target_sampling=sampling,
        draft_sampling=_draft_sampling(config.proposal, sampling),
    )


def _draft_sampling(proposal: ProposalConfig, target: SamplerSettings) -> SamplerSettings:
    if proposal.draft_sampling == "same":
        return target
    if proposal.draft_sampling == "greedy":
        return SamplerSettings()
    return SamplerSettings(
        temperature=proposal.draft_temperature or 0.0,
        top_k=proposal.draft_top_k or 0,
        top_p=1.0 if proposal.draft_top_p is None else proposal.draft_top_p,
    )


def _num_blocks(config: EvalConfig, models: list[LoadedModel], requests: list[Request], rows: list[PromptRow]) -> int:
    """As configured, or sized: on a GPU what fits, on the CPU ``max_num_seqs`` of the largest request."""
    size, longest = config.kv_cache.block_size, models[0].max_model_len
    if any(row.turns is not None and len(row.turns) > 1 for row in rows):
        largest = blocks_for(longest - 1, size)  # what later turns need is not known yet
    else:
        lens = [min(len(r.prompt_token_ids) + r.sampling.max_new_tokens, longest) for r in requests]
        largest = blocks_for(max(lens) - 1, size)
    num_blocks = config.kv_cache.num_blocks
    if num_blocks is None and models[0].model.device.type == "cuda":
        num_blocks = blocks_that_fit(models, block_size=size, memory_share=config.kv_cache.gpu_memory_utilization)
    elif num_blocks is None:
        num_blocks = config.max_num_seqs * largest
    if num_blocks < largest:
        raise UserError(
            f"kv_cache.num_blocks={num_blocks} is too small: the largest request needs {largest} (of {size} tokens)"
        )
    return num_blocks
