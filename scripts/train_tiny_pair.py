"""Trains the packaged demonstration pair on the CPU, from the standard library's own sources.

    python scripts/train_tiny_pair.py all --work-dir WORK

The stages run one by one too. A stage that is started again goes on from its last checkpoint
in the work folder; delete its folder there to start it afresh.
"""

import argparse
from pathlib import Path

import lightning
import torch
from tiny_pair.stages import STAGES

ASSETS = Path(__file__).parent.parent / "spec_harness" / "assets"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=[*STAGES, "all"])
    parser.add_argument("--work-dir", type=Path, required=True, help="checkpoints and tokens")
    parser.add_argument("--output", type=Path, default=ASSETS, help="where export writes")
    parser.add_argument("--prompts", type=Path, default=ASSETS / "prompts.jsonl")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=62.0, help="wall time of the target")
    parser.add_argument("--greedy-tokens", type=int, default=2_500_000)
    parser.add_argument("--draft-text-minutes", type=float, default=4.0)
    parser.add_argument("--draft-minutes", type=float, default=32.0)
    parser.add_argument("--draft-lr", type=float, default=0.02, help="peak, for Muon")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    lightning.seed_everything(arguments.seed, verbose=False)
    chosen = list(STAGES) if arguments.stage == "all" else [arguments.stage]
    arguments.command = (
        "python scripts/train_tiny_pair.py all --work-dir WORK "
        f"--seed {arguments.seed} --minutes {arguments.minutes:g} "
        f"--greedy-tokens {arguments.greedy_tokens} "
        f"--draft-text-minutes {arguments.draft_text_minutes:g} "
        f"--draft-minutes {arguments.draft_minutes:g} --draft-lr {arguments.draft_lr:g}"
    )
    for stage in chosen:
        STAGES[stage](arguments)


if __name__ == "__main__":
    main()
