"""The integrity gate: before anything is measured, the engine proves itself on the run's own models, dtype and prompts.

Speculative decoding hides its bugs: the output stays right while acceptance silently drops. So a few prompts are run
through the real engine (greedily, whatever the run's sampling) and four things are asked of it that a broken one cannot
give.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from spec_harness.evaluation.results import Check
from spec_harness.kv_cache.block_manager import blocks_for
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.sequence import SamplingParams
from spec_harness.spec_decode.draft_model_proposer import DraftModelTop1Proposer
from spec_harness.spec_decode.engine import EngineSettings, SamplerSettings, build_scheduler
from spec_harness.spec_decode.records import RequestRecord
from spec_harness.spec_decode.running import Request, RunningSequence
from spec_harness.spec_decode.scheduler import Scheduler
from spec_harness.spec_decode.stopping import StopCriteria
from spec_harness.worker.model_loader import LoadedModel
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from spec_harness.worker.paged_check import dense_logits
from spec_harness.worker.worker import Worker

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
    itself where another way to it exists."""
    requests = _requests(size, target, prompts)
    if not requests:
        return []
    watched = _Watch(_engine(target, draft, settings, requests))
    records = watched.run(requests)
    outside = max(_largest_deficit(target, record) for record in records)
    checks = [
        _check(
            "KV cache against a fresh prefill (share of the largest value)", watched.kv_error, _kv_tolerance(target)
        ),
        _check("tokens computed in each KV cache after a round (deviation)", watched.bookkeeping_error, 0.0),
        _check("greedy output against dense logits (margin lost)", outside, target.check.tie_tolerance),
    ]
    if draft is not None:
        own = _Watch(_engine(target, target, settings, requests)).run(requests)
        rejections = max((_largest_rejected_margin(target, record) for record in own), default=0.0)
        checks.append(
            _check("target as its own draft (largest margin of a rejection)", rejections, target.check.tie_tolerance)
        )
    return checks


def require(checks: Sequence[Check]) -> None:
    """Raises ``IntegrityError`` that names the failed checks and their figures."""
    failed = [c for c in checks if c.verdict == "fail"]
    if failed:
        raise IntegrityError("; ".join(f"{c.name}: {c.figure:.3g}, allowed {c.tolerance:.3g}" for c in failed))


def _check(name: str, figure: float, tolerance: float) -> Check:
    return Check(name=name, figure=figure, tolerance=tolerance, verdict="pass" if figure <= tolerance else "fail")


def _kv_tolerance(model: LoadedModel) -> float:
    return _KV_TOLERANCE[model.dtype]


def _requests(size: GateSize, target: LoadedModel, prompts: Sequence[Sequence[int]]) -> list[Request]:
    requests = []
    for index, prompt in enumerate(prompts[: size.num_prompts]):
        kept = list(prompt[: min(size.longest_prompt, target.max_model_len - 2)])
        params = SamplingParams(max_new_tokens=size.num_tokens)
        requests.append(Request(request_id=f"gate-{index}", prompt="", prompt_token_ids=kept, sampling=params))
    return requests


def _engine(
    target: LoadedModel, draft: LoadedModel | None, settings: EngineSettings, requests: Sequence[Request]
) -> Scheduler:
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
    return build_scheduler(target, draft, small, StopCriteria(lambda token_ids: ""))


class _Watch:
    """Runs an engine and looks into its caches after every step."""

    def __init__(self, engine: Scheduler) -> None:
        self._engine = engine
        self.kv_error = 0.0
        self.bookkeeping_error = 0.0

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        for request in requests:
            self._engine.add(request)
        records: list[RequestRecord] = []
        while self._engine.num_unfinished:
            records += self._engine.step()
            for seq in self._engine.running:
                self._look(seq)
        return records

    def _look(self, seq: RunningSequence) -> None:
        proposer, target = self._engine.worker.proposer, self._engine.worker.target
        table = self._engine.blocks.block_table(seq.seq_id)
        expected = {target: len(seq.data) - 1}
        if isinstance(proposer, DraftModelTop1Proposer) and seq.rounds and seq.rounds[-1].proposal_len:
            last = seq.rounds[-1]
            # Fed up to the last token but one of the proposal; of that, what was accepted counts.
            expected[proposer.worker] = last.context_len + min(last.proposal_len - 1, last.num_accepted)
        for worker, count in expected.items():
            self.bookkeeping_error = max(self.bookkeeping_error, abs(worker.num_computed(seq.seq_id) - count))
            self.kv_error = max(self.kv_error, _kv_error(worker, seq.data.token_ids[:count], table))


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


def _largest_deficit(target: LoadedModel, record: RequestRecord) -> float:
    """How far an emitted token's logit lies below the best one, at worst, by the dense model given the tokens before
    it.

    If it is within the tie tolerance everywhere, the output is the greedy one up to ties.
    """
    logits = dense_logits(target.model, record.prompt_token_ids + record.token_ids)
    logits = logits[len(record.prompt_token_ids) - 1 : -1].float()
    chosen = logits.gather(-1, torch.tensor(record.token_ids, device=logits.device)[:, None]).squeeze(-1)
    return float((logits.max(-1).values - chosen).max())


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
