"""Every count, rate and generation of 24 runs over the configuration space, as an earlier version of the code gave it.

A change of structure must leave all of them as they are: ``tests/integration/test_landed_figures.py`` compares. After a
change that is meant to move figures, record them again, and say in the commit which moved and why:

    OMP_NUM_THREADS=1 python -m tests.landed_figures
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

FIGURES = Path(__file__).parent / "fixtures" / "landed_figures.json"
CONVERSATIONS = Path("conversations.jsonl")  # written into the working directory of the runs
_TURNS = ("data=jsonl", f"data.path={CONVERSATIONS}")
_SAMPLED = ("sampling=temperature", "sampling.temperature=0.8", "sampling.top_p=0.95")
_FORKS = (*_SAMPLED, "sampling.n=3")
_TIGHT = ("kv_cache.block_size=4", "kv_cache.num_blocks=26")

RUNS: dict[str, tuple[str, ...]] = {
    "draft, greedy": (),
    "draft, greedy, k=1": ("proposal.max_proposal_len=1", "max_num_seqs=1"),
    "draft, greedy, k=8, blocks of 1": ("proposal.max_proposal_len=8", "kv_cache.block_size=1"),
    "draft, greedy, tight pool, recompute": (*_TIGHT, "max_num_seqs=5"),
    "draft, greedy, tight pool, swap": (*_TIGHT, "max_num_seqs=5", "kv_cache.preemption=swap"),
    "draft, greedy, baseline": ("baseline=measure", "data.limit=4"),
    "draft, greedy, short draft": ("draft.max_model_len=48",),
    "draft, greedy, min_draft_prob": ("proposal.min_draft_prob=0.5",),
    "draft, greedy, disabled above batch": ("proposal.disable_above_batch=3", "max_num_seqs=5"),
    "draft, greedy, stop string": ("sampling.stop=['self']", "sampling.ignore_eos=true"),
    "draft, sampled": _SAMPLED,
    "draft, sampled, greedy draft": (*_SAMPLED, "proposal.draft_sampling=greedy", "sampling.top_k=40"),
    "draft, sampled, custom draft": (*_SAMPLED, "proposal.draft_sampling=custom", "proposal.draft_temperature=0.4"),
    "draft, sampled, forks": (*_FORKS, "kv_cache.block_size=8"),
    "draft, sampled, forks, tight pool, swap": (*_FORKS, *_TIGHT, "kv_cache.preemption=swap"),
    "draft, greedy, turns": (*_TURNS, "max_num_seqs=2"),
    "draft, sampled, turns, blocks of 32": (*_TURNS, *_SAMPLED, "kv_cache.block_size=32"),
    "self, greedy": ("draft=self", "proposal.max_proposal_len=5"),
    "self, sampled, forks": ("draft=self", *_FORKS, "kv_cache.block_size=1"),
    "random draft, sampled": ("draft=random", *_SAMPLED, "proposal.max_proposal_len=2"),
    "n-gram, greedy, baseline": ("proposal=ngram", "baseline=measure", "data.limit=4"),
    "n-gram, sampled, forks, tight pool": ("proposal=ngram", *_FORKS, *_TIGHT),
    "n-gram, greedy, turns": ("proposal=ngram", *_TURNS, "proposal.max_proposal_len=6"),
    "none, sampled, tight pool": ("proposal=none", *_SAMPLED, *_TIGHT),
}
_COMMON = ("baseline=off", "data.limit=8", "sampling.max_new_tokens=24", "max_num_seqs=4")


def figures_of(run_dir: Path) -> dict[str, Any]:
    """What must not change: counts exactly, generations and rounds as hashes, rates as numbers."""
    results = json.loads((run_dir / "results.json").read_text())
    kv = {
        key: results["kv"][key]
        for key in ("num_blocks", "blocks_allocated_peak", "blocks_allocated", "preemptions", "swaps")
    }
    return {
        "proposal": results["proposal"],
        "breakdowns": _digest(list(_counts_of(results["breakdowns"]))),
        "kv": kv | {"utilization": results["kv"]["utilization"]},
        "baseline_equality": results["integrity"]["baseline_equality"],
        "generations": _digest(sorted(_generations(run_dir))),
        "rounds": _digest(sorted(_rounds(run_dir))),
    }


def _counts_of(value: Any, where: str = "") -> Iterator[str]:
    """Every whole number in a tree of sections, with its place."""
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from _counts_of(value[key], f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _counts_of(item, f"{where}[{index}]")
    elif isinstance(value, int):
        yield f"{where}={value}"


def _generations(run_dir: Path) -> Iterator[str]:
    keys = (
        "request_id",
        "turn",
        "sample",
        "category",
        "prompt",
        "prompt_token_ids",
        "text",
        "token_ids",
        "stop_reason",
    )
    with (run_dir / "generations.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield json.dumps([row[key] for key in keys])


def _rounds(run_dir: Path) -> Iterator[str]:
    keys = (
        "request_id",
        "turn",
        "sample",
        "round",
        "context_len",
        "proposal_len",
        "num_accepted",
        "num_aligned",
        "num_emitted",
    )
    keys += ("skip_reason", "draft_token_ids", "output_token_ids", "num_draft_tokens_past_end", "ended_by_accepted_eos")
    for row in pq.read_table(run_dir / "rounds.parquet", columns=list(keys)).to_pylist():
        yield json.dumps([row[key] for key in keys])


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_conversations(folder: Path) -> None:
    """Requests of one, two and three turns."""
    turns = [["def add(a, b):\n", "def sub(a, b):\n"], ["import os\n", "import sys\n", "import re\n"], ["class A:\n"]]
    rows = [{"id": f"talk-{i}", "category": f"of {len(said)}", "turns": said} for i, said in enumerate(turns * 2)]
    (folder / CONVERSATIONS).write_text("".join(json.dumps(row) + "\n" for row in rows))


def measure(name: str) -> dict[str, Any]:
    """The figures of one run into the working directory, which holds the conversations."""
    from tests.run_helpers import spec_eval

    directory = f"run-{list(RUNS).index(name)}"
    code = spec_eval(*_COMMON, *RUNS[name], run_dir=directory)
    if code:
        raise RuntimeError(f"{name}: exit code {code}")
    return figures_of(Path(directory))


def main() -> None:
    from tests.run_helpers import working_directory

    with tempfile.TemporaryDirectory() as folder, working_directory(Path(folder)):
        write_conversations(Path(folder))
        figures = {name: measure(name) for name in RUNS}
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(figures, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
