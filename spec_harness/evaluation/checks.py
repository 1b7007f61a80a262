"""What speaks for a run's figures beside the run itself: integrity checks, the baseline's text, step times."""

from collections.abc import Sequence

from spec_harness.engine import EngineSettings
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.base import ProposerSpec
from spec_harness.requests import RequestRecord
from spec_harness.results.schema import BaselineEquality, Check, StepTimeResults
from spec_harness.trust.baseline import judge_all, record_key
from spec_harness.trust.kv_gate import SIZES, require, run_gate
from spec_harness.trust.step_profile import measure_steps


class Checks:
    """Those of an engine that nothing can be asked of: none."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def gate(self) -> list[Check]:
        """Before anything is measured. Raises what is to end the run."""
        self.notes = ["Nothing but the engine's own word speaks for these figures: no integrity checks, no step times."]
        return []

    def equality(self, ours: Sequence[RequestRecord], baseline: Sequence[RequestRecord]) -> BaselineEquality | None:
        """Sets the verdicts of ``ours``; ``None`` where texts cannot be compared."""
        return None

    def step_times(self, *, batch: int) -> StepTimeResults | None:
        """Of steps of ``batch`` sequences; ``None`` where they cannot be taken."""
        return None


class NativeChecks(Checks):
    """Those of the native engine, on the run's own models and ``prompts`` (token ids)."""

    def __init__(
        self,
        *,
        target: LoadedModel,
        draft: LoadedModel | None,
        proposer: ProposerSpec,
        settings: EngineSettings,
        prompts: Sequence[Sequence[int]],
        level: str,
    ) -> None:
        super().__init__()
        self._target, self._draft, self._proposer = target, draft, proposer
        self._settings, self._prompts, self._level = settings, prompts, level

    def gate(self) -> list[Check]:
        """The checks at load, which always run and pass (other models are refused), and the gate's.

        Raises ``IntegrityError``.
        """
        self.notes = []
        models = {"target": self._target} | ({} if self._draft is None else {"draft": self._draft})
        checks = [
            Check(
                name=f"{role}: paged against dense logits",
                figure=model.check.max_difference,
                tolerance=model.check.cap,
                verdict="pass",
            )
            for role, model in models.items()
        ]
        if self._level != "off":
            checks += run_gate(SIZES[self._level], self._target, self._draft, self._settings, self._prompts)
        require(checks)
        return checks

    def equality(self, ours: Sequence[RequestRecord], baseline: Sequence[RequestRecord]) -> BaselineEquality | None:
        """Greedy outputs only: sampled ones agree with the baseline's in distribution, not token by token."""
        if self._settings.target_sampling.temperature > 0:
            return None
        others = {record_key(record): record for record in baseline}
        return BaselineEquality(**judge_all(self._target, ours, others))

    def step_times(self, *, batch: int) -> StepTimeResults | None:
        times = measure_steps(self._target, self._proposer, self._settings, self._prompts, batch=batch)
        if times is None:
            self.notes.append(
                "No step times, no predicted speed-up: a model's maximum length leaves no room for the micro-profile."
            )
        return times
