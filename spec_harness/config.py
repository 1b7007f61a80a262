"""The configuration: its keys, their types and units, and every check that needs no model and no file.

The only schema of it: the command line, a YAML file and a Python caller all pass through these classes. What needs a
model to judge (vocabularies, the size of the pool) is checked later, by whoever has it.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from spec_harness.errors import UserError
from spec_harness.model_config import Count, DraftConfig, Group, TargetConfig, absolute
from spec_harness.validation import Finite, Probability, Share, Temperature, Text

LoggerKind = Literal["wandb", "csv"]
_LARGEST = 2**31 - 1  # no count here comes near it; beyond, sizes would overflow


class KVCacheConfig(Group):
    """The paged cache of keys and values; draft and target have the same number of blocks."""

    block_size: int = Field(default=16, ge=1, le=2**16)  # tokens
    # Usable blocks (block 0 comes on top); null: sized by the harness.
    num_blocks: Annotated[int, Field(ge=1, le=_LARGEST)] | None = None
    preemption: Literal["recompute", "swap"] = "recompute"  # of the newest sequence, when blocks run out
    swap_space_gib: Finite = 1.0  # GiB of host memory for swapped blocks, at most
    gpu_memory_utilization: Share = 0.9  # share of the GPU's memory; read on a GPU with num_blocks null


class ProposalConfig(Group):
    """Who proposes, how many tokens, and how they are drawn."""

    # draft_model · ngram: prompt lookup · none: the target alone · custom: your own class, `_target_`
    kind: Literal["draft_model", "ngram", "none", "custom"] = "draft_model"
    max_proposal_len: int = Field(default=4, ge=0)  # tokens; upper bound for one sequence in one round
    min_draft_prob: Probability = 0.0  # a proposal ends where the draft's largest probability is below this
    disable_above_batch: Count | None = None  # nothing is proposed while more sequences than this run
    ngram_max: Count = 3  # tokens, with kind ngram: the longest window looked up
    ngram_min: Count = 1  # tokens, with kind ngram: the shortest
    draft_sampling: Literal["same", "greedy", "custom"] = "same"  # same: as the target · custom: the three keys below
    draft_temperature: Temperature | None = None  # with draft_sampling=custom; 0 is greedy
    draft_top_k: Count | None = None  # tokens, with draft_sampling=custom; null: all
    draft_top_p: Share | None = None  # probability mass, with draft_sampling=custom; null: 1
    target_: Text | None = Field(default=None, alias="_target_")  # kind custom: my_module.MyProposer
    args: dict[str, Any] = Field(default_factory=dict)  # kind custom: keyword arguments of that class

    @model_validator(mode="after")
    def _every_key_is_read(self) -> "ProposalConfig":
        if self.kind == "none" and self.max_proposal_len > 0:
            raise UserError(
                "proposal.max_proposal_len must be 0 with proposal=none, which proposes nothing, "
                f"not {self.max_proposal_len}"
            )
        if self.ngram_max < self.ngram_min:
            raise UserError(f"proposal.ngram_max must be at least {self.ngram_min}, not {self.ngram_max}")
        if self.kind == "custom" and self.target_ is None:
            raise UserError("proposal._target_ is missing: proposal=custom needs a class such as my_module.MyProposer")
        if self.kind != "custom":
            for key, value in (("_target_", self.target_), ("args", self.args)):
                if value:
                    raise UserError(f"proposal.{key} is only read with proposal=custom, not with proposal={self.kind}")
        if self.draft_sampling == "custom":
            if self.draft_temperature is None:
                raise UserError("proposal.draft_temperature is missing: proposal.draft_sampling=custom needs it")
            return self
        for key in ("draft_temperature", "draft_top_k", "draft_top_p"):
            if getattr(self, key) is not None:
                raise UserError(
                    f"proposal.{key} is only read with proposal.draft_sampling=custom, not {self.draft_sampling}"
                )
        return self


class SamplingConfig(Group):
    """How the target's tokens are chosen, and when a request ends."""

    temperature: Temperature = 0.0  # 0 is greedy
    top_k: Count | None = None  # tokens; null: all
    top_p: Share = 1.0  # probability mass
    seed: int = 0  # of the requests' random streams
    max_new_tokens: int = Field(default=64, ge=1, le=_LARGEST)  # tokens of one request
    ignore_eos: bool = False  # go on after an end-of-sequence token
    n: Count = 1  # samples of each prompt
    num_beams: int = 1  # beam search is not there
    stop: list[str] = Field(default_factory=list)  # texts that end a request; \n and \t in them are line ends and tabs

    @field_validator("stop")
    @classmethod
    def _unescape(cls, stop: list[str]) -> list[str]:
        """The command line has no escapes of its own, and line ends are the commonest stops."""
        if "" in stop:
            raise UserError("sampling.stop must not hold an empty text, which would end every request at once")
        return [text.replace("\\n", "\n").replace("\\t", "\t") for text in stop]

    @model_validator(mode="after")
    def _samples_differ(self) -> "SamplingConfig":
        if self.n > 1 and self.temperature == 0:
            raise UserError(
                f"sampling.n must be 1 with sampling.temperature=0, not {self.n}: all samples would be equal"
            )
        if self.num_beams != 1:
            raise UserError(
                f"sampling.num_beams must be 1, not {self.num_beams}: beam search reorders its beams between "
                "tokens, so no proposal of one could be verified; use sampling.n for several samples"
            )
        return self


class DataConfig(Group):
    """The prompts."""

    kind: Literal["builtin", "jsonl"] = "builtin"  # builtin: the packaged prompts · jsonl: `path`
    # JSONL file; with kind builtin it replaces the packaged prompts, and the kind becomes jsonl.
    path: Annotated[Text, AfterValidator(absolute)] | None = None
    limit: Count | None = None  # requests, the first ones; null: all
    category: Text | None = None  # only the prompts of this category; null: all
    chat_template: Literal["auto", "off"] = "auto"  # auto: where the tokenizer has one · off: prompts as they are

    @model_validator(mode="before")
    @classmethod
    def _path_replaces_the_packaged_prompts(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("path") is not None and values.get("kind") in ("builtin", None):
            return {**values, "kind": "jsonl"}
        return values

    @model_validator(mode="after")
    def _has_a_file(self) -> "DataConfig":
        if self.kind == "jsonl" and self.path is None:
            raise UserError("data.path is missing: data=jsonl needs a JSONL file of prompts")
        return self


_NOT_OF_THE_TRAINER = {
    "precision": "autocast would bypass the check of the KV cache; set target.dtype",
    "logger": "set the logger group, for example logger=csv",
    "default_root_dir": "set hydra.run.dir",
    "strategy": "a run uses one process",
    "num_nodes": "a run uses one process",
}


class TrainerConfig(Group):
    """Arguments of ``lightning.Trainer``: these, and any other of its own."""

    model_config = ConfigDict(extra="allow")

    accelerator: Literal["cpu", "gpu"] = "cpu"
    devices: int = 1  # processes; more than one is not supported yet
    enable_progress_bar: bool = True

    @model_validator(mode="after")
    def _one_process_in_its_own_dtype(self) -> "TrainerConfig":
        if self.devices != 1:
            raise UserError(f"trainer.devices must be 1, not {self.devices}: a run uses one device")
        for key in self.model_extra or {}:
            if key in _NOT_OF_THE_TRAINER:
                raise UserError(f"trainer.{key} cannot be set: {_NOT_OF_THE_TRAINER[key]}")
        return self


class LoggerConfig(Group):
    """Where the figures go besides the run's own files."""

    kinds: list[LoggerKind] = Field(default_factory=lambda: list[LoggerKind](["wandb"]))
    mode: Literal["online", "offline", "disabled"] = "offline"  # of W&B
    project: Text = "spec_harness"
    group: Text | None = None  # null: the sweep's directory, none for a single run
    tags: list[Text] = Field(default_factory=list)
    name: Text | None = None  # null: made from the configuration


class EvalConfig(Group):
    """Everything that one run of `spec-eval` depends on."""

    draft: DraftConfig = DraftConfig()
    target: TargetConfig = TargetConfig()
    kv_cache: KVCacheConfig = KVCacheConfig()
    proposal: ProposalConfig = ProposalConfig()
    sampling: SamplingConfig = SamplingConfig()
    data: DataConfig = DataConfig()
    trainer: TrainerConfig = TrainerConfig()
    logger: LoggerConfig = LoggerConfig()

    max_num_seqs: int = Field(default=8, ge=1, le=_LARGEST)  # sequences that run at the same time
    mode: Literal["run"] = "run"
    baseline: Literal["measure", "off"] = "measure"  # measure: the target alone on the same prompts, in the same run
    integrity: Literal["full", "quick", "off"] = "quick"  # checks of the engine on the run's own models
    objective: Text = "timing.speedup"  # key of results.json that a sweep optimizes
    seed: int = Field(default=0, ge=0, le=2**32 - 1)  # of everything random that has no seed of its own
    verbose: bool = True  # the progress bar and the summary in the terminal

    @model_validator(mode="after")
    def _lengths_fit(self) -> "EvalConfig":
        if self.sampling.n > self.max_num_seqs:
            raise UserError(f"sampling.n must be at most max_num_seqs ({self.max_num_seqs}), not {self.sampling.n}")
        for model in (self.draft, self.target):
            limit, k = model.max_model_len, self.proposal.max_proposal_len
            if self.proposal.kind != "none" and limit is not None and k >= limit:
                raise UserError(
                    f"proposal.max_proposal_len must be below {model.group}.max_model_len ({limit}), not {k}"
                )
        return self
