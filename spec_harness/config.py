"""The configuration: plain dataclasses that are Hydra's schemas, the types of the code and the checks of every value.

The classes are not frozen, because Hydra composes into them; nothing changes one after its construction. The checks run
when ``OmegaConf.to_object`` builds the classes, so that a composed but invalid configuration can still be shown. Their
messages carry the full key, as it is written on the command line. What needs a model or a file to judge (vocabularies,
the size of the pool) is checked later, by whoever has it.
"""

import math
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hydra.core.config_store import ConfigStore

from spec_harness.config_checks import check_choice, check_max, check_min, check_share, check_temperature, check_text
from spec_harness.errors import UserError

SCHEMA_NAME = "eval_schema"
_LARGEST = 2**31 - 1  # no count here comes near it; beyond, sizes would overflow
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass
class ModelConfig:
    """A model: from a folder or a hub id, packaged, or with random weights. ``group`` is its prefix in messages."""

    group: ClassVar[str] = ""
    kinds: ClassVar[tuple[str, ...]] = ()

    kind: str = "tiny"  # tiny: the packaged one · hf: `path` · random: weights from `config` · self (draft only)
    path: str | None = None  # hub id or folder; with kind tiny it replaces the packaged model, and the kind becomes hf
    revision: str | None = None  # branch, tag or commit on the hub
    dtype: str = "auto"  # auto: float32 on CPU, the file's own on GPU
    max_model_len: int | None = None  # tokens; null: the model's own maximum
    trust_remote_code: bool = False  # run Python code that comes with the model
    allow_pickle: bool = False  # load pickled weights, which can run code
    config: dict[str, Any] = field(default_factory=dict)  # kind random: transformers' config, with its model_type
    seed: int = 0  # kind random: of the weights

    def __post_init__(self) -> None:
        check_choice(f"{self.group}.kind", self.kind, self.kinds)
        check_choice(f"{self.group}.dtype", self.dtype, DTYPES)
        check_min(f"{self.group}.max_model_len", self.max_model_len, 1)
        check_min(f"{self.group}.seed", self.seed, 0)
        check_max(f"{self.group}.seed", self.seed, 2**63 - 1)
        if self.path is not None:
            check_text(f"{self.group}.path", self.path)
            self.path = os.path.expanduser(self.path)
            if self.kind == "tiny":
                self.kind = "hf"
        self._check_kind()

    def _check_kind(self) -> None:
        """A key that this kind of model does not read is refused: it would be ignored in silence."""
        name = f"{self.group}={self.kind}"
        if self.kind == "hf" and self.path is None:
            raise UserError(f"{self.group}.path is missing: {name} needs a hub id or a folder")
        if self.kind in ("self", "random") and self.path is not None:
            raise UserError(
                f"{self.group}.path is not read with {name}; use {self.group}=hf {self.group}.path={self.path}"
            )
        if self.revision is not None and self.kind != "hf":
            raise UserError(f"{self.group}.revision is only read with {self.group}=hf, not with {name}")
        if self.kind == "self" and self.dtype != "auto":
            raise UserError(
                f"{self.group}.dtype is not read with {name}, which shares the target's weights; set target.dtype"
            )
        if self.kind != "random" and self.config:
            raise UserError(f"{self.group}.config is only read with {self.group}=random, not with {name}")
        if self.kind == "random" and "model_type" not in self.config:
            raise UserError(f"{self.group}.config.model_type is missing: {name} needs one, for example llama")


@dataclass
class DraftConfig(ModelConfig):
    """The draft model: the cheap proposer."""

    group: ClassVar[str] = "draft"
    kinds: ClassVar[tuple[str, ...]] = ("tiny", "hf", "self", "random")


@dataclass
class TargetConfig(ModelConfig):
    """The target model: the one whose output is wanted."""

    group: ClassVar[str] = "target"
    kinds: ClassVar[tuple[str, ...]] = ("tiny", "hf", "random")


@dataclass
class KVCacheConfig:
    """The paged cache of keys and values; draft and target have the same number of blocks."""

    block_size: int = 16  # tokens
    num_blocks: int | None = None  # usable blocks (block 0 comes on top); null: sized by the harness
    preemption: str = "recompute"  # recompute · swap: of the newest sequence, when blocks run out
    swap_space_gib: float = 1.0  # GiB of host memory for swapped blocks, at most
    gpu_memory_utilization: float = 0.9  # share of the GPU's memory, 0 to 1; read on a GPU with num_blocks null

    def __post_init__(self) -> None:
        check_min("kv_cache.block_size", self.block_size, 1)
        check_max("kv_cache.block_size", self.block_size, 2**16)
        check_min("kv_cache.num_blocks", self.num_blocks, 1)
        check_max("kv_cache.num_blocks", self.num_blocks, _LARGEST)
        check_choice("kv_cache.preemption", self.preemption, ("recompute", "swap"))
        if not (math.isfinite(self.swap_space_gib) and self.swap_space_gib >= 0):
            raise UserError(f"kv_cache.swap_space_gib must be a number of at least 0, not {self.swap_space_gib}")
        check_share("kv_cache.gpu_memory_utilization", self.gpu_memory_utilization)


@dataclass
class ProposalConfig:
    """Who proposes, how many tokens, and how they are drawn."""

    kind: str = "draft_model"  # draft_model · ngram: prompt lookup · none: the target alone
    max_proposal_len: int = 4  # tokens; upper bound for one sequence in one round
    min_draft_prob: float = 0.0  # a proposal ends where the draft's largest probability is below this
    disable_above_batch: int | None = None  # nothing is proposed while more sequences than this run
    ngram_max: int = 3  # tokens, with kind ngram: the longest window looked up
    ngram_min: int = 1  # tokens, with kind ngram: the shortest
    draft_sampling: str = "same"  # same: as the target · greedy · custom: the three keys below
    draft_temperature: float | None = None  # with draft_sampling=custom; 0 is greedy
    draft_top_k: int | None = None  # tokens, with draft_sampling=custom; null: all
    draft_top_p: float | None = None  # probability mass, with draft_sampling=custom; null: 1

    def __post_init__(self) -> None:
        check_choice("proposal.kind", self.kind, ("draft_model", "ngram", "none"))
        check_min("proposal.max_proposal_len", self.max_proposal_len, 0)
        if self.kind == "none" and self.max_proposal_len > 0:
            raise UserError(
                "proposal.max_proposal_len must be 0 with proposal=none, which proposes nothing, "
                f"not {self.max_proposal_len}"
            )
        if not 0 <= self.min_draft_prob < 1:
            raise UserError(f"proposal.min_draft_prob must be at least 0 and below 1, not {self.min_draft_prob}")
        check_min("proposal.disable_above_batch", self.disable_above_batch, 1)
        check_min("proposal.ngram_min", self.ngram_min, 1)
        check_min("proposal.ngram_max", self.ngram_max, self.ngram_min)
        check_choice("proposal.draft_sampling", self.draft_sampling, ("same", "greedy", "custom"))
        check_temperature("proposal.draft_temperature", self.draft_temperature)
        check_min("proposal.draft_top_k", self.draft_top_k, 1)
        check_share("proposal.draft_top_p", self.draft_top_p)
        self._check_custom()

    def _check_custom(self) -> None:
        if self.draft_sampling == "custom":
            if self.draft_temperature is None:
                raise UserError("proposal.draft_temperature is missing: proposal.draft_sampling=custom needs it")
            return
        for key in ("draft_temperature", "draft_top_k", "draft_top_p"):
            if getattr(self, key) is not None:
                raise UserError(
                    f"proposal.{key} is only read with proposal.draft_sampling=custom, not {self.draft_sampling}"
                )


@dataclass
class SamplingConfig:
    """How the target's tokens are chosen, and when a request ends."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int | None = None  # tokens; null: all
    top_p: float = 1.0  # probability mass
    seed: int = 0  # of the requests' random streams
    max_new_tokens: int = 64  # tokens of one request
    ignore_eos: bool = False  # go on behind an end-of-sequence token
    n: int = 1  # samples of each prompt
    num_beams: int = 1  # beam search is not there
    stop: list[str] = field(default_factory=list)  # texts that end a request; \n and \t in them are line ends and tabs

    def __post_init__(self) -> None:
        check_temperature("sampling.temperature", self.temperature)
        check_min("sampling.top_k", self.top_k, 1)
        check_share("sampling.top_p", self.top_p)
        check_min("sampling.max_new_tokens", self.max_new_tokens, 1)
        check_max("sampling.max_new_tokens", self.max_new_tokens, _LARGEST)
        check_min("sampling.n", self.n, 1)
        if self.n > 1 and self.temperature == 0:
            raise UserError(
                f"sampling.n must be 1 with sampling.temperature=0, not {self.n}: all samples would be equal"
            )
        if self.num_beams != 1:
            raise UserError(
                f"sampling.num_beams must be 1, not {self.num_beams}: beam search reorders its beams between "
                "tokens, so no proposal of one could be verified; use sampling.n for several samples"
            )
        # The command line has no escapes of its own, and line ends are the commonest stops.
        self.stop = [text.replace("\\n", "\n").replace("\\t", "\t") for text in self.stop]
        if "" in self.stop:
            raise UserError("sampling.stop must not hold an empty text, which would end every request at once")


@dataclass
class DataConfig:
    """The prompts."""

    kind: str = "builtin"  # builtin: the packaged prompts · jsonl: `path`
    path: str | None = (
        None  # JSONL file; with kind builtin it replaces the packaged prompts, and the kind becomes jsonl
    )
    limit: int | None = None  # requests, the first ones; null: all
    category: str | None = None  # only the prompts of this category; null: all
    chat_template: str = "auto"  # auto: where the tokenizer has one · off: prompts as they are

    def __post_init__(self) -> None:
        check_choice("data.kind", self.kind, ("builtin", "jsonl"))
        check_min("data.limit", self.limit, 1)
        check_choice("data.chat_template", self.chat_template, ("auto", "off"))
        if self.path is not None:
            check_text("data.path", self.path)
            self.path = os.path.abspath(os.path.expanduser(self.path))
            self.kind = "jsonl"
        elif self.kind == "jsonl":
            raise UserError("data.path is missing: data=jsonl needs a JSONL file of prompts")


@dataclass
class TrainerConfig:
    """What ``lightning.Trainer`` is built with."""

    accelerator: str = "cpu"  # cpu · gpu
    devices: int = 1  # processes; more than one is not supported yet
    enable_progress_bar: bool = True

    def __post_init__(self) -> None:
        check_choice("trainer.accelerator", self.accelerator, ("cpu", "gpu"))
        if self.devices != 1:
            raise UserError(f"trainer.devices must be 1, not {self.devices}: a run uses one device")


@dataclass
class LoggerConfig:
    """Where the figures go besides the run's own files."""

    kinds: list[str] = field(default_factory=lambda: ["wandb"])  # any of wandb, csv
    mode: str = "offline"  # of W&B: online, offline, disabled
    project: str = "spec_harness"
    group: str | None = None  # null: the sweep's directory, none for a single run
    tags: list[str] = field(default_factory=list)
    name: str | None = None  # null: made from the configuration

    def __post_init__(self) -> None:
        for kind in self.kinds:
            check_choice("logger.kinds", kind, ("wandb", "csv"))
        check_choice("logger.mode", self.mode, ("online", "offline", "disabled"))
        check_text("logger.project", self.project)


@dataclass
class EvalConfig:
    """Everything that one run of `spec-eval` depends on."""

    draft: DraftConfig = field(default_factory=DraftConfig)
    target: TargetConfig = field(default_factory=TargetConfig)
    kv_cache: KVCacheConfig = field(default_factory=KVCacheConfig)
    proposal: ProposalConfig = field(default_factory=ProposalConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    data: DataConfig = field(default_factory=DataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)

    max_num_seqs: int = 8  # sequences that run at the same time
    mode: str = "run"
    baseline: str = "measure"  # measure: the target alone on the same prompts, in the same run · off
    integrity: str = "quick"  # checks of the engine on the run's own models: full · quick · off
    seed: int = 0  # of everything random that has no seed of its own
    verbose: bool = True  # the progress bar and the summary in the terminal

    def __post_init__(self) -> None:
        check_min("max_num_seqs", self.max_num_seqs, 1)
        check_max("max_num_seqs", self.max_num_seqs, _LARGEST)
        check_min("seed", self.seed, 0)
        check_max("seed", self.seed, 2**32 - 1)
        check_choice("mode", self.mode, ("run",))
        check_choice("baseline", self.baseline, ("measure", "off"))
        check_choice("integrity", self.integrity, ("full", "quick", "off"))
        if self.sampling.n > self.max_num_seqs:
            raise UserError(f"sampling.n must be at most max_num_seqs ({self.max_num_seqs}), not {self.sampling.n}")
        self._check_lengths()

    def _check_lengths(self) -> None:
        if self.proposal.kind == "none":
            return
        for model in (self.draft, self.target):
            if model.max_model_len is not None and self.proposal.max_proposal_len >= model.max_model_len:
                raise UserError(
                    f"proposal.max_proposal_len must be below {model.group}.max_model_len ({model.max_model_len}), "
                    f"not {self.proposal.max_proposal_len}"
                )


def register_schema() -> None:
    """Makes the schema known to Hydra, under the name that `conf/eval.yaml` starts from."""
    ConfigStore.instance().store(name=SCHEMA_NAME, node=EvalConfig, provider="spec_harness")
