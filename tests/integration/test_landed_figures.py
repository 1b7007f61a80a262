"""No count, rate or generation has changed since the figures were recorded, whatever the structure of the code."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.landed_figures import FIGURES, RUNS, measure, write_conversations

LANDED: dict[str, Any] = json.loads(FIGURES.read_text())


def differences(landed: Any, found: Any, where: str = "") -> list[str]:
    """Where two trees of figures differ: integers, texts and nulls exactly, floats by more than rounding."""
    if isinstance(landed, dict) and isinstance(found, dict):
        missing = [f"{where}.{key} is missing" for key in landed if key not in found]
        return missing + [
            x for key in landed if key in found for x in differences(landed[key], found[key], f"{where}.{key}")
        ]
    if isinstance(landed, list) and isinstance(found, list) and len(landed) == len(found):
        return [
            x for i, pair in enumerate(zip(landed, found, strict=True)) for x in differences(*pair, f"{where}[{i}]")
        ]
    if isinstance(landed, float) and isinstance(found, float):
        return [] if math.isclose(landed, found, rel_tol=1e-4, abs_tol=1e-5) else [f"{where}: {landed} became {found}"]
    return [] if landed == found and type(landed) is type(found) else [f"{where}: {landed} became {found}"]


def test_the_comparison_sees_one_more_count_and_a_changed_generation() -> None:
    landed = LANDED["draft, greedy"]
    found = json.loads(json.dumps(landed))
    found["proposal"]["num_drafts"] += 1
    found["generations"] = found["generations"][::-1]
    assert len(differences(landed, found)) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("clean_process")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_landed_figures(name: str, tmp_path: Path) -> None:
    write_conversations(tmp_path)
    assert differences(LANDED[name], measure(name)) == []
