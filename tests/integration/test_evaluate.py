"""The Python face: the same figures as the command's, from models in memory, without Hydra and without files."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

import spec_harness
from spec_harness.errors import UserError
from spec_harness.report.load import load_run
from spec_harness.results.schema import RunResults
from tests.helpers import noisy_copy, tiny_loaded
from tests.run_helpers import packaged_tokenizer, spec_eval, write_jsonl

pytestmark = pytest.mark.usefixtures("clean_process")

PROMPTS = ["import os\n", "def add(a, b):\n", "class A:\n", "for i in range(10):\n"]
SMALL: dict[str, Any] = {"sampling": {"max_new_tokens": 8}, "integrity": "off"}


@pytest.fixture(scope="module")
def pair() -> tuple[PreTrainedModel, PreTrainedModel]:
    tokenizer = packaged_tokenizer()
    target = tiny_loaded(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    draft = noisy_copy(target, scale=0.02)
    for loaded in (target, draft):
        loaded.model.set_attn_implementation("eager")
    return target.model, draft.model


def counts(results: RunResults) -> dict[str, Any]:
    section = results.proposal.model_dump()
    return {key: value for key, value in section.items() if isinstance(value, int | list)}


def test_models_in_memory_give_the_counts_of_the_command_on_their_folders(
    pair: tuple[PreTrainedModel, PreTrainedModel],
) -> None:
    target, draft = pair
    target.train()
    results = spec_harness.evaluate(
        target=(target, packaged_tokenizer()), draft=draft, prompts=PROMPTS, max_proposal_len=3, **SMALL
    )
    assert list(Path.cwd().iterdir()) == []  # no directory was asked for
    assert (target.training, target.config._attn_implementation) == (True, "eager")  # as they were
    assert draft.config._attn_implementation == "eager"
    assert results.proposal.num_accepted_tokens > 0
    for model, folder in ((target, "target"), (draft, "draft")):
        model.save_pretrained(folder)
        packaged_tokenizer().save_pretrained(folder)
    write_jsonl(Path("prompts.jsonl"), [{"prompt": prompt} for prompt in PROMPTS])
    models = ("target.path=target", "draft.path=draft", "data.path=prompts.jsonl")
    assert spec_eval(*models, "proposal.max_proposal_len=3", "sampling.max_new_tokens=8") == 0
    command = load_run("run").results
    assert counts(results) == counts(command)
    assert results.provenance.prompts_sha256 == command.provenance.prompts_sha256
    folders = spec_harness.evaluate(
        target="target", draft=Path("draft"), prompts="prompts.jsonl", max_proposal_len=3, output_dir="out", **SMALL
    )
    assert counts(folders) == counts(command)
    files = {path.name for path in Path("out").iterdir()}
    assert files >= {
        "results.json",
        "report.md",
        "requests.parquet",
        "rounds.parquet",
        "round_log.jsonl",
        "status.json",
    }
    assert load_run("out").results == folders


def test_the_same_model_twice_is_its_own_draft(pair: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    target, _ = pair
    results = spec_harness.evaluate(target=(target, packaged_tokenizer()), draft=target, prompts=PROMPTS[:2], **SMALL)
    assert results.proposal.acceptance_rate.value == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": []}, "prompts is empty"),
        ({"prompts": ["a", {"turns": "b"}]}, "prompts, line 2: turns must be a list"),
        ({"max_proposal_len": "many"}, "proposal.max_proposal_len must be a whole number"),
        ({"max_num_seq": 3}, "max_num_seq does not exist; did you mean max_num_seqs?"),
        ({"logger": {"kinds": ["csv"]}}, "give an output_dir"),
        (
            {"trainer": {"limit_batches": 2}, "prompts": ["a"]},
            "trainer.limit_batches does not exist; did you mean trainer.limit_",
        ),
        ({"trainer": {"limit_test_batches": -1}, "prompts": ["a"]}, "trainer: You have passed invalid value -1"),
        ({"trainer": {"limit_test_batches": 0}, "prompts": ["a"]}, "leaves nothing to run"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing_behind(arguments: dict[str, Any], message: str) -> None:
    out = {} if "logger" in arguments else {"output_dir": "out"}
    with pytest.raises(UserError) as caught:
        spec_harness.evaluate(**{**SMALL, "baseline": "off", **out, **arguments})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(Path.cwd().iterdir()) == []


def test_parts_in_eval_mode_stay_so(pair: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    target, draft = pair
    target.train().get_decoder().norm.eval()
    before = [module.training for module in target.modules()]
    spec_harness.evaluate(target=(target, packaged_tokenizer()), draft=draft, prompts=PROMPTS[:1], **SMALL)
    assert [module.training for module in target.modules()] == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": {"prompt": "x"}}, "prompts must be a list"),  # its keys were taken for prompts
        ({"prompts": ["x", 5]}, "prompts, line 2: must be a text or a mapping, not 5"),
        ({"proposal": "ngram"}, "proposal must be a group of keys, not ngram"),
        ({"target": ("path", None)}, "target: a tuple must be"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec_harness.evaluate(**SMALL, **arguments)


def test_a_model_in_memory_needs_a_tokenizer(pair: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    with pytest.raises(UserError, match=r"target=\(model, tokenizer\)"):
        spec_harness.evaluate(target=pair[0], prompts=["a"])


def test_importing_the_package_imports_nothing_heavy_and_runs_need_no_hydra() -> None:
    script = """
import sys, spec_harness
print([name for name in ("torch", "pandas", "pydantic", "hydra") if name in sys.modules])
for name in spec_harness.__all__: getattr(spec_harness, name)
results = spec_harness.evaluate(prompts=["import os"], sampling={"max_new_tokens": 4}, integrity="off", baseline="off")
print(results.proposal.num_requests, "hydra" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, env=os.environ)
    assert run.stdout.splitlines() == ["[]", "1 False"], run.stderr
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        spec_harness.nothing  # noqa: B018
