"""The integrity gate: before anything is measured, the engine proves itself on the run's own models, dtype and prompts.

Speculative decoding hides its bugs: the output stays right while acceptance silently drops. So a few prompts are run
through the real engine (greedily, whatever the run's sampling) and things are asked of it that a broken one cannot
give.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

import torch

from spec_harness.engine import (
    CacheProbe,
    Engine,
    EngineSettings,
    ModelRole,
    SamplerSettings,
    SequenceState,
    StopCriteria,
    build_engine,
)
from spec_harness.kv_cache.block_manager import blocks_for
from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import dense_logits
from spec_harness.proposers.draft_model import DraftModel
from spec_harness.requests import Request, RequestRecord, SamplingParams
from spec_harness.results.schema import Check

# Largest difference of a cached key or value that rounding explains, as a share of its layer's largest. A slot that was
# not written, or holds another token's, differs by about 1.
_KV_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2.0**-3, torch.float16: 2.0**-5}


class IntegrityError(RuntimeError):
    """A check of the engine failed on the run's own models: its figures could not be trusted."""


@dataclass(frozen=True)
class GateSize:
    """How much the gate runs."""

    num_prompts: int
    longest_prompt: int  # tokens; longer ones are cut
    num_tokens: int  # new tokens of each


SIZES = {"quick": GateSize(2, 64, 12), "full": GateSize(8, 256, 32)}


@torch.inference_mode()
def run_gate(
    size: GateSize,
    target: LoadedModel,
    draft: LoadedModel | None,
    settings: EngineSettings,
    prompts: Sequence[Sequence[int]],
) -> list[Check]:
    """The checks with their figures. Nothing here uses a table, a position or a cache that the engine computed for
    itself where another way to it exists. Without a ``draft`` model the target is tried alone.

    If the KV caches are not what they should be, the engine is stopped there, and what it says is not judged.
    """
    requests = _requests(size, [target] if draft is None else [target, draft], prompts)
    if not requests:
        return []
    watch = _Watch()
    records = watch.run(_engine(target, draft, settings, requests), requests)
    # A draft may never be accepted in full, which leaves more to catch up than a rejection: the target's own is.
    own = [] if draft is None else watch.run(_engine(target, target, settings, requests), requests, own_draft=True)
    checks = watch.checks({"target": target} | ({} if draft is None else {"draft": draft}))
    if watch.broken:
        return checks
    lost = max(_margin_lost(target, target, r.prompt_token_ids, r.token_ids) for r in records)
    checks.append(_check("greedy output against dense logits (margin lost)", lost, target.check.tie_tolerance))
    if draft is not None:
        drafted = max((_margin_lost_by_draft(draft, target, record) for record in records), default=0.0)
        rejected = max((_largest_rejected_margin(target, record) for record in own), default=0.0)
        checks += [
            _check("proposals against the draft's dense logits (margin lost)", drafted, draft.check.tie_tolerance),
            _check("target as its own draft (largest margin of a rejection)", rejected, target.check.tie_tolerance),
        ]
    return checks


def require(checks: Sequence[Check]) -> None:
    """Raises ``IntegrityError`` that names the failed checks and their figures."""
    failed = [f"{c.name}: {c.figure:.3g}, allowed {c.tolerance:.3g}" for c in checks if c.verdict == "fail"]
    if failed:
        raise IntegrityError("; ".join(failed))


def _check(name: str, figure: float | None, tolerance: float) -> Check:
    """``None``: there was nothing to measure."""
    if figure is None:
        return Check(name=name, figure=None, tolerance=tolerance, verdict="skipped")
    return Check(name=name, figure=figure, tolerance=tolerance, verdict="pass" if figure <= tolerance else "fail")


def _requests(size: GateSize, models: Sequence[LoadedModel], prompts: Sequence[Sequence[int]]) -> list[Request]:
    """Prompts are cut so that the whole output fits every model where it can: a draft past its maximum proves
    nothing."""
    room = min(model.max_model_len for model in models) - 1
    longest = max(1, min(size.longest_prompt, room - min(size.num_tokens, room // 2)))
    params = SamplingParams(max_new_tokens=size.num_tokens)
    return [
        Request(request_id=f"gate-{index}", prompt="", prompt_token_ids=list(prompt[:longest]), sampling=params)
        for index, prompt in enumerate(prompts[: size.num_prompts])
    ]


def _engine(
    target: LoadedModel, draft: LoadedModel | None, settings: EngineSettings, requests: Sequence[Request]
) -> Engine:
    """The run's engine in small: greedy, with room for all the gate's requests and not more."""
    longest = max(len(r.prompt_token_ids) + r.sampling.max_new_tokens for r in requests)
    small = replace(
        settings,
        num_blocks=len(requests) * blocks_for(longest, settings.block_size),
        num_host_blocks=0,
        max_num_seqs=len(requests),
        max_proposal_len=max(1, settings.max_proposal_len),
        min_draft_prob=0.0,
        disable_above_batch=None,
        target_sampling=SamplerSettings(),
        draft_sampling=SamplerSettings(),
    )
    proposer = None if draft is None else DraftModel(model=draft, label="draft")
    return build_engine(target, proposer, small, StopCriteria(lambda token_ids: ""))


class _Watch:
    """Runs engines and looks into the caches that they show, after every step; figures by the role of the model."""

    def __init__(self) -> None:
        self._kv_error: dict[str, float] = {}
        self._deviation: dict[str, float] = {}

    @property
    def broken(self) -> bool:
        """An engine whose bookkeeping is wrong may not be able to go on."""
        return any(self._deviation.values())

    def run(self, engine: Engine, requests: Sequence[Request], *, own_draft: bool = False) -> list[RequestRecord]:
        """The records of the finished requests: all of them, unless something is ``broken``."""
        for request in requests:
            engine.add(request)
        records: list[RequestRecord] = []
        while engine.num_unfinished and not self.broken:
            records += engine.step()
            if engine.capabilities.cache is not None:
                self._look(engine.capabilities.cache, "target" if own_draft else "draft")
        return records

    def _look(self, cache: CacheProbe, drafting: ModelRole) -> None:
        for seq in cache.sequences():
            self._compare(cache, "target", "target", seq, len(seq.token_ids) - 1)
            last = seq.last_round
            if last is not None and last.proposal_len:
                # Fed up to the last token but one of the proposal; of that, what was accepted counts.
                computed = last.context_len + min(last.proposal_len - 1, last.num_accepted)
                self._compare(cache, "draft", drafting, seq, computed)

    def _compare(self, cache: CacheProbe, role: ModelRole, named: ModelRole, seq: SequenceState, computed: int) -> None:
        reading = cache.read(role, seq.seq_id, seq.token_ids[:computed])
        if reading is None:
            return
        deviation = float(abs(reading.num_computed_tokens - computed))
        self._deviation[named] = max(self._deviation.get(named, 0.0), deviation)
        self._kv_error[named] = max(self._kv_error.get(named, 0.0), reading.error if isfinite(reading.error) else inf)

    def checks(self, models: Mapping[str, LoadedModel]) -> list[Check]:
        return [
            check
            for role, model in models.items()
            for check in (
                _check(
                    f"{role}: KV cache against a fresh prefill (share of the largest value)",
                    self._kv_error.get(role),
                    _KV_TOLERANCE[model.dtype],
                ),
                _check(f"{role}: tokens in the KV cache after a round (deviation)", self._deviation.get(role), 0.0),
            )
        ]


def _margin_lost(model: LoadedModel, target: LoadedModel, context: list[int], chosen: list[int]) -> float:
    """How far the logit of a token ``chosen`` after ``context`` lies below the best one, at worst, by the dense
    ``model`` given the tokens before it. Within the tie tolerance it was the greedy choice."""
    known = [min(token, model.vocab_size - 1) for token in context + chosen]  # what a model lacks, see ModelRunner
    logits = dense_logits(model.model, known)[len(context) - 1 : -1, : target.vocab_size].float()
    taken = logits.gather(-1, torch.tensor(chosen, device=logits.device)[:, None]).squeeze(-1)
    return float((logits.max(-1).values - taken).max())


def _margin_lost_by_draft(draft: LoadedModel, target: LoadedModel, record: RequestRecord) -> float:
    text = record.prompt_token_ids + record.token_ids
    proposals = ((text[: row.context_len], row.draft_token_ids) for row in record.rounds if row.proposal_len)
    return max((_margin_lost(draft, target, context, drafted) for context, drafted in proposals), default=0.0)


def _largest_rejected_margin(target: LoadedModel, record: RequestRecord) -> float:
    """With the target as its own draft only ties may be rejected: the largest margin by which one was not a tie."""
    worst = 0.0
    for row in record.rounds:
        if row.num_accepted == row.proposal_len:
            continue
        context = (record.prompt_token_ids + record.token_ids)[: row.context_len + row.num_accepted]
        logits = dense_logits(target.model, context)[-1].float()
        worst = max(worst, float(logits.max() - logits[row.draft_token_ids[row.num_accepted]]))
    return worst
