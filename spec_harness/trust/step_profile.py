"""The step-time micro-profile: what one draft step, one target step and one scoring pass take at the run's batch size.

Measured apart from the run, so that waiting for the device between stages does not slow what is being measured: warm,
device synchronized, medians. From these times and the run's acceptance follows the speed-up that the cost model
predicts (Leviathan et al., 2023, section 3.3, with scoring and host time of their own): a measured speed-up far from it
says that something else than acceptance and step times decides.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median

import torch

from spec_harness.engine import (
    Engine,
    EngineSettings,
    SamplerSettings,
    StageProbe,
    StopCriteria,
    build_engine,
)
from spec_harness.kv_cache.block_manager import blocks_for
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.base import ProposerSpec
from spec_harness.requests import Request, SamplingParams
from spec_harness.results.schema import StepTimeResults

WARM_UP, REPEATS = 3, 15  # calls of each kind
# Engine steps. In a turn an engine finds the caches full of the other's weights, as it never does in a run: the first
# steps of a turn are not measured.
TURNS, SETTLE, MEASURED = 3, 2, 5


def draft_cost_ratio(times: StepTimeResults) -> float:
    """Leviathan's c: one draft step / one target forward."""
    return times.draft_step_s / times.target_forward_s


def predicted_speedup(times: StepTimeResults, tokens_per_target_pass: float, mean_proposal_len: float) -> float:
    """tokens_per_target_pass * t_target / (l * t_draft + t_score(l) + t_host), l the mean proposal length."""
    step = _passes_s(mean_proposal_len, times.draft_step_s, times.score_s) + times.host_s
    return tokens_per_target_pass * times.target_step_s / step


def _passes_s(proposal_len: float, draft_step_s: float, score_s: Sequence[float]) -> float:
    """Seconds of the models' passes in a round; scoring lies on a line between two whole lengths."""
    low = min(int(proposal_len), len(score_s) - 1)
    high = min(low + 1, len(score_s) - 1)
    return proposal_len * draft_step_s + score_s[low] + (proposal_len - low) * (score_s[high] - score_s[low])


@torch.inference_mode()
def measure_steps(
    target: LoadedModel,
    proposer: ProposerSpec,
    settings: EngineSettings,
    prompts: Sequence[Sequence[int]],
    *,
    batch: int,
) -> StepTimeResults | None:
    """Runs the baseline's engine and the speculative one on ``batch`` of the prompts, then single stages.

    ``None`` if a model's maximum length leaves no room for that, or an engine times no stages.
    """
    steps = TURNS * (SETTLE + MEASURED) + 1
    room = steps * (settings.max_proposal_len + 1) + 2  # tokens that the measured steps may emit
    limit = min(model.max_model_len for model in (target, *proposer.kv_models)) - room
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
    requests = [_request(i, prompt, room, settings.target_sampling) for i, prompt in enumerate(chosen)]
    stop = StopCriteria(_no_text)
    baseline = build_engine(target, None, roomy, stop)
    speculative = build_engine(target, proposer, roomy, stop)
    stages = speculative.capabilities.stages
    if stages is None:
        return None
    plain, drafting = _steps([baseline, speculative], requests)
    score = [
        _median([stages.score_s(length) for _ in range(WARM_UP + REPEATS)])
        for length in range(settings.max_proposal_len + 1)
    ]
    draft_step = _draft_step(stages, settings.max_proposal_len, drafting)
    lens = stages.context_lens()
    return StepTimeResults(
        batch=batch,
        context_len=sum(lens) // max(1, len(lens)),
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


def _request(index: int, prompt: list[int], max_new_tokens: int, sampling: SamplerSettings) -> Request:
    params = SamplingParams(max_new_tokens=max_new_tokens, seed=index, **asdict(sampling))
    return Request(request_id=f"profile-{index}", prompt="", prompt_token_ids=prompt, sampling=params)


def _steps(engines: Sequence[Engine], requests: Sequence[Request]) -> list[_EngineStep]:
    """Every request runs in each engine. The engines take turns, so that a machine that gets slower or faster meanwhile
    does so for all of them."""
    for engine in engines:
        for request in requests:
            engine.add(request)
    measured: list[list[_EngineStep]] = [[] for _ in engines]
    for _ in range(TURNS):
        for engine, steps in zip(engines, measured, strict=True):
            turn = [_step(engine) for _ in range(SETTLE + MEASURED)]
            steps += turn[SETTLE:]
    return [
        _EngineStep(
            wall_s=median(step.wall_s for step in steps),
            propose_s=median(step.propose_s for step in steps),
            proposal_len=fmean(step.proposal_len for step in steps),
        )
        for steps in measured
    ]


def _step(engine: Engine) -> _EngineStep:
    before, proposing = replace(engine.stats), _proposing_s(engine)
    began = time.perf_counter()
    engine.step()
    wall = time.perf_counter() - began
    stats = engine.stats
    return _EngineStep(
        wall_s=wall,
        propose_s=_proposing_s(engine) - proposing,
        proposal_len=(stats.num_draft_tokens - before.num_draft_tokens) / max(1, stats.rows_run - before.rows_run),
    )


def _proposing_s(engine: Engine) -> float:
    stages = engine.capabilities.stages
    return 0.0 if stages is None else stages.stage_s().get("propose", 0.0)


def _draft_step(stages: StageProbe, k: int, step: _EngineStep) -> float:
    """One draft step; in a run the target's weights pass through the caches between two proposals. Of what no model
    drafts, one token's share of the time."""
    seconds: list[float] = []
    for _ in range(WARM_UP + REPEATS):
        stages.score_s(0)
        drafting = stages.draft_s(k)
        if drafting is None:
            return step.propose_s / max(1.0, step.proposal_len)
        seconds.append(drafting)
    return _median(seconds)


def _median(seconds: Sequence[float]) -> float:
    """Of the calls after the first ones, which warm up."""
    return median(seconds[WARM_UP:])
