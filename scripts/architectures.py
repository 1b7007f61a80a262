"""Measures which families of models run on the paged KV cache, and writes docs/architectures.md.

    OMP_NUM_THREADS=1 python -m scripts.architectures

Every family is a tiny model with random weights, built from a config: float32, CPU, no download. It stops at the first
family that does not do what ``tests/architectures.py`` says of it.
"""

from pathlib import Path

import torch
import transformers

from spec_harness.errors import UserError
from tests.architectures import REFUSED, RUNNING, WINDOW, Family, RefusedFamily
from tests.paged import BLOCK_SIZE, CHUNKS, check_greedy, compare

DOCUMENT = Path(__file__).parent.parent / "docs" / "architectures.md"
LARGEST_DIFFERENCE = 1e-4

TEXT = """# Which models run

Any causal language model of transformers runs whose attention goes through its `AttentionInterface` and keeps keys and
values only. Every model is checked when it is loaded, the families below and all others alike: which layers call the
attention function, how often, with which masks, and whether a prefill and three decode steps on the paged cache give
the model's own logits (up to 512 tokens of a run's own prompts, or 40 random ones). What does not pass is refused by
name, with exit code 2. What begins only beyond the tokens compared must show in the config or in the masks.

The tables are written by

```
OMP_NUM_THREADS=1 .venv/bin/python -m scripts.architectures
```

from tiny models with random weights (float32, CPU) of the configs in `tests/architectures.py`, with transformers
{transformers} and torch {torch}. `tests/integration/test_architectures.py` runs the same list.

## Runs

Largest difference between logits on the paged cache and the model's own, absolute and as a share of the largest
|logit|: {count} sequences of {lengths} tokens in blocks of {block_size}, fed together in prefills, single tokens and
chunks of several, with shuffled block tables. Windows are {window} tokens wide. Each family also decoded greedily
through the whole engine with itself as draft (k = 3): the tokens were those of `generate`, and every proposal was
accepted.

| Family | Shown here | Largest difference | Relative |
|---|---|---|---|
{running}

## Refused

| Family | What it has | The error says |
|---|---|---|
{refused}
"""


def running_row(family: Family) -> str:
    loaded = family.load()
    found = compare(loaded)
    if not found.max_difference <= LARGEST_DIFFERENCE:
        raise SystemExit(f"{family.name}: paged logits differ by {found.max_difference:.1e}")
    check_greedy(loaded)
    relative = found.max_difference / found.max_logit
    return f"| `{family.name}` | {family.features} | {found.max_difference:.1e} | {relative:.1e} |"


def refused_row(family: RefusedFamily) -> str:
    try:
        family.load()
    except UserError as error:
        message = str(error)
    else:
        raise SystemExit(f"{family.name} is not refused")
    if family.reason not in message:
        raise SystemExit(f"{family.name} is refused for another reason: {message}")
    said = message.partition(" cannot be measured: ")[2] or message.partition(": ")[2]
    return f"| `{family.name}` | {family.features} | {said} |"


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    *first, last = [str(sum(chunks)) for chunks in CHUNKS]
    document = TEXT.format(
        transformers=transformers.__version__,
        torch=torch.__version__.partition("+")[0],
        count=len(CHUNKS),
        lengths=f"{', '.join(first)} and {last}",
        block_size=BLOCK_SIZE,
        window=WINDOW,
        running="\n".join(running_row(family) for family in RUNNING),
        refused="\n".join(refused_row(family) for family in REFUSED),
    )
    DOCUMENT.write_text(document, encoding="utf-8")
    print(f"{len(RUNNING)} families run, {len(REFUSED)} are refused: {DOCUMENT}")


if __name__ == "__main__":
    main()
