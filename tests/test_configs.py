"""Every configuration that ships composes, converts, and is described by the help."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from spec_harness.cli.application import CONFIG_NAME, VERSION_BASE, conf_dir, register_schema
from spec_harness.cli.command_line import parse
from spec_harness.cli.compose import to_config
from spec_harness.config import EvalConfig
from spec_harness.errors import UserError

GROUPS = ("draft", "target", "kv_cache", "proposal", "sampling", "data", "trainer", "logger", "experiment")
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((conf_dir() / group).glob("*.yaml"))]
REQUIRED = {
    "draft=hf": "draft.path=org/name",
    "target=hf": "target.path=org/name",
    "data=jsonl": "data.path=prompts.jsonl",
    "proposal=custom": "proposal._target_=my_module.MyProposer",
}
HEAVY = ("torch", "lightning", "transformers", "wandb", "pandas")


@pytest.fixture(autouse=True)
def hydra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    register_schema()
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        yield


def composed(*overrides: str) -> DictConfig:
    return compose(CONFIG_NAME, overrides=list(overrides))


def config(*overrides: str) -> EvalConfig:
    return to_config(composed(*overrides), overrides)


def test_every_yaml_is_an_option_of_a_known_group() -> None:
    found = {path.relative_to(conf_dir()).as_posix() for path in conf_dir().rglob("*.yaml")}
    known = {f"{group}/{option}.yaml" for group, option in OPTIONS}
    assert found - known == {"eval.yaml", "hydra/help/spec_eval.yaml"}


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_each_option_converts(group: str, option: str) -> None:
    override = f"{group}={option}"
    extra = [REQUIRED[override]] if override in REQUIRED else []
    assert isinstance(config(override, *extra), EvalConfig)


def test_defaults_of_the_files_are_those_of_the_classes() -> None:
    assert config() == EvalConfig()


def test_what_ships_as_default() -> None:
    default = config()
    assert (default.draft.kind, default.target.kind, default.data.kind) == ("tiny", "tiny", "builtin")
    assert (default.proposal.max_proposal_len, default.kv_cache.block_size, default.max_num_seqs) == (4, 16, 8)
    assert (default.sampling.temperature, default.sampling.max_new_tokens) == (0.0, 64)
    assert (default.logger.kinds, default.logger.mode) == (["wandb"], "offline")


def test_wandb_mode_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    assert config().logger.mode == "online"


def test_sampling_seed_follows_the_seed() -> None:
    assert config("seed=3").sampling.seed == 3
    assert config("seed=3", "sampling.seed=4").sampling.seed == 4


@pytest.mark.parametrize("group", ["draft", "target"])
def test_a_path_replaces_the_packaged_model(group: str) -> None:
    model = getattr(config(f"{group}.path=org/name"), group)
    assert (model.kind, model.path) == ("hf", "org/name")


def test_a_path_replaces_the_packaged_prompts() -> None:
    assert config("data.path=prompts.jsonl").data.kind == "jsonl"


@pytest.mark.parametrize(
    ("override", "text"),
    [("draft.revision", "2.10"), ("target.revision", "12e4567"), ("data.category", "007"), ("logger.name", "7")],
)
def test_a_number_where_text_belongs_stays_as_it_was_written(override: str, text: str) -> None:
    model = [f"{override.partition('.')[0]}=hf", f"{override.partition('.')[0]}.path=org/name"]
    line = parse([*(model if "revision" in override else []), f"{override}={text}"])
    group, key = override.split(".")
    assert getattr(getattr(config(*line.overrides), group), key) == text


def test_groups_that_take_further_keys() -> None:
    assert config("trainer.limit_test_batches=2").trainer.model_dump()["limit_test_batches"] == 2
    own = config("proposal=custom", "proposal._target_=my_module.Mine", "proposal.args.window=3").proposal
    assert (own.kind, own.target_, own.args) == ("custom", "my_module.Mine", {"window": 3})


def test_random_model_takes_further_keys() -> None:
    draft = config("draft=random", "draft.config.hidden_size=32", "draft.config.rope_theta=1e4").draft
    assert (draft.config["hidden_size"], draft.config["rope_theta"]) == (32, 1e4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+draft.foo=1"], "draft.foo does not exist"),
        (["+foo=1"], "foo does not exist"),
        (["kv_cache.num_blocks=0"], "kv_cache.num_blocks must be at least 1, not 0"),
        (["kv_cache.gpu_memory_utilization=0"], "kv_cache.gpu_memory_utilization must be above 0 and at most 1"),
        (["draft=hf"], "draft.path is missing"),
        (["data=jsonl"], "data.path is missing"),
        (["draft=self", "draft.path=org/name"], "draft.path is not read with draft=self"),
        (["draft=self", "draft.dtype=float16"], "draft.dtype is not read with draft=self"),
        (["target.kind=self"], "target.kind must be one of tiny, hf, random, not self"),
        (["draft.revision=main"], "draft.revision is only read with draft=hf"),
        (["+draft.config.model_type=llama"], "draft.config is only read with draft=random"),
        (["proposal=none", "proposal.max_proposal_len=2"], "proposal.max_proposal_len must be 0 with proposal=none"),
        (["proposal.draft_temperature=1"], "only read with proposal.draft_sampling=custom"),
        (["proposal.draft_sampling=custom"], "proposal.draft_temperature is missing"),
        (["proposal.draft_sampling=beam"], "proposal.draft_sampling must be one of same, greedy, custom, not beam"),
        (["sampling.temperature=nan"], "sampling.temperature must be 0 (greedy) or a finite number"),
        (["sampling.top_k=0"], "sampling.top_k must be at least 1, not 0"),
        (["sampling.stop=['']"], "sampling.stop must not hold an empty text"),
        (["trainer.devices=2"], "trainer.devices must be 1, not 2"),
        (["logger.kinds=[tensorboard]"], "logger.kinds[0] must be one of wandb, csv, not tensorboard"),
        (["logger.mode=maybe"], "logger.mode must be one of online, offline, disabled, not maybe"),
        (["max_num_seqs=true"], "max_num_seqs must be a whole number, not true"),
        (["kv_cache.num_blocks=1.5"], "kv_cache.num_blocks must be a whole number or null, not 1.5"),
        (["sampling.top_p=true"], "sampling.top_p must be a number, not true"),
        (["proposal=custom"], "proposal._target_ is missing"),
        (["proposal._target_=my.Own"], "proposal._target_ is only read with proposal=custom"),
        (["trainer.precision=16"], "trainer.precision cannot be set: autocast would bypass"),
        (["mode=trace"], "mode must be run, not trace"),
        (["integrity=none"], "integrity must be one of full, quick, off, not none"),
        (["target.max_model_len=4"], "proposal.max_proposal_len must be below target.max_model_len (4), not 4"),
    ],
)
def test_refused_values_name_their_key(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config(*overrides)
    assert message in str(caught.value)


def test_help_names_every_option_and_no_other_group() -> None:
    help_text = compose(CONFIG_NAME, return_hydra_config=True).hydra.help.template
    groups = help_text.partition("Choose one option")[2].partition("Often changed")[0]
    words = set(groups.replace(",", " ").replace("(", " ").split())
    assert set(GROUPS) <= words
    assert {option for _, option in OPTIONS} <= words


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"], ["kv_cache.block_size=0"]])
def test_nothing_heavy_is_imported_before_a_run(arguments: list[str], tmp_path: Path) -> None:
    script = (
        "import sys; from spec_harness.cli.evaluate import main; main(sys.argv[1:]);"
        f"print('loaded:', [name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.endswith("loaded: []\n")
    assert list(tmp_path.iterdir()) == []
