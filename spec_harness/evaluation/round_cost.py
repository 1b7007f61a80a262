"""What a round costs, in the unit that counts: plain decoding's time for one token."""

from spec_harness.evaluation.results import RunResults

FAR_OFF = 1.25
PROPOSING, SCORING, VERIFYING, HOST = "proposing", "scoring", "verifying", "the host"


def round_cost(results: RunResults) -> dict[str, float] | None:
    """A round's work by stage, in plain steps. ``None`` where times, or plain decoding, were not measured.

    Speculation pays if a round yields more tokens than its stages sum up to. Both passes pay the same prefill, so it is
    left out: with the speculative run's wall time as unit, plain decoding takes ``speedup - prefill`` for the tokens of
    the rounds. Scoring contains the one pass of the target that a plain step consists of.
    """
    timing, gain = results.timing, results.proposal.tokens_per_target_pass.value
    if timing is None or timing.time_share is None or timing.speedup.value is None or gain is None:
        return None
    share, plain = timing.time_share, timing.speedup.value - timing.time_share.prefill
    if plain <= 0 or results.proposal.num_drafts == 0:
        return None
    scale = gain / plain
    return {
        PROPOSING: scale * share.propose,
        SCORING: scale * share.score,
        VERIFYING: scale * share.verify,
        HOST: scale * (share.commit + share.scheduler),
    }


def predicted_off(results: RunResults) -> float | None:
    """Predicted speed-up / measured one, where that is far from 1: something else than acceptance and step times
    decided."""
    timing = results.timing
    if timing is None or not timing.predicted_speedup or not timing.speedup.value:
        return None
    off = timing.predicted_speedup / timing.speedup.value
    return off if max(off, 1 / off) > FAR_OFF else None


def in_words(cost: dict[str, float]) -> str:
    return ", ".join(f"{name} {steps:.2f}" for name, steps in cost.items())
