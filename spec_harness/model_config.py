"""The draft and the target in the configuration, and what all of its groups share."""

import os
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from spec_harness.errors import UserError
from spec_harness.validation import Text

Count = Annotated[int, Field(ge=1)]
DType = Literal["auto", "float32", "bfloat16", "float16"]


class Group(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )


Info = Any  # pydantic's ValidationInfo, a protocol that cannot be checked at run time


def absolute(path: str, info: Info) -> str:
    """From where the user stood: a job may run in a directory of its own (``hydra.job.chdir``)."""
    cwd = (info.context or {}).get("cwd") or os.getcwd()
    return os.path.normpath(os.path.join(cwd, os.path.expanduser(path)))


def _absolute_if_path(path: str, info: Info) -> str:
    """What does not exist and is not written like a path is a hub id."""
    folder = absolute(path, info)
    return folder if path.startswith(("/", "./", "../", "~")) or os.path.exists(folder) else path


class ModelConfig(Group):
    """A model: from a folder or a hub id, packaged, or with random weights. ``group`` is its prefix in messages."""

    group: ClassVar[str]

    # tiny: the packaged one · hf: `path` · random: weights from `config` · self (draft only) · memory: from Python only
    kind: str = "tiny"
    # Hub id or folder; with kind tiny it replaces the packaged model, and the kind becomes hf; with kind memory a name.
    path: Annotated[Text, AfterValidator(_absolute_if_path)] | None = None
    revision: Text | None = None  # branch, tag or commit on the hub
    dtype: DType = "auto"  # auto: float32 on CPU, the file's own on GPU
    max_model_len: Count | None = None  # tokens; null: the model's own maximum
    trust_remote_code: bool = False  # run Python code that comes with the model
    allow_pickle: bool = False  # load pickled weights, which can run code
    config: dict[str, Any] = Field(default_factory=dict)  # kind random: transformers' config, with its model_type
    seed: int = Field(default=0, ge=0, le=2**63 - 1)  # kind random: of the weights

    @model_validator(mode="before")
    @classmethod
    def _path_replaces_the_packaged_model(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("path") is not None and values.get("kind", "tiny") == "tiny":
            return {**values, "kind": "hf"}
        return values

    @model_validator(mode="after")
    def _every_key_is_read(self) -> "ModelConfig":
        """A key that this kind of model does not read would be ignored in silence."""
        group, name = self.group, f"{self.group}={self.kind}"
        if self.kind == "hf" and self.path is None:
            raise UserError(f"{group}.path is missing: {name} needs a hub id or a folder")
        if self.kind in ("self", "random") and self.path is not None:
            raise UserError(f"{group}.path is not read with {name}; use {group}=hf {group}.path={self.path}")
        if self.revision is not None and self.kind != "hf":
            raise UserError(f"{group}.revision is only read with {group}=hf, not with {name}")
        if self.kind == "self" and self.dtype != "auto":
            raise UserError(
                f"{group}.dtype is not read with {name}, which shares the target's weights; set target.dtype"
            )
        if self.kind == "memory" and self.dtype != "auto":
            raise UserError(f"{group}.dtype is not read with {name}: a model in memory has its own")
        if self.kind != "random" and self.config:
            raise UserError(f"{group}.config is only read with {group}=random, not with {name}")
        if self.kind == "random" and "model_type" not in self.config:
            raise UserError(f"{group}.config.model_type is missing: {name} needs one, for example llama")
        return self

    def check_path(self) -> None:
        """An absolute path must be a folder; anything else may be a hub id, which costs a look-up."""
        if self.kind == "memory" or self.path is None or not os.path.isabs(self.path) or os.path.isdir(self.path):
            return
        if os.path.exists(self.path):
            raise UserError(f"{self.group}.path: {self.path} is not a folder; give the folder that holds the model")
        raise UserError(f"{self.group}.path: {self.path} does not exist; give a folder, or a hub id such as org/name")


class DraftConfig(ModelConfig):
    """The draft model: the cheap proposer."""

    group: ClassVar[str] = "draft"
    kind: Literal["tiny", "hf", "self", "random", "memory"] = "tiny"


class TargetConfig(ModelConfig):
    """The target model: the one whose output is wanted."""

    group: ClassVar[str] = "target"
    kind: Literal["tiny", "hf", "random", "memory"] = "tiny"
