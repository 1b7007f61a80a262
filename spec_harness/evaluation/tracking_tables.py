"""What W&B shows as tables and charts: requests with their tokens colored, the worst ones, time shares, positions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import wandb

from spec_harness.evaluation.results import RunResults
from spec_harness.evaluation.run_files import request_row
from spec_harness.evaluation.token_view import token_kinds, tokens_html
from spec_harness.spec_decode.records import RequestRecord

POSITION = "position/draft_token"  # the axis of the per-position lines: 1 is the first draft token of a proposal
MAX_REQUESTS = 100  # rows of the request table: each carries a file of its own
WORST = 10
TOKENS = "tokens (green: accepted, orange: recovered, blue: bonus, gray: target alone)"
_TEXTS = ("request_id", "turn", "sample", "category")
_FIGURES = (
    "output_tokens",
    "rounds",
    "draft_tokens",
    "accepted_tokens",
    "acceptance_rate",
    "mean_acceptance_length",
    "time_to_first_token",
    "time_per_output_token",
    "preemptions",
    "stop_reason",
    "baseline_verdict",
)


def media(results: RunResults, records: Sequence[RequestRecord], texts: Mapping[int, str]) -> dict[str, Any]:
    """Histograms and tables by their W&B key, for one record. ``texts``: what each token id says."""
    found: dict[str, Any] = {}
    accepted = results.proposal.accepted_length_histogram
    if any(accepted):
        found["accepted_length_histogram"] = integer_histogram(accepted)
    proposed = np.bincount([round_.proposal_len for record in records for round_ in record.rounds])
    if len(proposed):
        found["proposal_len_histogram"] = integer_histogram(proposed.tolist())
    share = results.timing.time_share if results.timing else None
    if share is not None:
        rows = [[stage, value, type(share).model_fields[stage].description] for stage, value in share]
        found["time_share"] = wandb.Table(columns=["stage", "share of wall time", "what it is"], data=rows)
    if records:
        found["requests"] = _table(records[:MAX_REQUESTS], texts)
        judged = [(rate, i) for i, record in enumerate(records) if (rate := _acceptance(record)) is not None]
        found["worst_requests"] = _table([records[i] for _, i in sorted(judged)[:WORST]], texts)
    return found


def position_lines(results: RunResults) -> list[dict[str, float]]:
    """One record a position of the proposal, for line charts over ``POSITION``; unknown figures are left out."""
    p = results.proposal
    lines = []
    figures = {
        "acceptance_rate": p.acceptance_rate_per_position,
        "conditional_acceptance": p.conditional_acceptance_per_position,
    }
    for i in range(len(p.acceptance_rate_per_position)):
        line = {POSITION: float(i + 1)}
        for name, estimates in figures.items():
            low, high = estimates[i].ci95 or (None, None)
            values = {name: estimates[i].value, f"{name}_low": low, f"{name}_high": high}
            line |= {f"position/{key}": value for key, value in values.items() if value is not None}
        lines.append(line)
    return lines


def integer_histogram(counts: Sequence[int]) -> wandb.Histogram:
    """``counts[j]`` of the value j, in a bin of its own."""
    edges = np.arange(len(counts) + 1) - 0.5
    return wandb.Histogram(np_histogram=(np.array(counts), edges))


def _acceptance(record: RequestRecord) -> float | None:
    proposed = sum(round_.proposal_len for round_ in record.rounds)
    return sum(round_.num_accepted for round_ in record.rounds) / proposed if proposed else None


def _table(records: Sequence[RequestRecord], texts: Mapping[int, str]) -> wandb.Table:
    table = wandb.Table(columns=[*_TEXTS, "prompt", "text", TOKENS, *_FIGURES], allow_mixed_types=True)
    for record in records:
        row = request_row(record)
        kinds = token_kinds((round_.proposal_len, round_.num_accepted, round_.num_emitted) for round_ in record.rounds)
        colored = wandb.Html(tokens_html(record.token_ids, kinds, texts), inject=False)
        cells = [record.prompt, record.text, colored]
        table.add_data(*(row[name] for name in _TEXTS), *cells, *(row[name] for name in _FIGURES))
    return table
