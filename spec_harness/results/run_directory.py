"""Directories of runs and sweeps: may they be written, what did a refused run create, which jobs of a sweep failed."""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from spec_harness.errors import UserError
from spec_harness.results.round_log import ROUND_LOG
from spec_harness.results.status import STATUS_FILE, StatusFile, read_status

RESULTS_FILE = "results.json"
OVERRIDES_FILE = ".hydra/overrides.yaml"


def check_writable(directory: Path, *, key: str) -> None:
    """Raises UserError unless the directory can be created and written. Leaves nothing behind.

    Permission bits say little on a read-only disk, so a file without a name is tried in the nearest existing folder.
    """
    existing = _nearest_existing(directory)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UserError(f"{key}: {directory} cannot be written: {existing}: {error.strerror}") from error


def check_unused(run_dir: Path, *, key: str = "hydra.run.dir") -> None:
    """Raises UserError if the directory holds a run already: files of two runs side by side would be read as one."""
    for name in (STATUS_FILE, RESULTS_FILE, ROUND_LOG):
        if (run_dir / name).exists():
            raise UserError(f"{key}: {run_dir} holds a run already ({name}); choose another directory")


def announce(run_dir: Path) -> None:
    """status.json from the first second, before torch is imported; the run itself writes it from then on."""
    StatusFile(run_dir / STATUS_FILE)


def run_state(run_dir: Path) -> str | None:
    """What status.json says: running, interrupted, done or failed; ``None`` without one."""
    state = read_status(run_dir).get("state")
    return state if isinstance(state, str) else None


def run_error(run_dir: Path) -> str | None:
    """The error that status.json names."""
    error = read_status(run_dir).get("error")
    return error if isinstance(error, str) else None


@dataclass(frozen=True)
class Footprint:
    """What there was before a run, so that a refused run can take away its own files and no others."""

    run_dir: Path
    existing: Path  # the nearest folder that existed: run_dir itself or one above it
    entries: frozenset[str]  # of run_dir

    @classmethod
    def before(cls, run_dir: Path) -> "Footprint":
        run_dir = run_dir.absolute()
        entries = {path.name for path in run_dir.iterdir()} if run_dir.is_dir() else set()
        return cls(run_dir, _nearest_existing(run_dir), frozenset(entries))

    def remove_new(self) -> None:
        """Removes what was created in the run's directory since, then the directories that were created for it."""
        if not self.run_dir.is_dir():
            return
        for path in self.run_dir.iterdir():
            if path.name not in self.entries:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for directory in (self.run_dir, *self.run_dir.parents):
            if directory == self.existing or any(directory.iterdir()):
                return
            directory.rmdir()


def record_failure(run_dir: Path, error: BaseException) -> None:
    """Makes status.json say that the job failed, if it does not say so yet."""
    status = read_status(run_dir)
    if status.get("state") != "failed":
        message = str(error) or type(error).__name__
        (run_dir / STATUS_FILE).write_text(json.dumps({**status, "state": "failed", "error": message}, indent=2))


def jobs_of(sweep_dir: Path) -> list[Path]:
    """The directories of jobs below, in the order of their numbers."""
    found = {path.parents[name.count("/")] for name in (STATUS_FILE, OVERRIDES_FILE) for path in sweep_dir.rglob(name)}
    return sorted(found, key=_job_order)


def unfinished_jobs(sweep_dir: Path) -> list[Path]:
    """The jobs that have not said how they ended."""
    unsaid = (None, "running", "interrupted")
    return [directory for directory in jobs_of(sweep_dir) if read_status(directory).get("state") in unsaid]


def failed_jobs(sweep_dir: Path) -> list[str]:
    """One line for each job that did not end well, whatever process it ran in."""
    lines = []
    for directory in jobs_of(sweep_dir):
        status = read_status(directory)
        if status.get("state") != "done":
            error = status.get("error") or "ended without a result"
            name = directory.relative_to(sweep_dir)
            lines.append(f"job {name} ({_overrides(directory)}): {' '.join(str(error).split())}")
    return lines


def _overrides(directory: Path) -> str:
    from omegaconf import OmegaConf

    path = directory / OVERRIDES_FILE
    return " ".join(OmegaConf.load(path)) if path.exists() else ""


def _nearest_existing(directory: Path) -> Path:
    return next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())


def _job_order(directory: Path) -> tuple[int, str]:
    return (int(directory.name) if directory.name.isdigit() else -1, str(directory))
