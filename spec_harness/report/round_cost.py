"""What a round costs, in the unit that counts: plain decoding's time for one token."""

from collections.abc import Mapping

from spec_harness.results.schema import RunResults, TimingResults

PROPOSING, SCORING, VERIFYING, HOST = "proposing", "scoring", "verifying", "host"
FAR_OFF = 1.25  # predicted / measured, or the inverse


def decoding_speedup(results: RunResults, speedup: float | None = None) -> float | None:
    """The speed-up of decoding alone. Both passes pay the same prefill: with the speculative run's wall time as unit,
    plain decoding takes ``speedup - prefill`` for the tokens of the rounds, the run itself ``1 - prefill``.

    ``speedup``: instead of the run's own. ``None`` where times, or plain decoding, were not measured.
    """
    timing = results.timing
    if timing is None or timing.time_share is None or results.proposal.num_drafts == 0:
        return None
    whole, prefill = speedup or timing.speedup.value, timing.time_share.prefill
    if whole is None or whole <= prefill or prefill >= 1:
        return None
    return (whole - prefill) / (1 - prefill)


def round_cost(results: RunResults, speedup: float | None = None) -> dict[str, float] | None:
    """A round's work by stage, in plain steps. Speculation pays if a round yields more tokens than its stages sum up
    to. Scoring contains the one pass of the target that a plain step consists of. Arguments and ``None`` as above."""
    decoding, timing = decoding_speedup(results, speedup), results.timing
    gain = results.proposal.tokens_per_target_pass.value
    if decoding is None or gain is None or timing is None or timing.time_share is None:
        return None
    share = timing.time_share
    scale = gain / decoding / (1 - share.prefill)
    return {
        PROPOSING: scale * share.propose,
        SCORING: scale * share.score,
        VERIFYING: scale * share.verify,
        HOST: scale * (share.commit + share.scheduler),
    }


def prediction_error(results: RunResults, speedup: float | None = None) -> float | None:
    """Predicted / measured speed-up of decoding. Beyond ``FAR_OFF`` something else than acceptance and step times
    decided. Arguments and ``None`` as above."""
    timing, decoding = results.timing, decoding_speedup(results, speedup)
    if timing is None or not timing.predicted_speedup or not decoding:
        return None
    return timing.predicted_speedup / decoding


def whole_prediction(timing: TimingResults) -> float | None:
    """The predicted speed-up with the run's share of prefill, to stand beside a measured one: the inverse of
    ``decoding_speedup``."""
    if timing.predicted_speedup is None or timing.time_share is None:
        return timing.predicted_speedup
    prefill = timing.time_share.prefill
    return prefill + (1 - prefill) * timing.predicted_speedup


def in_words(cost: Mapping[str, float]) -> str:
    return ", ".join(f"{spoken(stage)} {steps:.2f}" for stage, steps in cost.items())


def spoken(stage: str) -> str:
    return "the host" if stage == HOST else stage
