"""One generation token by token, on the colors of what became of the draft's tokens."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from spec_harness.errors import UserError
from spec_harness.report.formats import printable
from spec_harness.report.load import Run
from spec_harness.report.plots.style import WIDTH, new_figure
from spec_harness.report.token_view import BACKGROUND, Kind, token_kinds

COLUMNS = 76  # characters of a line
_MAX_LINES = 24
# Told apart in print as well: the colors differ little in gray.
UNDERLINED: dict[Kind, dict[str, Any]] = {
    "recovered": {"linewidth": 1.2},
    "bonus": {"linewidth": 1.2, "linestyle": ":"},
}
_LINE = 0.17  # inches
_FONT = WIDTH * 72 * 0.97 / COLUMNS / 0.602  # points: a character is 0.602 of them wide


def by_acceptance(run: Run) -> list[dict[str, Any]]:
    """The rows of requests.parquet in which anything was proposed, lowest acceptance rate first."""
    rows = run.requests.dropna(subset=["acceptance_rate"])
    ordered = rows.sort_values(["acceptance_rate", "request_id", "turn", "sample"])
    return [{str(key): value for key, value in row.items()} for row in ordered.to_dict("records")]


def generation_tokens(run: Run, request_id: str, turn: int, sample: int) -> tuple[dict[str, Any], list[Kind]]:
    """One row of generations.jsonl and the kind of each of its tokens."""
    key = (request_id, turn, sample)
    found = [row for row in run.generations() if (row["request_id"], row["turn"], row["sample"]) == key]
    if not found:
        raise UserError(f"{run.directory / 'generations.jsonl'}: request {request_id!r}, turn {turn}, is missing")
    generation = found[0]
    rounds = run.rounds
    own = rounds[(rounds.request_id == request_id) & (rounds.turn == turn) & (rounds["sample"] == sample)]
    figures = own.sort_values("round")[["proposal_len", "num_accepted", "num_emitted"]].to_numpy().tolist()
    return generation, token_kinds([(proposed, accepted, emitted) for proposed, accepted, emitted in figures])


def token_view(run: Run, request_id: str | None = None) -> Figure | None:
    """Of the named request, else of the one whose acceptance rate is the median. ``None`` for runs that kept no token
    texts, or proposed nothing."""
    chosen = [row for row in by_acceptance(run) if request_id in (None, row["request_id"])]
    texts = run.token_texts()
    if not chosen or texts is None:
        return None
    row = chosen[len(chosen) // 2]
    generation, kinds = generation_tokens(run, row["request_id"], row["turn"], row["sample"])
    tokens = [
        (texts.get(token, f"<{token}>"), kind) for token, kind in zip(generation["token_ids"], kinds, strict=False)
    ]
    lines = _wrapped(tokens)
    shown = lines[:_MAX_LINES]
    rate = sum(kind == "accepted" for _, kind in tokens) / len(tokens)
    cut = f" The first {_MAX_LINES} of {len(lines)} lines." if len(lines) > _MAX_LINES else ""
    note = (
        f"Request {row['request_id']}: {len(tokens)} tokens, {rate:.0%} of them from the draft.{cut} Recovered: in "
        "place of the first rejected draft token. Bonus: after a fully accepted proposal. Target: the rest."
    )
    figure, axes = new_figure(height=1.35 + _LINE * len(shown), note=note)
    for row_number, line in enumerate(shown):
        for column, text, kind in line:
            look: dict[str, Any] = {"facecolor": BACKGROUND[kind], "edgecolor": "white", "linewidth": 0.6}
            axes.add_patch(Rectangle((column, row_number), len(text), 1, **look))
            if kind in UNDERLINED:
                axes.plot([column, column + len(text)], [row_number + 0.94] * 2, color="#444444", **UNDERLINED[kind])
            place = (column, row_number + 0.5, printable(text, instead="\N{REPLACEMENT CHARACTER}"))
            axes.text(*place, family="DejaVu Sans Mono", fontsize=_FONT, va="center", parse_math=False)
    axes.set(xlim=(0, COLUMNS), ylim=(len(shown), 0), title="One output, token by token")
    axes.set_axis_off()
    handles = [
        Patch(facecolor=color, label=kind + {"recovered": " (underlined)", "bonus": " (dotted)"}.get(kind, ""))
        for kind, color in BACKGROUND.items()
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=4, handlelength=1.2)
    return figure


def _wrapped(tokens: Sequence[tuple[str, Kind]]) -> list[list[tuple[int, str, Kind]]]:
    """Lines of (column, text, kind): broken at line feeds, and inside a token where a line is full."""
    lines: list[list[tuple[int, str, Kind]]] = [[]]
    column = 0
    for text, kind in tokens:
        for i, part in enumerate(text.replace("\t", "    ").split("\n")):
            if i:
                lines[-1].append((min(column, COLUMNS - 1), "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", kind))
                lines.append([])
                column = 0
            while part:
                if column >= COLUMNS - 1:
                    lines.append([])
                    column = 0
                piece, part = part[: COLUMNS - 1 - column], part[COLUMNS - 1 - column :]
                lines[-1].append((column, piece, kind))
                column += len(piece)
    return [line for line in lines if line]
