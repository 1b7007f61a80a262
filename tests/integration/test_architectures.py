"""Oracle 3 for every family of models in the list: it runs as its own logits do, or is refused with its reason."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from spec_harness.errors import UserError
from tests.architectures import REFUSED, RUNNING, WINDOW, Family, RefusedFamily
from tests.paged import check_greedy, compare, dense, largest_difference

DOCUMENT = Path(__file__).parents[2] / "docs" / "architectures.md"
WINDOWED = [family for family in RUNNING if "sliding_window" in family.options]


def each(families: Sequence[Family]) -> pytest.MarkDecorator:
    """One test per family; skipped where the installed transformers has no such family yet."""
    params = [
        pytest.param(x, id=x.name, marks=[pytest.mark.skipif(x.model_type not in CONFIG_MAPPING, reason="not there")])
        for x in families
    ]
    return pytest.mark.parametrize("family", params)


@each(RUNNING)
def test_a_family_has_its_own_logits_on_the_paged_cache(family: Family) -> None:
    found = compare(family.load())
    assert found.max_logit > 4  # logits worth comparing
    assert found.max_difference <= 1e-4


@each(RUNNING)
def test_a_family_decodes_as_generate_does(family: Family) -> None:
    check_greedy(family.load())


@each(WINDOWED)
def test_the_windows_of_the_list_matter(family: Family) -> None:
    """Were the window ignored, the comparison above would fail: without it the dense logits are others."""
    assert family.options["sliding_window"] == WINDOW
    assert largest_difference(dense(family.load()), dense(family.load(sliding_window=200))) > 0.1


@each(REFUSED)
def test_a_family_that_would_be_measured_wrong_is_refused_by_name(family: RefusedFamily) -> None:
    with pytest.raises(UserError, match=re.escape(family.reason)) as refusal:
        family.load()
    assert family.model_type.lower() in str(refusal.value).lower()


def test_the_document_lists_these_families() -> None:
    running, refused = DOCUMENT.read_text(encoding="utf-8").split("\n## Refused\n")
    for text, families in ((running, RUNNING), (refused, REFUSED)):
        rows = re.findall(r"^\| `(.+?)` \| (.+?) \|", text, flags=re.MULTILINE)
        assert rows == [(family.name, family.features) for family in families]
