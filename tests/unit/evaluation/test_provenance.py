"""Which code, models and machine: as they are, and null where nothing is known."""

import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import spec_harness
from spec_harness.evaluation.provenance import model_identity, provenance
from spec_harness.models.load import LoadedModel
from spec_harness.results.schema import ProposerIdentity, Provenance
from tests.helpers import CPU, tiny_loaded


def made(target: LoadedModel) -> Provenance:
    return provenance(
        target=model_identity(target, name="org/name", revision="v1"),
        draft=None,
        proposer=ProposerIdentity(name="none", label="no proposals"),
        device=CPU,
        seeds={"seed": 3},
        prompts_sha256="abc",
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
        duration_s=1.5,
    )


def test_a_model_s_identity(target: LoadedModel) -> None:
    identity = model_identity(target, name="org/name", revision="v1")
    assert (identity.name, identity.revision, identity.dtype) == ("org/name", "v1", "float32")
    assert identity.num_parameters == sum(p.numel() for p in target.model.parameters()) > 0


def test_shared_weights_are_counted_once() -> None:
    """The embedding that is also the output layer."""
    tied, untied = tiny_loaded(tie_word_embeddings=True), tiny_loaded(tie_word_embeddings=False)
    counts = [model_identity(model, name="x", revision=None).num_parameters for model in (tied, untied)]
    assert counts[0] is not None
    assert counts[1] is not None
    assert counts[1] - counts[0] == 128 * 64


def test_versions_and_machine(target: LoadedModel) -> None:
    found = made(target)
    assert found.versions.spec_harness == spec_harness.__version__
    assert found.versions.torch == torch.__version__
    assert found.versions.transformers == version("transformers")
    assert found.threads == torch.get_num_threads()
    assert found.device
    assert (found.seeds, found.duration_s, found.draft) == ({"seed": 3}, 1.5, None)


def checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package appears to lie in ``folder``."""
    package = folder / "spec_harness"
    package.mkdir(parents=True)
    monkeypatch.setattr(spec_harness, "__file__", str(package / "__init__.py"))
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_of_a_checkout(target: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkout(tmp_path / "checkout", monkeypatch)
    git(folder, "init", "--quiet")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "first")
    assert made(target).git_commit == git(folder, "rev-parse", "HEAD")


def test_a_checkout_without_a_commit_has_none(
    target: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(checkout(tmp_path / "checkout", monkeypatch), "init", "--quiet")
    assert made(target).git_commit is None


def test_an_installed_package_inside_somebody_s_repository_has_no_commit(
    target: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment often lies in a checkout of something else, whose commit says nothing of this package."""
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "another project")
    checkout(tmp_path / "venv" / "site-packages", monkeypatch)
    assert made(target).git_commit is None


def test_a_machine_without_git(target: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(checkout(tmp_path / "checkout", monkeypatch), "init", "--quiet")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert made(target).git_commit is None
