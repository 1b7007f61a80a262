"""Checks of single values of the configuration: each raises ``UserError`` that names the full key."""

import math
from collections.abc import Sequence

from spec_harness.errors import UserError


def check_choice(key: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        allowed = f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
        raise UserError(f"{key} must be {allowed}, not {value}")


def check_min(key: str, value: int | None, minimum: int) -> None:
    if value is not None and value < minimum:
        raise UserError(f"{key} must be at least {minimum}, not {value}")


def check_max(key: str, value: int | None, maximum: int) -> None:
    if value is not None and value > maximum:
        raise UserError(f"{key} must be at most {maximum}, not {value}")


def check_share(key: str, value: float | None) -> None:
    if value is not None and not 0 < value <= 1:  # also refuses NaN
        raise UserError(f"{key} must be above 0 and at most 1, not {value}")


def check_temperature(key: str, value: float | None) -> None:
    if value is None or value == 0:
        return
    if not 1e-6 <= value < math.inf:  # below that, logits divided by it leave float32; also refuses NaN
        raise UserError(f"{key} must be 0 (greedy) or a finite number of at least 1e-6, not {value}")


def check_text(key: str, value: str) -> None:
    if not value.strip():
        raise UserError(f"{key} must not be empty")
