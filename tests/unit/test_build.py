"""What `build` makes of a configuration: the size of the pool, lengths, samplers, passes."""

import json
from pathlib import Path
from typing import Any

import pytest

from spec_harness.build import Evaluation, build
from spec_harness.config import EvalConfig
from spec_harness.engine import SamplerSettings
from spec_harness.errors import UserError
from spec_harness.results.timing import BASELINE, SPECULATIVE
from spec_harness.validation import validated
from tests.run_helpers import random_checkpoint

MODEL_MAX = 256  # tokens, of the helpers' tiny model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Prompts of 1 to 3 tokens, the longest output asked for by the second."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "import"}\n{"prompt": "import", "max_new_tokens": 40}\n{"prompt": "import os\\n"}\n')
    return path


def config(folder: Path, rows: Path, **sections: Any) -> EvalConfig:
    given: dict[str, Any] = {"draft": {"kind": "self"}, "data": {"path": str(rows)}, **sections}
    given["target"] = {"path": str(folder), **sections.get("target", {})}
    return validated(EvalConfig, given)


def prompt_lens(evaluation: Evaluation) -> list[int]:
    return [len(request.prompt_token_ids) for request in evaluation.requests]


def test_requests_take_their_own_budget_before_the_run_s(target: Path, rows: Path) -> None:
    evaluation = build(config(target, rows, sampling={"max_new_tokens": 10}))
    assert [request.sampling.max_new_tokens for request in evaluation.requests] == [10, 40, 10]
    assert [request.request_id for request in evaluation.requests] == ["line-1", "line-2", "line-3"]


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_the_pool_holds_as_many_of_the_largest_request_as_may_run(
    target: Path, rows: Path, block_size: int, max_num_seqs: int
) -> None:
    kv_cache = {"block_size": block_size}
    evaluation = build(
        config(target, rows, kv_cache=kv_cache, max_num_seqs=max_num_seqs, sampling={"max_new_tokens": 10})
    )
    slots = prompt_lens(evaluation)[1] + 40 - 1  # the last token's keys and values are never written
    assert evaluation.settings.num_blocks == max_num_seqs * -(-slots // block_size)
    assert evaluation.settings.block_size == block_size


def test_the_pool_is_never_sized_beyond_the_target_s_maximum(target: Path, rows: Path) -> None:
    evaluation = build(config(target, rows, sampling={"max_new_tokens": 10_000}, max_num_seqs=1))
    assert evaluation.settings.num_blocks == MODEL_MAX // 16
    assert [request.sampling.max_new_tokens for request in evaluation.requests] == [10_000, 40, 10_000]


def test_later_turns_may_need_the_target_s_maximum(target: Path, rows: Path) -> None:
    rows.write_text('{"turns": ["a", "b"]}\n')
    evaluation = build(config(target, rows, sampling={"max_new_tokens": 4}, max_num_seqs=2))
    assert evaluation.settings.num_blocks == MODEL_MAX // 16  # one conversation runs one request at a time
    rows.write_text('{"turns": ["a", "b"]}\n{"turns": ["c", "d"]}\n')
    evaluation = build(config(target, rows, sampling={"max_new_tokens": 4}, max_num_seqs=2))
    assert evaluation.settings.num_blocks == 2 * MODEL_MAX // 16
    rows.write_text('{"turns": ["a"]}\n')
    assert build(config(target, rows, sampling={"max_new_tokens": 4}, max_num_seqs=2)).settings.num_blocks < 4


def test_a_pool_of_just_the_largest_request_is_taken_and_a_smaller_one_refused(target: Path, rows: Path) -> None:
    def with_blocks(count: int) -> Evaluation:
        return build(config(target, rows, kv_cache={"block_size": 4, "num_blocks": count}, max_num_seqs=8))

    needed = -(-(prompt_lens(build(config(target, rows)))[2] + 64 - 1) // 4)
    assert with_blocks(needed).settings.num_blocks == needed
    with pytest.raises(UserError, match=rf"num_blocks={needed - 1} is too small: the largest request needs {needed}"):
        with_blocks(needed - 1)


def test_proposals_must_be_shorter_than_either_model(target: Path, rows: Path) -> None:
    def with_k(k: int, draft_max: int | None = None) -> Evaluation:
        return build(
            config(target, rows, proposal={"max_proposal_len": k}, draft={"kind": "self", "max_model_len": draft_max})
        )

    assert with_k(MODEL_MAX - 1).settings.max_proposal_len == MODEL_MAX - 1
    with pytest.raises(UserError, match="below the target's maximum of 256 tokens"):
        with_k(MODEL_MAX)
    assert with_k(7, draft_max=8).settings.max_proposal_len == 7
    with pytest.raises(UserError, match=r"below draft.max_model_len \(8\), not 8"):
        with_k(8, draft_max=8)


@pytest.mark.parametrize(
    ("proposal", "expected"),
    [
        ({"draft_sampling": "same"}, SamplerSettings(temperature=0.7, top_k=5, top_p=0.9)),
        ({"draft_sampling": "greedy"}, SamplerSettings()),
        ({"draft_sampling": "custom", "draft_temperature": 0.3}, SamplerSettings(temperature=0.3)),
        (
            {"draft_sampling": "custom", "draft_temperature": 2.0, "draft_top_k": 3, "draft_top_p": 0.5},
            SamplerSettings(temperature=2.0, top_k=3, top_p=0.5),
        ),
        ({"draft_sampling": "custom", "draft_temperature": 0.0}, SamplerSettings()),
    ],
)
def test_how_the_draft_draws(target: Path, rows: Path, proposal: dict[str, Any], expected: SamplerSettings) -> None:
    sampling = {"temperature": 0.7, "top_k": 5, "top_p": 0.9}
    settings = build(config(target, rows, proposal=proposal, sampling=sampling)).settings
    assert settings.target_sampling == SamplerSettings(temperature=0.7, top_k=5, top_p=0.9)
    assert settings.draft_sampling == expected


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({}, [SPECULATIVE, BASELINE]),
        ({"baseline": "off"}, [SPECULATIVE]),
        ({"proposal": {"kind": "none", "max_proposal_len": 0}}, [BASELINE]),
    ],
)
def test_the_engine_runs(target: Path, rows: Path, sections: dict[str, Any], names: list[str]) -> None:
    evaluation = build(config(target, rows, **sections))
    assert [item.name for item in evaluation.runs] == names
    assert len(evaluation.data.test_dataloader()) == len(names)
    assert (evaluation.draft is None) == (SPECULATIVE not in names)


def test_without_a_proposer_no_draft_is_loaded(target: Path, rows: Path) -> None:
    proposal = {"kind": "none", "max_proposal_len": 0}
    evaluation = build(config(target, rows, proposal=proposal, draft={"kind": "hf", "path": "nobody/nothing"}))
    assert evaluation.draft is None
    assert evaluation.settings.max_proposal_len == 0


def test_self_draft_shares_the_target_s_weights(target: Path, rows: Path) -> None:
    evaluation = build(config(target, rows, target={"max_model_len": 64}))
    assert evaluation.draft is not None
    assert evaluation.draft.model is evaluation.target.model
    assert (evaluation.target.max_model_len, evaluation.draft.max_model_len) == (64, 64)


def test_end_of_sequence_ids_are_the_generation_config_s(target: Path, rows: Path, tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path / "ends")
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [7, 9], "repetition_penalty": 1.2}))
    evaluation = build(config(folder, rows))
    assert {request.sampling.stop_token_ids for request in evaluation.requests} == {frozenset({7, 9})}
    assert evaluation.header.notes == [
        "The checkpoint's generation config asks for repetition_penalty=1.2; it is not applied."
    ]
    ignoring = build(config(folder, rows, sampling={"ignore_eos": True}))
    assert {request.sampling.stop_token_ids for request in ignoring.requests} == {frozenset()}


def test_a_prompt_at_the_target_s_maximum_is_refused_with_its_file(target: Path, rows: Path) -> None:
    length = prompt_lens(build(config(target, rows)))[2]
    fits = {"max_model_len": length + 1}
    assert prompt_lens(build(config(target, rows, target=fits, proposal={"max_proposal_len": 1})))[2] == length
    tight = {"max_model_len": length}
    with pytest.raises(UserError, match=rf"rows.jsonl: prompt 'line-3' has {length} tokens"):
        build(config(target, rows, target=tight, proposal={"max_proposal_len": 1}))


def test_a_gpu_that_is_not_there(target: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="trainer=gpu: this machine has no CUDA device"):
        build(config(target, rows, trainer={"accelerator": "gpu"}))
