"""The step-time micro-profile: what one draft step, one target step and one scoring pass take at the run's batch size.

Measured apart from the run, so that waiting for the device between stages does not slow what is being measured: warm,
device synchronized, medians. From these times and the run's acceptance follows the speed-up that the cost model
predicts (Leviathan et al., 2023, section 3.3, with scoring and host time of their own): a measured speed-up far from it
says that something else than acceptance and step times decides.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import torch

from spec_harness.engine.native import EngineSettings, NgramSettings, build_scheduler
from spec_harness.engine.scheduler import Scheduler
from spec_harness.engine.scorer import TargetScorer
from spec_harness.engine.stopping import StopCriteria
from spec_harness.kv_cache.block_manager import blocks_for
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.base import SpeculativeProposals
from spec_harness.proposers.draft_model import DraftModelTop1Proposer
from spec_harness.requests import Request, SamplingParams, SequenceMetadata

_WARM_UP, _REPEATS = 3, 15  # calls of each kind
# Engine steps. In a turn an engine finds the caches full of the other's weights, as it never does in a run: the first
# steps of a turn are not measured.
_TURNS, _SETTLE, _MEASURED = 3, 2, 5


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds, medians, for a batch of ``batch`` sequences of ``context_len`` tokens."""

    batch: int
    context_len: int
    target_step_s: float  # one step of the baseline's engine: a target forward, sampling, commit
    target_forward_s: float  # the target's forward in it
    draft_step_s: float  # one draft step without catch-up; for n-gram proposals, one token's share of the look-up
    score_s: list[float]  # [l]: scoring proposals of l tokens, l = 0 ... k
    # The rest of a speculative step: verification, commit, scheduling, and what draft steps and scoring take on top
    # when they follow each other (the draft's catch-up, caches full of the other model).
    host_s: float

    def predicted_speedup(self, tokens_per_target_pass: float, mean_proposal_len: float) -> float:
        """tokens_per_target_pass * t_target / (l * t_draft + t_score(l) + t_host), l the mean proposal length."""
        step = _passes_s(mean_proposal_len, self.draft_step_s, self.score_s) + self.host_s
        return tokens_per_target_pass * self.target_step_s / step

    @property
    def draft_cost_ratio(self) -> float:
        """Leviathan's c: one draft step / one target forward."""
        return self.draft_step_s / self.target_forward_s


def _passes_s(proposal_len: float, draft_step_s: float, score_s: Sequence[float]) -> float:
    """Seconds of the models' passes in a round; scoring lies on a line between two whole lengths."""
    low = min(int(proposal_len), len(score_s) - 1)
    high = min(low + 1, len(score_s) - 1)
    return proposal_len * draft_step_s + score_s[low] + (proposal_len - low) * (score_s[high] - score_s[low])


@torch.inference_mode()
def measure_steps(
    target: LoadedModel,
    draft: LoadedModel | NgramSettings,
    settings: EngineSettings,
    prompts: Sequence[Sequence[int]],
    *,
    batch: int,
) -> StepTimes | None:
    """Runs the baseline's engine and the speculative one on ``batch`` of the prompts, then single stages.

    ``None`` if a model's maximum length leaves no room for that.
    """
    steps = _TURNS * (_SETTLE + _MEASURED) + 1
    room = steps * (settings.max_proposal_len + 1) + 2  # tokens that the measured steps may emit
    models = [target, draft] if isinstance(draft, LoadedModel) else [target]
    limit = min(model.max_model_len for model in models) - room
    if limit < 1:
        return None
    chosen = [list(prompts[i % len(prompts)][:limit]) for i in range(batch)]
    longest = max(map(len, chosen)) + room
    roomy = replace(
        settings,
        num_blocks=batch * blocks_for(longest, settings.block_size),
        num_host_blocks=0,
        max_num_seqs=batch,
        disable_above_batch=None,
    )
    requests = [_request(i, prompt, room) for i, prompt in enumerate(chosen)]
    stop = StopCriteria(_no_text)
    baseline = build_scheduler(target, None, roomy, stop)
    speculative = build_scheduler(target, draft, roomy, stop)
    plain, drafting = _steps([baseline, speculative], requests)
    rows = [seq.metadata for seq in speculative.running]
    score = _score_times(speculative, rows, target.vocab_size)
    draft_step = _draft_step(speculative, rows, drafting)
    return StepTimes(
        batch=batch,
        context_len=sum(len(row.data) for row in rows) // max(1, len(rows)),
        target_step_s=plain.wall_s,
        target_forward_s=score[0],
        draft_step_s=draft_step,
        score_s=score,
        host_s=max(0.0, drafting.wall_s - _passes_s(drafting.proposal_len, draft_step, score)),
    )


@dataclass(frozen=True)
class _EngineStep:
    """Medians over the measured steps of an engine, and the mean length that it proposed in them."""

    wall_s: float
    propose_s: float
    proposal_len: float


def _no_text(token_ids: list[int]) -> str:
    return ""


def _request(index: int, prompt: list[int], max_new_tokens: int) -> Request:
    params = SamplingParams(max_new_tokens=max_new_tokens, seed=index)
    return Request(request_id=f"profile-{index}", prompt="", prompt_token_ids=prompt, sampling=params)


def _steps(engines: Sequence[Scheduler], requests: Sequence[Request]) -> list[_EngineStep]:
    """Every request runs in each engine. The engines take turns, so that a machine that gets slower or faster meanwhile
    does so for all of them."""
    for engine in engines:
        for request in requests:
            engine.add(request)
    measured: list[list[_EngineStep]] = [[] for _ in engines]
    for _ in range(_TURNS):
        for engine, steps in zip(engines, measured, strict=True):
            turn = [_step(engine) for _ in range(_SETTLE + _MEASURED)]
            steps += turn[_SETTLE:]
    return [
        _EngineStep(
            wall_s=median(step.wall_s for step in steps),
            propose_s=median(step.propose_s for step in steps),
            proposal_len=fmean(step.proposal_len for step in steps),
        )
        for steps in measured
    ]


def _step(engine: Scheduler) -> _EngineStep:
    timer, stats = engine.worker.timer, engine.stats
    proposing, drafted, rows = timer.seconds().get("propose", 0.0), stats.num_draft_tokens, stats.rows_run
    began = time.perf_counter()
    engine.step()
    wall = time.perf_counter() - began
    return _EngineStep(
        wall_s=wall,
        propose_s=timer.seconds().get("propose", 0.0) - proposing,
        proposal_len=(stats.num_draft_tokens - drafted) / max(1, stats.rows_run - rows),
    )


def _draft_step(engine: Scheduler, rows: Sequence[SequenceMetadata], step: _EngineStep) -> float:
    """One draft step, from multi-step calls that have nothing to catch up."""
    proposer = engine.worker.proposer
    k = engine.max_proposal_len
    if not isinstance(proposer, DraftModelTop1Proposer):
        return step.propose_s / max(1.0, step.proposal_len)
    worker, target = proposer.worker, engine.worker.target

    def call() -> None:
        for row in rows:
            worker.rewind(row.seq_id, len(row.data))
        worker.execute_model_multi_step(_with_room(engine, rows, k), k)

    def target_pass() -> None:
        """In a run the target's weights pass through the caches between two proposals."""
        for row in rows:
            target.rewind(row.seq_id, len(row.data))
        target.compute_logits(_with_room(engine, rows, 0))

    return _time(call, worker.runner.device, between=target_pass) / k


def _score_times(engine: Scheduler, rows: Sequence[SequenceMetadata], vocab_size: int) -> list[float]:
    """Seconds of a scoring forward by proposal length, 0 ... k."""
    target, k = engine.worker.target, engine.max_proposal_len
    scorer, device = TargetScorer(target), target.runner.device
    times = []
    for length in range(k + 1):
        last = [row.data.token_ids[-1:] * length for row in rows]
        ids = torch.tensor(last, dtype=torch.int64, device=device).view(len(rows), length)
        probs = torch.zeros(len(rows), length, vocab_size, device=device)
        proposals = SpeculativeProposals(ids, probs, torch.full((len(rows),), length))

        def call(proposals: SpeculativeProposals = proposals, length: int = length) -> None:
            for row in rows:
                target.rewind(row.seq_id, len(row.data))
            scorer.score(_with_room(engine, rows, length), proposals)

        times.append(_time(call, device))
    return times


def _with_room(engine: Scheduler, rows: Sequence[SequenceMetadata], length: int) -> list[SequenceMetadata]:
    ready = []
    for row in rows:
        engine.blocks.grow(row.seq_id, len(row.data) + length)
        ready.append(replace(row, block_table=engine.blocks.block_table(row.seq_id)))
    return ready


def _time(call: Callable[[], None], device: torch.device, *, between: Callable[[], None] | None = None) -> float:
    """Median seconds of ``call``, warm, the device idle before and after. ``between`` runs before each, untimed."""
    seconds = []
    for repeat in range(_WARM_UP + _REPEATS):
        if between is not None:
            between()
        _synchronize(device)
        began = time.perf_counter()
        call()
        _synchronize(device)
        if repeat >= _WARM_UP:
            seconds.append(time.perf_counter() - began)
    return median(seconds)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
