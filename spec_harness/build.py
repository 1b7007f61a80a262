"""The composition root: from a checked configuration to the objects of one run. The only place that knows them all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch

from spec_harness.config import EvalConfig
from spec_harness.data.conversations import Conversations
from spec_harness.data.encoder import PromptEncoder
from spec_harness.data.prompts import BUILTIN_PROMPTS, PromptRow, read_jsonl, rows_sha256, select_rows
from spec_harness.engine import EngineSettings, StopCriteria, build_engine, bytes_per_block
from spec_harness.errors import UserError
from spec_harness.evaluation.checks import NativeChecks
from spec_harness.evaluation.datamodule import PromptDataModule
from spec_harness.evaluation.engine_run import EngineRun
from spec_harness.evaluation.module import SpecDecodeEvalModule
from spec_harness.evaluation.provenance import model_identity, provenance
from spec_harness.models.configured import GivenModel, load_draft, load_model, load_tokenizer, model_name
from spec_harness.models.load import LoadedModel, effective_max_len, eos_token_ids, ignored_penalties, prepare
from spec_harness.proposers.base import ProposerSpec
from spec_harness.proposers.custom import custom_proposer
from spec_harness.proposers.draft_model import DraftModel
from spec_harness.proposers.ngram import NgramLookup
from spec_harness.proposers.none import NoProposals
from spec_harness.requests import Request
from spec_harness.results.round_log import RunHeader
from spec_harness.results.schema import KVResults, ProposerIdentity
from spec_harness.results.timing import BASELINE, SPECULATIVE
from spec_harness.settings import engine_settings

_WARM_UP_TOKENS = 8  # two or three rounds of each sequence


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One run, put together but not started."""

    target: LoadedModel
    draft: LoadedModel | None
    requests: list[Request]
    settings: EngineSettings
    runs: list[EngineRun]
    data: PromptDataModule
    header: RunHeader
    encoder: PromptEncoder
    module: SpecDecodeEvalModule


def build(
    config: EvalConfig, given: Mapping[str, GivenModel] = MappingProxyType({}), rows: Sequence[PromptRow] | None = None
) -> Evaluation:
    """Loads, checks and connects everything; allocates no KV cache. Raises ``UserError``.

    ``given`` are models in memory, by ``target`` and ``draft``; ``rows`` replace those of ``config.data``.
    """
    started_at = datetime.now(UTC)
    device = _device(config.trainer.accelerator)
    source = BUILTIN_PROMPTS if config.data.path is None else Path(config.data.path)
    all_rows = read_jsonl(source) if rows is None else rows
    rows = select_rows(all_rows, limit=config.data.limit, category=config.data.category)
    ours, theirs = given.get("target"), given.get("draft")
    tokenizer = (ours and ours.tokenizer) or load_tokenizer(config.target)
    model = ours.model if ours else load_model(config.target, device)
    encoder = PromptEncoder(
        tokenizer=tokenizer,
        chat_template="off" if config.data.chat_template == "off" else "auto",
        max_new_tokens=config.sampling.max_new_tokens,
        temperature=config.sampling.temperature,
        top_k=config.sampling.top_k or 0,
        top_p=config.sampling.top_p,
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
    draft = load_draft(config.draft, target, tokenizer, samples, theirs) if kind == "draft_model" else None
    proposer = _proposer(config, draft)
    settings = engine_settings(config, [target, *proposer.kv_models], requests, rows)
    stop = StopCriteria(encoder.decode, tuple(config.sampling.stop))
    runs = [EngineRun(name=BASELINE, make_engine=partial(build_engine, target, None, settings, stop))]
    if kind != "none":
        speculative = partial(build_engine, target, proposer, settings, stop)
        runs = [
            EngineRun(name=SPECULATIVE, make_engine=speculative),
            *(runs if config.baseline == "measure" else []),
        ]
    later_turns = sum(len(row.turns) - 1 for row in rows if row.turns)
    header = RunHeader(
        config=config.model_dump(),
        provenance=provenance(
            target=model_identity(target, name=model_name(config.target), revision=config.target.revision),
            draft=None
            if draft is None
            else model_identity(draft, name=model_name(config.draft), revision=config.draft.revision),
            proposer=ProposerIdentity(name=proposer.name, label=proposer.label),
            device=target.model.device,
            seeds={"seed": config.seed, "sampling.seed": config.sampling.seed},
            prompts_sha256=rows_sha256(rows),
            started_at=started_at,
        ),
        integrity=config.integrity,
        max_proposal_len=settings.max_proposal_len,
        kv=_kv_sizes(settings, target, draft),
        runs=[run.name for run in runs],
        num_sequences=sum(request.num_samples for request in requests) + later_turns,
        notes=ignored_penalties(model),
    )
    checks = NativeChecks(
        target=target, draft=draft, proposer=proposer, settings=settings, prompts=samples, level=config.integrity
    )
    module = SpecDecodeEvalModule(
        runs,
        header=header,
        requests=requests,
        warm_up=[_shortened(request) for request in requests[: settings.max_num_seqs]],
        conversations=Conversations(encoder, {row.id: row for row in rows}),
        checks=checks,
    )
    return Evaluation(
        target=target,
        draft=draft,
        requests=requests,
        settings=settings,
        runs=runs,
        data=PromptDataModule(requests, max_num_seqs=config.max_num_seqs, num_passes=len(runs)),
        header=header,
        encoder=encoder,
        module=module,
    )


def _kv_sizes(settings: EngineSettings, target: LoadedModel, draft: LoadedModel | None) -> KVResults:
    return KVResults(
        block_size=settings.block_size,
        num_blocks=settings.num_blocks,
        bytes_per_block_target=bytes_per_block([target], settings.block_size),
        bytes_per_block_draft=None if draft is None else bytes_per_block([draft], settings.block_size),
    )


def _proposer(config: EvalConfig, draft: LoadedModel | None) -> ProposerSpec:
    if draft is not None:
        return DraftModel(model=draft, label=model_name(config.draft))
    if config.proposal.target_ is not None:
        return custom_proposer(config.proposal.target_, config.proposal.args)
    if config.proposal.kind == "ngram":
        return NgramLookup(max_window=config.proposal.ngram_max, min_window=config.proposal.ngram_min)
    return NoProposals()


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
