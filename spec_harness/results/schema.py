"""The schema of results.json: every key with its formula and unit, checked when written and when read.

A value that was not or could not be measured is ``null``, never 0. The proposal section is
declared in ``metrics/statistics.py``, with the symbols used here.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import AwareDatetime, Field, JsonValue, ValidationError

from spec_harness.errors import UserError
from spec_harness.metrics.declaration import Count, Section
from spec_harness.metrics.declaration import Estimate as Estimate
from spec_harness.metrics.statistics import Breakdowns as Breakdowns
from spec_harness.metrics.statistics import ProposalResults as ProposalResults
from spec_harness.results.upgrade import upgraded

SCHEMA_VERSION: Literal[2] = 2


class Latency(Section):
    """A time per request, over all requests."""

    mean: float = Field(description="seconds")
    p50: float = Field(description="seconds, median")
    p95: float = Field(description="seconds, 95th percentile")


class TimeShare(Section):
    """Share of the speculative run's wall time, from a separate synchronized pass or from events; they sum to 1."""

    prefill: float = Field(description="target passes over prompts")
    propose: float = Field(description="draft model with its catch-up, or n-gram look-up")
    score: float = Field(description="target passes over proposals, or single tokens")
    verify: float = Field(description="acceptance test and recovered or bonus tokens")
    commit: float = Field(description="append, stop, rewind")
    scheduler: float = Field(description="admission, blocks, and all other host time")


class StepTimeResults(Section):
    """The micro-profile: medians in seconds at the run's mean batch, warm and synchronized, apart from the run."""

    batch: Count = Field(description="sequences in each step")
    context_len: Count = Field(description="tokens of each sequence, mean")
    target_step_s: float = Field(description="one step of plain decoding: forward, sampling, commit")
    target_forward_s: float = Field(description="the target's forward in it")
    draft_step_s: float = Field(description="one draft step without catch-up")
    score_s: list[float] = Field(description="[l]: scoring proposals of l tokens, l = 0 … k")
    host_s: float = Field(description="the rest of a speculative step: verify, commit, scheduler, catch-up")


class TimingResults(Section):
    """Wall time, same prompts and same token counter on both sides, measured without stage synchronization."""

    speculative_tokens_per_second: Estimate = Field(description="num_output_tokens / wall time of the speculative run")
    baseline_tokens_per_second: Estimate = Field(description="output tokens / wall time of the target alone")
    speedup: Estimate = Field(description="speculative_tokens_per_second / baseline_tokens_per_second")
    draft_cost_ratio: float | None = Field(default=None, description="draft_step_s / target_forward_s: Leviathan's c")
    predicted_speedup: float | None = Field(
        default=None,
        description="tokens_per_target_pass · target_step_s / (l̄ · draft_step_s + score_s(l̄) + host_s), l̄ = Σl / "
        "num_rounds; prefill and the ends of the run, where fewer sequences run, are not in it",
    )
    step_times: StepTimeResults | None = Field(default=None, description="null if not profiled")
    time_share: TimeShare | None = Field(default=None, description="null if stages were not timed")
    time_to_first_token: Latency | None = Field(default=None, description="admission to first token, per request")
    time_per_output_token: Latency | None = Field(default=None, description="per request, first token left out")


class KVResults(Section):
    """The paged KV cache of the speculative run. Blocks are usable ones; one count serves both models."""

    block_size: Count = Field(description="tokens per block")
    num_blocks: Count = Field(description="usable blocks in the pool")
    blocks_allocated_peak: Count | None = Field(default=None, description="most blocks owned at one time")
    blocks_allocated: Count | None = Field(default=None, description="blocks handed out over the whole run")
    utilization: float | None = Field(default=None, description="tokens held / slots held, mean over engine steps")
    bytes_per_block_target: Count | None = Field(default=None, description="bytes of one block, all target layers")
    bytes_per_block_draft: Count | None = Field(default=None, description="bytes of one block, all draft layers")
    bytes_per_output_token: float | None = Field(
        default=None, description="blocks_allocated * (bytes of a block of both models) / num_output_tokens"
    )
    preemptions: Count | None = Field(default=None, description="times a sequence gave its blocks back unfinished")
    swaps: Count | None = Field(default=None, description="preemptions that moved blocks to host memory")


class Check(Section):
    name: str = Field(description="what was checked")
    figure: float | None = Field(description="what was measured, in the check's own unit")
    tolerance: float | None = Field(description="largest figure that passes")
    verdict: Literal["pass", "fail", "skipped"] = Field(description="fail fails the run")


class BaselineEquality(Section):
    """Requests by how their output compares with the target's own greedy output; a fault fails the run."""

    equal: Count = Field(description="token for token")
    tie: Count = Field(description="first difference where the decision's margin is within the tie tolerance")
    fault: Count = Field(description="first difference outside it")


class IntegrityResults(Section):
    level: Literal["full", "quick", "off"] = Field(description="as configured")
    checks: list[Check] = Field(default_factory=list, description="in the order in which they ran")
    baseline_equality: BaselineEquality | None = Field(default=None, description="null if nothing was compared")


class ModelIdentity(Section):
    name: str = Field(description="hub id or folder, as configured")
    revision: str | None = Field(default=None, description="of the hub, if one was named")
    dtype: str = Field(description="of the weights while running, e.g. float32")
    num_parameters: Count | None = Field(default=None, description="shared weights counted once")
    weights_sha256: str | None = Field(default=None, description="over the weight files; null if not hashed")


class ProposerIdentity(Section):
    name: str = Field(description="draft_model, ngram, none, or the dotted path of a class of the user's own")
    label: str = Field(description="what tables call it; a draft model is called by its name")


class Versions(Section):
    spec_harness: str = Field(description="version of this package")
    python: str = Field(description="version of the interpreter")
    torch: str = Field(description="version, build suffix included")
    transformers: str = Field(description="version")
    lightning: str = Field(description="version")


class Provenance(Section):
    versions: Versions = Field(description="of what computed the figures")
    git_commit: str | None = Field(default=None, description="of the harness, if it runs from a checkout")
    device: str = Field(description="name of the device, e.g. of the GPU or the CPU")
    threads: Count = Field(description="intra-op threads of torch")
    prompts_sha256: str | None = Field(
        default=None, description="of the rows that were asked for, all turns and limits"
    )
    seeds: dict[str, int] = Field(description="by configuration key")
    target: ModelIdentity = Field(description="the model whose output is wanted")
    draft: ModelIdentity | None = Field(default=None, description="null if no draft model proposed")
    proposer: ProposerIdentity = Field(description="who proposed")
    started_at: AwareDatetime = Field(description="wall-clock time with its zone")
    duration_s: float = Field(ge=0, description="seconds, start to results")


class RunResults(Section):
    """One results.json."""

    schema_version: Literal[2] = Field(default=SCHEMA_VERSION, description="raised when a key changes its meaning")
    status: Literal["done", "failed", "partial", "interrupted"] = Field(
        description="failed: outputs differ from plain decoding, do not use it; partial: only some of the "
        "requests were asked for; interrupted: only some had finished when the process was killed"
    )
    mode: Literal["run"] = Field(description="what kind of run this was")
    config: dict[str, JsonValue] = Field(description="the resolved configuration")
    provenance: Provenance = Field(description="which code, models and machine, and when")
    integrity: IntegrityResults = Field(description="checks that these figures can be trusted")
    proposal: ProposalResults = Field(description="what was proposed and accepted, all requests pooled")
    timing: TimingResults | None = Field(description="null where the mode measures no time")
    kv: KVResults | None = Field(description="null where the mode has no KV cache")
    breakdowns: Breakdowns = Field(default_factory=Breakdowns, description="the proposal section, by group of requests")
    notes: list[str] = Field(default_factory=list, description="what a reader must know to read the figures right")


def latency(seconds: Sequence[float]) -> Latency | None:
    """Mean, median and 95th percentile (linear interpolation) of times in seconds; ``None`` of none."""
    if not seconds:
        return None
    p50, p95 = np.percentile(seconds, [50, 95])
    return Latency(mean=float(np.mean(seconds)), p50=float(p50), p95=float(p95))


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill, sees the old content or the new, never half of it."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_results(path: Path, results: RunResults) -> None:
    """Write results.json, atomically, after reading the very text back through the schema."""
    text = results.model_dump_json(indent=2, warnings=False)  # the next line is stricter
    RunResults.model_validate_json(text)
    replace_text(path, text + "\n")


def read_results(path: Path) -> RunResults:
    """Read and check a results.json, one of version 1 as ``upgraded``; ``UserError`` if it is missing, not JSON, or of
    another schema."""
    try:
        return RunResults.model_validate_json(upgraded(path.read_bytes()))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        message = f"{path}: {key}: {first['msg']} (this version reads schema_version 1 and {SCHEMA_VERSION})"
        raise UserError(message) from error
