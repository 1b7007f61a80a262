"""Requests of several turns: which request follows a finished one."""

from collections import defaultdict
from dataclasses import dataclass, field

from spec_harness.data.encoder import PromptEncoder
from spec_harness.data.prompts import PromptRow
from spec_harness.errors import UserError
from spec_harness.requests import Request, RequestRecord


@dataclass
class Conversations:
    """Which request follows a finished one, in each engine run on its own: the answers may differ by a tie."""

    encoder: PromptEncoder
    rows: dict[str, PromptRow]
    _history: dict[tuple[str, str], list[RequestRecord]] = field(default_factory=lambda: defaultdict(list))
    cut_short: set[str] = field(default_factory=set)  # conversations whose next turn could not be asked

    def restart(self) -> None:
        """Forgets what was said: all begin again."""
        self._history.clear()
        self.cut_short.clear()

    def next_turn(self, run: str, record: RequestRecord) -> Request | None:
        row, history = self.rows[record.request_id], self._history[run, record.request_id]
        history.append(record)
        if row.turns is None or len(history) >= len(row.turns):
            return None
        try:
            following = self.encoder.next_turn(row, history)
        except UserError:  # the template refuses the turn: not worth losing what is finished
            following = None
        if following is None:
            self.cut_short.add(row.id)
        return following

    def notes(self) -> list[str]:
        if not self.cut_short:
            return []
        return [
            f"{len(self.cut_short)} conversations ended early: their next turn did not fit the "
            "target's length or its chat template."
        ]
