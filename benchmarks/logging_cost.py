"""What share of a run's time goes into logging: W&B and CSV records on the way, tables and summary at the end.

    make bench-logging        (one pinned thread; about a minute)

All is measured inside one run of 64 requests: the seconds spent in the calls that send to loggers, over the seconds of
the whole run. What W&B's own process does beside the run is not in it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spec_harness import run as run_module
from spec_harness.cli.application import CONFIG_NAME, VERSION_BASE, conf_dir, register_schema
from spec_harness.cli.compose import to_config
from spec_harness.config import EvalConfig
from spec_harness.evaluation.tracking import RunningFigures, WandbResults

LIMIT = 0.02  # of the run's time


def timed(spent: dict[str, float], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            spent[name] += time.perf_counter() - began

    return wrapper


def composed(*overrides: str) -> EvalConfig:
    from hydra import compose, initialize_config_dir

    register_schema()
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        return to_config(compose(CONFIG_NAME, overrides=list(overrides)))


def measure(arguments: argparse.Namespace, directory: Path) -> tuple[dict[str, float], float, int]:
    """Seconds in each kind of call, seconds of the run, and W&B records."""
    spent: dict[str, float] = defaultdict(float)
    for owner, name in (
        (run_module, "finish"),
        (run_module, "make_loggers"),
        (RunningFigures, "on_engine_step"),
        (WandbResults, "on_test_end"),
    ):
        setattr(owner, name, timed(spent, name, getattr(owner, name)))
    config = composed(
        f"data.limit={arguments.prompts}", f"max_num_seqs={arguments.batch}", "trainer.enable_progress_bar=false"
    )
    began = time.perf_counter()
    run_module.run(config, run_dir=directory, sweep=None)
    total = time.perf_counter() - began
    (offline,) = (directory / "wandb").glob("offline-run-*")
    command = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", offline]
    records = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert all(json.loads(record) for record in records)
    return spent, total, len(records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    with tempfile.TemporaryDirectory() as scratch:
        spent, total, records = measure(parser.parse_args(), Path(scratch))
    start_and_end = {name: spent.pop(name) for name in ("make_loggers", "finish")}
    print()
    for name, seconds in spent.items():
        print(f"{name:<18} {1000 * seconds:8.1f} ms  {seconds / total:6.2%}")
    logging = sum(spent.values())
    print(f"{'logging':<18} {1000 * logging:8.1f} ms  {logging / total:6.2%} of {total:.1f} s, {records} W&B records")
    print(f"W&B's own start and end, once a run: {', '.join(f'{n} {s:.2f} s' for n, s in start_and_end.items())}")
    if logging / total > LIMIT:
        raise SystemExit(f"above {LIMIT:.0%}")


if __name__ == "__main__":
    main()
