"""What tells the runs of a sweep apart: who proposes, how many tokens, and what else of the configuration differs."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from spec_harness.report.comparable import SILENT, flatten, has_prefix
from spec_harness.results.schema import RunResults

# Keys that the proposer's label and the length already tell.
_MAKERS = ("draft.config", "draft.seed", "draft.path", "proposal._target_")
_TOLD = (*_MAKERS, "draft.kind", "proposal.kind", "proposal.max_proposal_len")
_SILENT = (*SILENT, "baseline", "integrity")  # and what changes no figure of a proposal


def labels(runs: Sequence[RunResults]) -> list[dict[str, Any]]:
    """The columns of a sweep's table that name a run, by name; see ``sweep.py``."""
    found = _labels(runs, _TOLD)
    unique = len({one["label"] for one in found}) == len(found)
    # Proposers of one name, as random drafts, are told apart by what makes them.
    return found if unique else _labels(runs, [key for key in _TOLD if key not in _MAKERS])


def _labels(runs: Sequence[RunResults], told: Sequence[str]) -> list[dict[str, Any]]:
    """``told``: keys that the proposer's label and the length tell."""
    configs = [flatten(one.config) for one in runs]
    keys = [
        key for key in dict.fromkeys(key for one in configs for key in one) if not has_prefix(key, (*told, *_SILENT))
    ]
    varying = [key for key in keys if len({str(one.get(key)) for one in configs}) > 1]
    names = [one.provenance.proposer.label for one in runs]
    short = {name: PurePath(name).name for name in names}
    shown = short if len(set(short.values())) == len(short) else {name: name for name in names}
    lengths = [len(one.proposal.accepted_length_histogram) - 1 for one in runs]
    found = []
    for one, name, k, config in zip(runs, names, lengths, configs, strict=True):
        others = {key: config.get(key) for key in varying}
        label = [shown[name]] if len(shown) > 1 or not others else []
        label += [f"k={k}"] if k and (len(set(lengths)) > 1 or not others) else []
        found.append(
            {
                "proposer": shown[name],
                "proposer_name": one.provenance.proposer.name,
                "k": k,
                "label": ", ".join([*label, *_texts(others)]),
                "series": ", ".join([shown[name], *_texts(others)]),
                "other_settings": ", ".join(f"{key}={value}" for key, value in others.items()),
            }
        )
    return found


def _texts(settings: Mapping[str, Any]) -> list[str]:
    """The last part of a key says enough beside its value."""
    return [f"{key.rpartition('.')[2]}={'null' if value is None else value}" for key, value in settings.items()]
