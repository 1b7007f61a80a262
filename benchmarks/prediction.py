"""Predicted beside measured speed-up, for several proposal lengths, on the packaged pair: does the cost model hold?

    make bench-prediction        (one pinned thread, batch 1; about four minutes on a quiet machine)

Each length is three ordinary runs of `spec-eval`; a run's prediction comes from its micro-profile and its own
acceptance. Medians of the runs, since a machine's speed drifts between the two passes of one.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from spec_harness.results.schema import RunResults, read_results


def measure(length: int, arguments: argparse.Namespace, directory: Path) -> RunResults:
    command = [
        sys.executable,
        "-m",
        "spec_harness",
        f"proposal.max_proposal_len={length}",
        f"max_num_seqs={arguments.batch}",
        f"sampling.max_new_tokens={arguments.tokens}",
        f"data.limit={arguments.prompts}",
        "logger=none",
        "trainer.enable_progress_bar=false",
        f"hydra.run.dir={directory}",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return read_results(directory / "results.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of each prompt")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each length")
    arguments = parser.parse_args()
    table = Table("k", "tokens/pass", "measured", "of runs", "predicted", "predicted / measured")
    with tempfile.TemporaryDirectory() as scratch:
        for length in arguments.lengths:
            runs = [measure(length, arguments, Path(scratch) / f"{length}-{n}") for n in range(arguments.repeats)]
            speedups = [run.timing.speedup.value for run in runs if run.timing and run.timing.speedup.value]
            predictions = [run.timing.predicted_speedup for run in runs if run.timing and run.timing.predicted_speedup]
            measured, predicted = median(speedups), median(predictions)
            table.add_row(
                str(length),
                f"{runs[0].proposal.tokens_per_target_pass.value:.2f}",
                f"{measured:.2f}x",
                f"{min(speedups):.2f} to {max(speedups):.2f}",
                f"{predicted:.2f}x",
                f"{predicted / measured:.3f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
