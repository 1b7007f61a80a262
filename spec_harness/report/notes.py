"""What a colleague would say beside the figures: warnings where one is easily misread, each with the figure.

Pure: from finished results, and the records behind them, to sentences.
"""

from collections import Counter
from collections.abc import Sequence

from spec_harness.metrics.bootstrap import MIN_REQUESTS
from spec_harness.metrics.estimates import ratio_of_rounds
from spec_harness.report.comparable import drafts_for_itself, section
from spec_harness.report.formats import percent, plural
from spec_harness.report.round_cost import (
    FAR_OFF,
    SCORING,
    in_words,
    prediction_error,
    round_cost,
    spoken,
    whole_prediction,
)
from spec_harness.report.tables import SKIPPED
from spec_harness.requests import RequestRecord
from spec_harness.results.schema import RunResults

LOW_COVERAGE = 0.5
LOW_ACCEPTANCE, HIGH_ACCEPTANCE = 0.05, 0.98
NGRAM = 4  # tokens
LOOPING = 0.5  # share of an output's n-grams that occurred before in it, above which it loops
SHORTEST_LOOP = 4 * NGRAM  # tokens: shorter outputs are not judged
LOOPING_SHARE = 0.1  # of the outputs, from which on it is worth a note


def notes(results: RunResults, records: Sequence[RequestRecord]) -> list[str]:
    """Everything that a reader of these results should know, most important first."""
    found = [
        _failed_speedup(results),
        _coverage(results),
        _acceptance(results),
        _loops(records),
        _sampling(results),
        _requests(results),
        _prediction(results),
        _times(results),
    ]
    return [note for note in found if note is not None]


def _coverage(results: RunResults) -> str | None:
    p = results.proposal
    if p.num_drafts == 0 or p.coverage.value is None or p.coverage.value >= LOW_COVERAGE:
        return None
    reason, count = Counter(p.skipped).most_common(1)[0]
    return (
        f"Coverage is {percent(p.coverage.value)}: most rounds had no proposal ({count:,} of {p.num_rounds:,} "
        f"{SKIPPED[reason]}). Acceptance speaks of the other rounds only; tokens per target pass of all."
    )


def _acceptance(results: RunResults) -> str | None:
    p = results.proposal
    rate = p.acceptance_rate.value
    if rate is None:
        return None
    if drafts_for_itself(results):
        return (
            f"The target drafts for itself (acceptance {percent(rate)}): this checks the harness and says nothing "
            "about any draft model."
        )
    if rate < LOW_ACCEPTANCE:
        return (
            f"Acceptance is {percent(rate)}: draft and target hardly ever agree. Was the draft made for this target, "
            "and does it see the prompts in the format it was trained on?"
        )
    if rate > HIGH_ACCEPTANCE:
        return (
            f"Acceptance is {percent(rate)}, suspiciously near 1: is the draft the target itself, or are the outputs "
            "trivial to predict?"
        )
    return None


def repeated_share(token_ids: Sequence[int]) -> float:
    """Share of the n-grams of an output that occurred before in it: 0 where nothing repeats."""
    grams = [tuple(token_ids[i : i + NGRAM]) for i in range(len(token_ids) - NGRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _loops(records: Sequence[RequestRecord]) -> str | None:
    """A model that repeats itself is easy to predict, for the draft too."""
    if not any(round_.proposal_len for record in records for round_ in record.rounds):
        return None
    looping = [r for r in records if len(r.token_ids) >= SHORTEST_LOOP and repeated_share(r.token_ids) > LOOPING]
    if not looping or len(looping) < LOOPING_SHARE * len(records):
        return None
    chosen = {id(record) for record in looping}
    others = [record for record in records if id(record) not in chosen]
    pairs = ((_rate(looping), "in them"), (_rate(others), "in the others"))
    rates = [f"{percent(rate)} {where}" for rate, where in pairs if rate is not None]
    beside = f" Acceptance here: {', '.join(rates)}." if rates else ""
    return (
        f"{len(looping):,} of {len(records):,} outputs loop: more than half of their {NGRAM}-grams repeat earlier "
        f"ones. Loops are easy to predict, which inflates acceptance, and nobody will serve them.{beside}"
    )


def _rate(records: Sequence[RequestRecord]) -> float | None:
    return ratio_of_rounds("acceptance_rate", [round_ for record in records for round_ in record.rounds])


def _failed_speedup(results: RunResults) -> str | None:
    """Which term of a round's cost outweighs its tokens; of scoring only what goes beyond the one pass that plain
    decoding needs too is held against it."""
    timing, p = results.timing, results.proposal
    if timing is None or timing.time_share is None:
        return None
    speedup, gain, cost = timing.speedup, p.tokens_per_target_pass.value, round_cost(results)
    if speedup.value is None or gain is None or speedup.value >= 1:
        return None
    if speedup.ci95 is not None and speedup.ci95[1] >= 1:
        return None  # it is not known to be slower
    answer = f"Speculation does not pay here ({speedup.value:.2f}x): "
    if p.num_drafts == 0:
        return f"{answer}nothing was proposed, and asking for it cost time."
    if cost is None:
        return f"{answer}prefill takes {percent(timing.time_share.prefill)} of its time."
    extra = cost | {SCORING: cost[SCORING] - 1}
    worst = max(extra, key=lambda term: extra[term])
    return (
        f"{answer}a round yields {gain:.2f} tokens and takes the time of {sum(cost.values()):.2f} plain steps "
        f"({in_words(cost)}). Beyond the one pass of the target that plain decoding needs too, {spoken(worst)} costs "
        "most."
    )


def _sampling(results: RunResults) -> str | None:
    sampling, proposal = section(results, "sampling"), section(results, "proposal")
    if results.provenance.proposer.name != "draft_model" or proposal.get("draft_sampling", "same") == "same":
        return None
    target = _described(sampling.get("temperature"), sampling.get("top_k"), sampling.get("top_p"))
    draft = "greedily"
    if proposal["draft_sampling"] == "custom":
        draft = _described(*(proposal.get(f"draft_{name}") for name in ("temperature", "top_k", "top_p")))
    if draft == target:
        return None
    return (
        f"The draft draws {draft}, the target {target}: the output is still distributed as the target's, "
        "but acceptance is not what equal sampling would give."
    )


def _described(temperature: float | None, top_k: int | None, top_p: float | None) -> str:
    if not temperature:
        return "greedily"
    limits = [f"top-k {top_k}"] if top_k else []
    limits += [f"top-p {top_p:g}"] if top_p not in (None, 1.0) else []
    return f"at temperature {temperature:g}" + "".join(f", {limit}" for limit in limits)


def _requests(results: RunResults) -> str | None:
    n = results.proposal.num_requests
    if n >= MIN_REQUESTS:
        return None
    return f"Only {plural(n, 'request')}: no intervals, which need at least {MIN_REQUESTS}. The figures may be far off."


def _prediction(results: RunResults) -> str | None:
    """A measured speed-up far from the predicted one: something else than acceptance and step times decides."""
    timing, error = results.timing, prediction_error(results)
    if timing is None or error is None or max(error, 1 / error) <= FAR_OFF:
        return None
    whole = whole_prediction(timing)
    return (
        f"Acceptance and step times predict {timing.predicted_speedup:.2f}x for decoding alone, {whole:.2f}x with the "
        f"prefill that both sides pay, but {timing.speedup.value:.2f}x was measured. The prediction leaves out the "
        "ends of the run, where fewer sequences run; or the machine's speed changed between the two: repeat the run."
    )


def _times(results: RunResults) -> str | None:
    interval = results.timing.speculative_tokens_per_second.ci95 if results.timing else None
    if interval is None:
        return None
    return (
        "The intervals of times cover the choice of prompts, not the machine's own noise: repeat the run to see that. "
        "Acceptance travels between machines, speed does not."
    )
