"""Which code, models and machine a run's figures come from."""

import platform
import subprocess
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import torch

import spec_harness
from spec_harness.models.load import LoadedModel
from spec_harness.results.schema import ModelIdentity, ProposerIdentity, Provenance, Versions


def model_identity(loaded: LoadedModel, *, name: str, revision: str | None) -> ModelIdentity:
    return ModelIdentity(
        name=name,
        revision=revision,
        dtype=str(loaded.dtype).removeprefix("torch."),
        num_parameters=sum(parameter.numel() for parameter in loaded.model.parameters()),
    )


def provenance(
    *,
    target: ModelIdentity,
    draft: ModelIdentity | None,
    proposer: ProposerIdentity,
    device: torch.device,
    seeds: dict[str, int],
    prompts_sha256: str,
    started_at: datetime,
    duration_s: float = 0.0,
) -> Provenance:
    """At the start of a run, which has lasted no time yet."""
    return Provenance(
        versions=Versions(
            spec_harness=spec_harness.__version__,
            python=platform.python_version(),
            torch=torch.__version__,
            transformers=version("transformers"),
            lightning=version("lightning"),
        ),
        git_commit=_git_commit(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        threads=torch.get_num_threads(),
        seeds=seeds,
        prompts_sha256=prompts_sha256,
        target=target,
        draft=draft,
        proposer=proposer,
        started_at=started_at,
        duration_s=duration_s,
    )


def _git_commit() -> str | None:
    """The commit of the checkout that this package runs from; an installed wheel has none."""
    root = Path(spec_harness.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        run = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()
