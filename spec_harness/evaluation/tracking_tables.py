"""What W&B shows as tables and charts: requests, the worst ones, their tokens in colors, time shares, positions.

All of it lies in files of the run: see ``FileTable``.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import wandb

from spec_harness.metrics.estimates import ratio_of_rounds
from spec_harness.report.token_view import legend_html, token_kinds, tokens_html
from spec_harness.requests import RequestRecord
from spec_harness.results.columns import request_row
from spec_harness.results.schema import RunResults

POSITION = "position/draft_token"  # the axis of the per-position lines: 1 is the first draft token of a proposal
MAX_REQUESTS = 100  # rows of the request table; requests.parquet has them all
WORST = 10
_COLUMNS = (
    "request_id",
    "turn",
    "sample",
    "category",
    "prompt",
    "text",
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


class FileTable(wandb.Table):
    """A table that is a file of the run. W&B's own also makes an artifact, whose record names its staged file by an
    absolute path: synced after the run's folder was moved, the table would be lost, and its panel with it."""

    _log_type = "table-file"  # W&B makes the artifact for its own class's type alone


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
        table = FileTable(columns=["stage", "share of wall time", "what it is"])
        for stage, value in share:
            table.add_data(stage, value, type(share).model_fields[stage].description)
        found["time_share"] = table
    if records:
        judged = [(rate, i) for i, record in enumerate(records) if (rate := _acceptance(record)) is not None]
        chosen = {"requests": records[:MAX_REQUESTS], "worst_requests": [records[i] for _, i in sorted(judged)[:WORST]]}
        for name, some in chosen.items():
            found[name] = _table(some)
            found[f"{name}_tokens"] = wandb.Html(_page(some, texts), inject=False)
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
    return ratio_of_rounds("acceptance_rate", record.rounds)


def _table(records: Sequence[RequestRecord]) -> wandb.Table:
    table = FileTable(columns=list(_COLUMNS), allow_mixed_types=True)
    for record in records:
        row = request_row(record) | {"prompt": record.prompt, "text": record.text}
        table.add_data(*(row[name] for name in _COLUMNS))
    return table


def _page(records: Sequence[RequestRecord], texts: Mapping[int, str]) -> str:
    """Each output with its tokens on the colors of what became of the draft's."""
    rows = []
    for record in records:
        kinds = token_kinds((round_.proposal_len, round_.num_accepted, round_.num_emitted) for round_ in record.rounds)
        rate = _acceptance(record)
        share = "nothing proposed" if rate is None else f"acceptance {rate:.0%}"
        title = escape(f"{record.request_id}, turn {record.turn}, sample {record.sample}: {share}")
        rows.append(f"<h4>{title}</h4>{tokens_html(record.token_ids, kinds, texts)}")
    return f'<div style="font-family:sans-serif">{legend_html()}{"".join(rows)}</div>'
