"""Two runs on the same prompts: is the difference between them real, or the choice of prompts?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from spec_harness.errors import UserError
from spec_harness.metrics.bootstrap import Bootstrap, Floats, Interval
from spec_harness.metrics.counts import ProposalCounts
from spec_harness.metrics.declaration import Ratio, RequestMean
from spec_harness.metrics.statistics import SINGLE
from spec_harness.report.comparable import SILENT, flatten, has_prefix, machine, speed, workload_key
from spec_harness.report.load import Run
from spec_harness.report.pooled_baseline import FLOOR, pooled_baseline
from spec_harness.results.schema import RunResults

RATES = {name: one for name, one in SINGLE.items() if one.compare}
SPEED = "tokens_per_second"
EQUAL = "equal"  # in every resample


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One figure of both runs. ``change`` is B - A; where ``is_ratio``, B / A."""

    name: str
    a: float | None
    b: float | None
    change: float | None
    ci95: Interval | None  # of the change, from requests resampled in pairs
    is_ratio: bool = False
    noise: float = 1.0  # factor up to which a ratio may be the machine's

    @property
    def verdict(self) -> str:
        """In words: which is higher, or that one cannot tell."""
        nothing = 1.0 if self.is_ratio else 0.0
        if self.change is None:
            return "unknown"
        if self.ci95 is None:
            return "too few requests"
        low, high = self.ci95
        if low == high == nothing:
            return EQUAL
        if self.is_ratio:
            return "B higher" if low > self.noise else "A higher" if high * self.noise < 1 else "within noise"
        return "B higher" if low > 0 else "A higher" if high < 0 else "within noise"


def compare(a: Run, b: Run) -> list[Difference]:
    """Raises ``UserError``, naming the difference, unless both runs had the same target, sampling and prompts.

    The seed of sampling may differ: B is then another draw from the same distributions, and what that changes within
    each request is in the interval too.
    """
    if obstacles := list(_obstacles(a, b)):
        raise UserError(f"{a.directory} and {b.directory} cannot be compared: {'; '.join(obstacles)}")
    ours, theirs = per_request(a), per_request(b)
    draws = Bootstrap(len(ours))
    found = []
    for name, rate in RATES.items():
        before, after = (getattr(run.results.proposal, name).value for run in (a, b))
        (old, n), (new, m) = (_resampled(draws, rate, [own[i].counts for i in ours]) for own in (ours, theirs))
        change = None if before is None or after is None else after - before
        ci95 = None if change is None else draws.interval(new - old, informative=min(n, m))
        found.append(Difference(name=name, a=before, b=after, change=change, ci95=ci95))
    before, after = speed(a.results).value, speed(b.results).value
    change = None if before is None or after is None else after / before
    ci95 = (
        None
        if change is None
        else draws.interval(change * _relative_speed(draws, theirs) / _relative_speed(draws, ours))
    )
    pooled = pooled_baseline([a.results, b.results])
    uncertain = is_repeat(a.results, b.results) or machine(a.results) != machine(b.results)
    noise = inf if uncertain else FLOOR if pooled is None else pooled.noise
    return [*found, Difference(name=SPEED, a=before, b=after, change=change, ci95=ci95, is_ratio=True, noise=noise)]


def changed_settings(a: RunResults, b: RunResults) -> dict[str, tuple[Any, Any]]:
    """The keys of the configuration that differ, with both values: what the difference may be due to."""
    ours, theirs = flatten(a.config), flatten(b.config)
    keys = [key for key in ours | theirs if not has_prefix(key, SILENT)]
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


def is_repeat(a: RunResults, b: RunResults) -> bool:
    """Settings, code and machine agree: speeds differ by what else the machine did."""
    same_code = a.provenance.versions == b.provenance.versions and a.provenance.git_commit == b.provenance.git_commit
    return same_code and machine(a) == machine(b) and not changed_settings(a, b)


@dataclass(frozen=True)
class Sums:
    """What one request adds to each sum, its turns and samples together."""

    counts: ProposalCounts
    tokens: int
    seconds: float  # in the engine


def per_request(run: Run) -> dict[str, Sums]:
    """By request id."""
    counts = run.counts()
    requests = run.requests.groupby("request_id")[["output_tokens", "engine_s"]].sum().sort_index().reset_index()
    return {
        str(row["request_id"]): Sums(counts[row["request_id"]], int(row["output_tokens"]), float(row["engine_s"]))
        for row in requests.to_dict("records")
    }


def _resampled(draws: Bootstrap, rate: Ratio | RequestMean, counts: list[ProposalCounts]) -> tuple[Floats, int]:
    """A figure's value in each resample, offset left out, and how many requests say something about it."""
    above, below = zip(*map(rate.terms, counts), strict=True)
    return draws.ratios(above, below), int(np.count_nonzero(below))


def _relative_speed(draws: Bootstrap, requests: Mapping[str, Sums]) -> Floats:
    """Tokens per second in each resample / in the run: the requests' own clocks miss a little of the wall time."""
    tokens, seconds = ([getattr(own, name) for own in requests.values()] for name in ("tokens", "seconds"))
    relative: Floats = draws.ratios(tokens, seconds) * (sum(seconds) / sum(tokens))
    return relative


def _obstacles(a: Run, b: Run) -> Iterator[str]:
    """What makes the runs answers to different questions."""
    ours, theirs = workload_key(a.results), workload_key(b.results)
    for key in {**ours, **theirs}:
        if ours.get(key) != theirs.get(key):
            yield f"{key} is {ours.get(key)} in one and {theirs.get(key)} in the other"
    first, second = _prompts(a), _prompts(b)
    alone = sorted(first.keys() ^ second.keys())
    changed = [key for key in first if key in second and first[key] != second[key]]
    if alone:
        yield f"prompts: {len(first)} requests against {len(second)}, {alone[0]!r} is in one run only"
    elif changed:
        yield f"prompts: {len(changed)} of {len(first)} differ, the first is {changed[0]!r}"
    elif len({run.results.provenance.prompts_sha256 for run in (a, b)} - {None}) > 1:
        yield "prompts: they begin alike, but later turns or the limits of single rows differ"


def _prompts(run: Run) -> dict[str, list[int]]:
    """Token ids of each first turn: later ones hold what the model said."""
    return {row["request_id"]: row["prompt_token_ids"] for row in run.generations() if row["turn"] == 0}
