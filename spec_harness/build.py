"""The composition root: from a checked configuration to the objects of one run. The only place that knows them all."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from spec_harness.config import EvalConfig
from spec_harness.data.conversations import Conversations
from spec_harness.data.encoder import PromptDataModule, PromptEncoder
from spec_harness.data.prompts import BUILTIN_PROMPTS, PromptRow, read_jsonl, rows_sha256, select_rows
from spec_harness.engine.native import EngineSettings, NgramSettings, build_scheduler
from spec_harness.engine.stopping import StopCriteria
from spec_harness.errors import UserError
from spec_harness.evaluation.module import Pass, SpecDecodeEvalModule
from spec_harness.evaluation.sections import BASELINE, SPECULATIVE
from spec_harness.models.configured import load_draft, load_model, load_tokenizer
from spec_harness.models.load import LoadedModel, effective_max_len, eos_token_ids, ignored_penalties, prepare
from spec_harness.requests import Request, RequestRecord
from spec_harness.settings import engine_settings

_WARM_UP_TOKENS = 8  # two or three rounds of each sequence


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One run, put together but not started."""

    target: LoadedModel
    draft: LoadedModel | None
    ngram: NgramSettings  # proposes where there is no draft model
    requests: list[Request]
    conversations: Conversations
    settings: EngineSettings
    passes: list[Pass]
    data: PromptDataModule
    notes: list[str]
    prompts_sha256: str

    @property
    def num_sequences(self) -> int:
        """Sequences asked for, later turns included; a conversation may end before its last turn."""
        later = sum(len(row.turns) - 1 for row in self.conversations.rows.values() if row.turns)
        return sum(request.num_samples for request in self.requests) + later

    def module(
        self,
        on_finished: Callable[[Pass, RequestRecord], None],
        on_step: Callable[[SpecDecodeEvalModule], None],
    ) -> SpecDecodeEvalModule:
        return SpecDecodeEvalModule(
            self.target,
            self.draft,
            self.passes,
            num_requests=self.num_sequences,
            warm_up=[_shortened(request) for request in self.requests[: self.settings.max_num_seqs]],
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
        num_samples=config.sampling.n,
        seed=config.sampling.seed,
        stop_token_ids=frozenset() if config.sampling.ignore_eos else eos_token_ids(model, tokenizer),
        max_model_len=effective_max_len(model, where="target", wanted=config.target.max_model_len),
    )
    requests = [_first_request(encoder, row, source) for row in rows]
    if config.sampling.n > 1 and any(row.turns is not None and len(row.turns) > 1 for row in rows):
        raise UserError(f"sampling.n must be 1 with prompts of several turns ({source}), not {config.sampling.n}")
    samples = [request.prompt_token_ids for request in requests]
    target = prepare(model, where="target", max_model_len=config.target.max_model_len, samples=samples)
    _check_tokens(target, requests)
    kind = config.proposal.kind
    draft = load_draft(config.draft, target, tokenizer, samples) if kind == "draft_model" else None
    ngram = NgramSettings(max_window=config.proposal.ngram_max, min_window=config.proposal.ngram_min)
    settings = engine_settings(config, [target] if draft is None else [target, draft], requests, rows)
    stop = StopCriteria(encoder.decode, tuple(config.sampling.stop))
    passes = [Pass(name=BASELINE, scheduler=partial(build_scheduler, target, None, settings, stop))]
    if kind != "none":
        engine = partial(build_scheduler, target, ngram if draft is None else draft, settings, stop)
        passes = [Pass(name=SPECULATIVE, scheduler=engine), *(passes if config.baseline == "measure" else [])]
    return Evaluation(
        target=target,
        draft=draft,
        ngram=ngram,
        requests=requests,
        conversations=Conversations(encoder, {row.id: row for row in rows}),
        settings=settings,
        passes=passes,
        data=PromptDataModule(requests, max_num_seqs=config.max_num_seqs, num_passes=len(passes)),
        notes=ignored_penalties(model),
        prompts_sha256=rows_sha256(rows),
    )


def _shortened(request: Request) -> Request:
    """The request as a warm-up: a few tokens of one sample."""
    tokens = min(_WARM_UP_TOKENS, request.sampling.max_new_tokens)
    return replace(request, num_samples=1, sampling=replace(request.sampling, max_new_tokens=tokens))


def _first_request(encoder: PromptEncoder, row: PromptRow, source: Path) -> Request:
    try:
        return encoder.first(row)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _check_tokens(target: LoadedModel, requests: list[Request]) -> None:
    """A tokenizer may know more tokens than its model."""
    num_tokens = int(target.model.config.get_text_config().vocab_size)
    for request in requests:
        largest = max(request.prompt_token_ids)
        if largest >= num_tokens:
            raise UserError(
                f"target: the model has {num_tokens} tokens, but its tokenizer gives prompt {request.request_id!r} "
                f"token {largest}; the two do not belong together"
            )


def _device(accelerator: str) -> torch.device:
    if accelerator == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("trainer=gpu: this machine has no CUDA device that torch can use; take trainer=cpu")
    return torch.device("cuda", torch.cuda.current_device())
