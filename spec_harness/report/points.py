"""The runs of a sweep as points of a plot: which draft, which length, and whatever else differed between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from spec_harness.report.comparable import SILENT, flatten, has_prefix
from spec_harness.report.load import Run
from spec_harness.results.schema import RunResults

NGRAM, NOBODY = "n-gram lookup", "no proposals"
# Keys that the draft's label and the length already tell.
_MAKERS = ("draft.config", "draft.seed", "draft.path")
_TOLD = ("draft.kind", "draft.path", "draft.config", "draft.seed", "proposal.kind", "proposal.max_proposal_len")
_SILENT = (*SILENT, "baseline", "integrity")  # and what changes no figure of a proposal


@dataclass(frozen=True)
class Point:
    run: Run
    draft: str  # the proposer's label
    k: int  # max_proposal_len
    others: Mapping[str, Any]  # further configuration that differs between the runs of the sweep, by full key
    label: str  # what tells it from the other points

    @property
    def series(self) -> str:
        """The draft, and the other settings: points of one series differ in k only."""
        return ", ".join([self.draft, *_texts(self.others)])


def points(runs: Sequence[Run]) -> list[Point]:
    """In the order of ``runs``."""
    found = _points(runs, _TOLD)
    labels = [point.label for point in found]
    # Drafts of one name, as random ones, are told apart by what makes them.
    return found if len(set(labels)) == len(labels) else _points(runs, [key for key in _TOLD if key not in _MAKERS])


def _points(runs: Sequence[Run], told: Sequence[str]) -> list[Point]:
    """``told``: keys that the draft's label and the length tell."""
    flat = [flatten(run.results.config) for run in runs]
    keys = [key for key in dict.fromkeys(key for one in flat for key in one) if not has_prefix(key, (*told, *_SILENT))]
    varying = [key for key in keys if len({str(one.get(key)) for one in flat}) > 1]
    names = [proposer(run.results) for run in runs]
    short = {name: PurePath(name).name for name in names}
    drafts = short if len(set(short.values())) == len(short) else {name: name for name in names}
    lengths = [proposal_len(run.results) for run in runs]
    found = []
    for run, name, k, one in zip(runs, names, lengths, flat, strict=True):
        others = {key: one.get(key) for key in varying}
        label = [drafts[name]] if len(drafts) > 1 or not others else []
        label += [f"k={k}"] if k and (len(set(lengths)) > 1 or not others) else []
        found.append(Point(run, drafts[name], k, others, ", ".join([*label, *_texts(others)])))
    return found


def _texts(settings: Mapping[str, Any]) -> list[str]:
    """The last part of a key says enough beside its value."""
    return [f"{key.rpartition('.')[2]}={'null' if value is None else value}" for key, value in settings.items()]


def proposer(results: RunResults) -> str:
    """Who proposed: the draft model by its configured name, the n-gram look-up, or nobody."""
    if results.provenance.draft is not None:
        return results.provenance.draft.name
    return NGRAM if proposal_len(results) else NOBODY


def proposal_len(results: RunResults) -> int:
    return len(results.proposal.accepted_length_histogram) - 1
