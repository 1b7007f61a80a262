"""Whether runs answer the same question. No pandas: it is asked of every sweep that is opened."""

from collections.abc import Mapping, Sequence
from typing import Any

from spec_harness.results.schema import Estimate, RunResults

SILENT = ("logger", "verbose", "trainer.enable_progress_bar")  # configuration that changes no figure


def has_prefix(key: str, prefixes: Sequence[str]) -> bool:
    """The key is one of ``prefixes``, or inside such a section."""
    return any(f"{key}.".startswith(f"{prefix}.") for prefix in prefixes)


def machine(results: RunResults) -> tuple[str, int]:
    """Device and threads."""
    return results.provenance.device, results.provenance.threads


def speed(results: RunResults) -> Estimate:
    """Tokens per second of the pass that the run's files are about: plain decoding's where nothing proposes."""
    timing = results.timing
    if timing is None:
        return Estimate(value=None, n=0)
    drafted = timing.speculative_tokens_per_second
    return timing.baseline_tokens_per_second if drafted.value is None else drafted


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested configuration by full keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def workload_key(results: RunResults) -> dict[str, Any]:
    """What was decoded and how, by key: two runs in which this differs cannot be told better or worse. The prompts
    themselves are in the runs' files. Sampling's seed is left out: another seed is another draw of the same."""
    sampling = {f"sampling.{key}": value for key, value in section(results, "sampling").items() if key != "seed"}
    return {f"target.{key}": value for key, value in _target(results).items()} | sampling


def incomparable_keys(runs: Sequence[RunResults]) -> list[str]:
    """The keys that forbid ranking the runs: of their tasks, of the prompts asked for, and of the machine."""
    hashed = all(one.provenance.prompts_sha256 for one in runs)
    asked = [
        workload_key(one)
        | ({"prompts": one.provenance.prompts_sha256} if hashed else {})
        | {f"data.{key}": x for key, x in section(one, "data").items() if not hashed or key == "chat_template"}
        | {"requests": one.proposal.num_requests}
        | dict(zip(("device", "threads"), machine(one), strict=True))
        for one in runs
    ]
    keys = dict.fromkeys(key for one in asked for key in one)
    return [key for key in keys if any(one.get(key) != asked[0].get(key) for one in asked)]


def section(results: RunResults, name: str) -> dict[str, Any]:
    found: Any = results.config.get(name)
    return dict(found or {})


def drafts_for_itself(results: RunResults) -> bool:
    """The draft is the target: a check of the harness."""
    return section(results, "draft").get("kind") == "self" and results.provenance.proposer.name == "draft_model"


def _target(results: RunResults) -> dict[str, Any]:
    """What identifies the target. Folders with the same weights are the same model."""
    config, identity = section(results, "target"), results.provenance.target
    named = {key: config.get(key) for key in ("kind", "path", "revision", "config", "seed")}
    which = named if identity.weights_sha256 is None else {"weights_sha256": identity.weights_sha256}
    return which | {"dtype": identity.dtype, "max_model_len": config.get("max_model_len")}
