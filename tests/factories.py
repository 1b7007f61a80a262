"""Fabricated records, results and runs on disk: factories, so that each test says only what matters to it."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spec_harness.metrics.breakdowns import breakdowns
from spec_harness.metrics.counts import ProposalCounts, counts_by_request
from spec_harness.metrics.estimates import proposal_results
from spec_harness.requests import RequestRecord, RoundRecord
from spec_harness.results.round_log import RunHeader
from spec_harness.results.run_files import RunFiles
from spec_harness.results.schema import (
    BaselineEquality,
    Check,
    Estimate,
    IntegrityResults,
    KVResults,
    ModelIdentity,
    ProposerIdentity,
    Provenance,
    RunResults,
    TimeShare,
    TimingResults,
    Versions,
    latency,
    write_results,
)
from spec_harness.results.status import StatusFile


def round_of(
    proposal_len: int, num_accepted: int, *, eos: bool = False, past_end: int = 0, **changes: Any
) -> RoundRecord:
    emitted = num_accepted if eos else num_accepted + 1
    judged = min(num_accepted + 1, proposal_len)
    values: dict[str, Any] = {
        "request_id": "r0",
        "turn": 0,
        "sample": 0,
        "round": 0,
        "context_len": 8,
        "proposal_len": proposal_len,
        "num_accepted": num_accepted,
        "num_aligned": num_accepted,
        "num_emitted": emitted,
        "num_draft_tokens_past_end": past_end,
        "skip_reason": None if proposal_len else "budget",
        "ended_by_accepted_eos": eos,
        "draft_token_ids": list(range(proposal_len)),
        "output_token_ids": list(range(emitted)),
        "draft_probs": [0.5] * proposal_len,
        "target_probs": [0.25] * proposal_len,
        "expected_acceptance": [0.75] * judged,
        "draft_entropy": [1.5] * judged,
        "target_entropy": [1.25] * judged,
        "kl_target_draft": [0.5] * judged,
        "target_rank_in_draft": [2] * judged,
    }
    return RoundRecord(**(values | changes))


def request_of(rounds: list[RoundRecord], **changes: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "request_id": rounds[0].request_id if rounds else "r0",
        "turn": 0,
        "sample": 0,
        "category": "code",
        "prompt": "def f():",
        "prompt_token_ids": [1, 2, 3],
        "token_ids": list(range(1 + sum(record.num_emitted for record in rounds))),
        "text": "return 1",
        "stop_reason": "length",
        "time_to_first_token": 0.01,
        "time_per_output_token": 0.002,
        "rounds": rounds,
    }
    return RequestRecord(**(values | changes))


def random_requests(seed: int, *, max_proposal_len: int, num_requests: int = 7) -> list[RequestRecord]:
    rng = random.Random(seed)
    requests = []
    for index in range(num_requests):
        rounds = []
        for number in range(rng.randint(0, 20)):
            proposed = rng.randint(0, max_proposal_len)
            accepted = rng.randint(0, proposed)
            eos = accepted > 0 and rng.random() < 0.1
            proposed = accepted if eos else proposed
            judged = min(accepted + 1, proposed)
            compared = judged if rng.random() < 0.9 else 0  # an n-gram proposal has no distribution
            rounds.append(
                round_of(
                    proposed,
                    accepted,
                    eos=eos,
                    past_end=rng.randint(0, 2) if eos else 0,
                    request_id=f"r{index}",
                    round=number,
                    num_aligned=rng.randint(accepted, max(accepted, proposed - 1)),
                    skip_reason=None if proposed else rng.choice(["cap", "budget", "draft_max"]),
                    context_len=rng.randint(3, 300),
                    expected_acceptance=[rng.random() for _ in range(judged)],
                    draft_entropy=[4 * rng.random() for _ in range(compared)],
                    target_entropy=[4 * rng.random() for _ in range(compared)],
                    kl_target_draft=[2 * rng.random() for _ in range(compared)],
                    target_rank_in_draft=[rng.randint(1, 40) for _ in range(compared)],
                )
            )
        spent = 0.01 + 0.002 * len(rounds) * rng.uniform(0.5, 1.5)  # seconds
        category = rng.choice(["code", "prose"])
        requests.append(request_of(rounds, request_id=f"r{index}", category=category, engine_s=spent))
    return requests


def provenance_of(*, drafted: bool) -> Provenance:
    return Provenance(
        versions=Versions(spec_harness="0", python="3", torch="2", transformers="5", lightning="2"),
        device="a processor",
        threads=1,
        seeds={"seed": 0},
        target=ModelIdentity(name="tiny-target", dtype="float32"),
        draft=ModelIdentity(name="tiny-draft", dtype="float32") if drafted else None,
        proposer=ProposerIdentity(name="draft_model", label="tiny-draft")
        if drafted
        else ProposerIdentity(name="none", label="no proposals"),
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
        duration_s=1.5,
    )


def header_of(num_sequences: int, *, max_proposal_len: int, **changes: Any) -> RunHeader:
    values: dict[str, Any] = {
        "config": {"proposal": {"max_proposal_len": max_proposal_len}},
        "provenance": provenance_of(drafted=max_proposal_len > 0),
        "integrity": "quick",
        "max_proposal_len": max_proposal_len,
        "runs": ["speculative", "baseline"],
        "num_sequences": num_sequences,
    }
    return RunHeader(**(values | changes))


def results_of(requests: list[RequestRecord], *, max_proposal_len: int, **changes: Any) -> RunResults:
    counts = counts_by_request(requests, max_proposal_len=max_proposal_len)
    pooled = sum(counts.values(), ProposalCounts(max_proposal_len=max_proposal_len))
    speculative = 1412.3 if max_proposal_len else None
    share = TimeShare(prefill=0.05, propose=0.3, score=0.5, verify=0.06, commit=0.04, scheduler=0.05)
    values: dict[str, Any] = {
        "status": "done",
        "mode": "run",
        "config": {"proposal": {"max_proposal_len": max_proposal_len}},
        "provenance": provenance_of(drafted=max_proposal_len > 0),
        "integrity": IntegrityResults(
            level="full",
            checks=[Check(name="paged against dense logits", figure=1e-6, tolerance=1e-4, verdict="pass")],
            baseline_equality=BaselineEquality(equal=6, tie=1, fault=0) if max_proposal_len else None,
        ),
        "proposal": proposal_results(pooled, counts.values()),
        "timing": TimingResults(
            speculative_tokens_per_second=Estimate(value=speculative, n=7),
            baseline_tokens_per_second=Estimate(value=1110.2, n=7),
            speedup=Estimate(value=1.27 if max_proposal_len else None, n=7),
            time_share=share if max_proposal_len else None,
            time_to_first_token=latency([0.01, 0.02]),
            time_per_output_token=latency([0.002, 0.003]),
        ),
        "kv": KVResults(block_size=16, num_blocks=64, blocks_allocated_peak=12, utilization=0.9, preemptions=0),
        "breakdowns": breakdowns(requests, max_proposal_len=max_proposal_len),
        "notes": ["a note"],
    }
    if changes.get("config", {}).get("proposal", {}).get("kind") == "ngram":
        proposer = ProposerIdentity(name="ngram", label="n-gram lookup")
        values["provenance"] = values["provenance"].model_copy(update={"draft": None, "proposer": proposer})
    return RunResults(**(values | changes))


CONFIG: dict[str, Any] = {
    "target": {
        "kind": "hf",
        "path": "models/target",
        "revision": None,
        "max_model_len": None,
        "trust_remote_code": False,
    },
    "draft": {"kind": "hf", "path": "models/draft"},
    "sampling": {"temperature": 0.7, "top_k": None, "top_p": 1.0, "seed": 0, "max_new_tokens": 64, "stop": [], "n": 1},
    "proposal": {"kind": "draft_model", "max_proposal_len": 4},
    "logger": {"kinds": []},
}


def config(**changes: Any) -> dict[str, Any]:
    """``CONFIG`` with changes by key, dots as two underscores."""
    made: dict[str, Any] = json.loads(json.dumps(CONFIG))
    for key, value in changes.items():
        section, name = key.split("__")
        made[section][name] = value
    return made


def save_run(
    folder: Path,
    requests: Sequence[RequestRecord] | None = None,
    *,
    overrides: Sequence[str] = (),
    error: str | None = None,
    **sections: Any,
) -> Path:
    folder.mkdir(parents=True)
    records = random_requests(0, max_proposal_len=4, num_requests=10) if requests is None else list(requests)
    files = RunFiles(folder, header_of(len(records), max_proposal_len=4, config=sections.get("config", config())))
    for record in records:
        files.add("speculative", record)
    files.finalize(records)
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "overrides.yaml").write_text("".join(f"- {text}\n" for text in overrides) or "[]\n")
    status = StatusFile(folder / "status.json", requests_total=len(records))
    if error is not None:
        status.failed(error)
        return folder
    status.done()
    results = results_of(records, max_proposal_len=4, **{"config": config(), **sections})
    write_results(folder / "results.json", results)
    return folder
