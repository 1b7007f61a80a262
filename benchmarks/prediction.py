"""Predicted beside measured speed-up, for several proposal lengths, on the packaged pair: does the cost model hold?

    make bench-prediction        (one pinned thread, batch 1; about two minutes on a quiet machine)

Each length is one ordinary run of `spec-eval`; the prediction comes from its micro-profile and its own acceptance.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from spec_harness.evaluation.results import RunResults, read_results


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
    arguments = parser.parse_args()
    table = Table("k", "tokens/pass", "measured", "95 %", "predicted", "predicted / measured")
    with tempfile.TemporaryDirectory() as scratch:
        for length in arguments.lengths:
            results = measure(length, arguments, Path(scratch) / str(length))
            timing = results.timing
            assert timing is not None
            measured, predicted = timing.speedup.value, timing.predicted_speedup
            assert measured is not None
            assert predicted is not None
            interval = "" if timing.speedup.ci95 is None else "{:.2f} to {:.2f}".format(*timing.speedup.ci95)
            table.add_row(
                str(length),
                f"{results.proposal.tokens_per_target_pass.value:.2f}",
                f"{measured:.2f}x",
                interval,
                f"{predicted:.2f}x",
                f"{predicted / measured:.3f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
