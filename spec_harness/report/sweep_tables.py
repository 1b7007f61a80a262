"""What a sweep's table says to a reader: its jobs best first, what their rounds cost, and those without results.

Runs that answer different questions stand in the order of their names: no table can rank them.
"""

from collections.abc import Sequence

from spec_harness.report.formats import factor, number, percent, rate, together
from spec_harness.report.headline import conditions
from spec_harness.report.sweep import LENGTH, Row, Sweep, cost, estimate
from spec_harness.report.table import Line, Table

_SHOWN = 4  # keys that tell runs apart
_DOUBT = "?"


def sweep_headline(sweep: Sweep, *, name: str) -> list[Line]:
    """How many jobs, on what, and whether they can be ranked at all."""
    done, total, obstacles = len(sweep.runs), len(sweep.all_jobs), sweep.incomparable_keys
    lines = [Line(f"{name}: {total} job{'' if total == 1 else 's'}, {done} with results")]
    if obstacles:
        shown = ", ".join(obstacles[:_SHOWN]) + ", ..." * (len(obstacles) > _SHOWN)
        lines.append(Line(f"Not ranked: these runs answer different questions, they differ in {shown}.", "caution"))
    elif done:
        swept = {key.split(".")[0] for key in sweep.varied}
        lines.append(Line(conditions(sweep.runs[0].results, leave_out=swept)))
    if sweep.interrupted:
        lines.append(Line(f"{len(sweep.interrupted)} interrupted: figures of finished requests only.", "alarm"))
    if sweep.failures:
        lines.append(Line(f"{len(sweep.failures)} without results, see below.", "alarm"))
    return lines


def sweep_tables(sweep: Sweep) -> list[Table]:
    rows = sweep.ranked
    if not sweep.incomparable_keys:  # fastest first
        rows = sorted(rows, key=lambda row: -(row["tokens_per_second"] or 0.0))
    rows += sweep.interrupted
    tables = [_figures(rows, sweep)] if rows else []
    costly = [row for row in sweep.ranked if cost(row)]
    tables += [_costs(costly)] if costly else []
    failed = [
        (row["job"], row["settings"], row["state"], row["error"] or "")
        for job, row in zip(sweep.all_jobs, sweep.rows, strict=True)
        if job.results is None
    ]
    return tables + ([Table(title="No results", columns=("settings", "", "why"), rows=failed)] if failed else [])


def _figures(rows: Sequence[Row], sweep: Sweep) -> Table:
    """Columns that say the same of all jobs go below the table."""
    columns: dict[str, list[str]] = {"settings": [row["settings"] for row in rows]}
    if any(row["pooled_speedup"] is not None for row in rows):
        columns["speed-up"] = [
            together(*number(estimate(row, "pooled_speedup"), unit="x")) + _DOUBT * row["disagrees_with_prediction"]
            for row in rows
        ]
    columns["tokens/s"] = [number(estimate(row, "tokens_per_second"), digits=0)[0] for row in rows]
    columns["acceptance rate"] = [together(*rate(estimate(row, "acceptance_rate"))) for row in rows]
    columns["coverage"] = [percent(row["coverage"]) for row in rows]
    columns["per pass"] = [number(estimate(row, "tokens_per_target_pass"))[0] for row in rows]
    if any(key.startswith("kv_cache.") for key in sweep.varied):
        columns["room"] = [f"{row.get('num_blocks', 0) * row.get('block_size', 0):,} tokens" for row in rows]
    if any(row.get("preemptions") for row in rows):
        columns["preempted"] = [f"{row['preemptions']:,}" if "preemptions" in row else "n/a" for row in rows]
    same = [name for name, cells in columns.items() if name != "settings" and len(rows) > 1 and len(set(cells)) == 1]
    shared = [f"{name} {columns.pop(name)[0]}" for name in same]
    marks = ["" if row["state"] in ("done", "unknown") else f" ({row['state']})" for row in rows]
    names = [row["job"] + mark for row, mark in zip(rows, marks, strict=True)]
    over = "plain decoding in the same run" if sweep.pooled is None else "plain decoding's median over the jobs"
    doubted = any(cell.endswith(_DOUBT) for cell in columns.get("speed-up", []))
    legend = {
        "speed-up": f"over {over}" + "; ?: other than acceptance and step times predict, so repeat it" * doubted,
        "per pass": "tokens a pass of the target",
        "room": "tokens that the pool holds",
        "preempted": "times a sequence gave its blocks back",
    }
    hints = [f"the same in all: {', '.join(shared)}"] if shared else []
    hints += ["k: max_proposal_len"] if LENGTH in sweep.varied else []
    return Table(
        title="Job",
        columns=tuple(columns),
        rows=list(zip(names, *columns.values(), strict=True)),
        hint="; ".join([*hints, "in brackets: 95 % intervals"]),
        legend=legend,
        dispensable=("per pass", "tokens/s", "room", "preempted"),  # the first two are also in the table below
    )


def _costs(rows: Sequence[Row]) -> Table:
    """What a round yields and costs, and what that makes of decoding alone; in the order of the jobs."""
    cells = []
    for row in rows:
        proposing, scoring, *rest = cost(row).values()
        steps = (proposing, scoring, sum(rest), proposing + scoring + sum(rest))
        cells.append(
            (
                row["settings"] or row["job"],
                number(estimate(row, "tokens_per_target_pass"))[0],
                *(f"{own:.2f}" for own in steps),
                factor(row["decoding_speedup"]),
                factor(row.get("predicted_speedup")),
            )
        )
    hint = (
        "times in plain steps (plain decoding's time for a token); decoding: tokens / all, the speed-up without the "
        "prefill that both pay; predicted: the same from acceptance and single step times"
    )
    columns = ("tokens", "proposing", "scoring", "rest", "all", "decoding", "predicted")
    return Table(title="A round", columns=columns, rows=cells, hint=hint)
