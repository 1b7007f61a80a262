"""How large each trade may grow: a capability that needs more raises its cap here, with the reason in the commit."""

from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "spec_harness"
CAPS = {
    ("requests.py", "kv_cache", "worker", "engine", "proposers"): 3600,
    ("metrics", "results", "trust"): 2200,
    ("config.py", "model_config.py", "validation.py", "settings.py", "cli", "data", "models"): 2300,
    ("report",): 2900,
    ("evaluation", "build.py", "run.py", "__init__.py", "__main__.py", "errors.py"): 1500,
}
LONGEST_FILE = 250


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("trade", CAPS, ids=lambda trade: trade[-1])
def test_a_trade_keeps_to_its_cap(trade: tuple[str, ...]) -> None:
    places = [PACKAGE / name for name in trade]
    files = [path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place])]
    assert sum(map(lines_of, files)) <= CAPS[trade]


def test_every_file_belongs_to_a_trade_and_is_short() -> None:
    known = {name for trade in CAPS for name in trade} | {"assets", "conf", "__pycache__"}
    assert {path.name for path in PACKAGE.iterdir()} <= known
    assert [path for path in PACKAGE.rglob("*.py") if lines_of(path) > LONGEST_FILE] == []
