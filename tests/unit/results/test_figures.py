"""Every figure by a flat name, missing ones left out."""

from collections.abc import Callable
from typing import Any

from spec_harness.results.figures import plain_numbers

Make = Callable[..., Any]


def test_numbers_are_those_of_the_results_by_flat_names(random_requests: Make, make_results: Make) -> None:
    results = make_results(random_requests(0, max_proposal_len=3), max_proposal_len=3)
    numbers = plain_numbers(results)
    p = results.proposal
    assert numbers["proposal/acceptance_rate"] == p.acceptance_rate.value
    assert numbers["proposal/num_rounds"] == p.num_rounds
    assert numbers["proposal/skipped/budget"] == p.skipped["budget"]
    assert [numbers[f"proposal/accepted_length_histogram/{j}"] for j in range(4)] == p.accepted_length_histogram
    assert numbers["proposal/acceptance_rate_per_position/1"] == p.acceptance_rate_per_position[1].value
    assert numbers["timing/speedup"] == 1.27
    assert numbers["timing/time_share/score"] == 0.5
    assert numbers["kv/num_blocks"] == 64
    assert numbers["integrity/baseline_equality/tie"] == 1
    assert (numbers["integrity/checks/0/figure"], numbers["integrity/checks/0/tolerance"]) == (1e-6, 1e-4)
    assert all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers.values())
    assert not [key for key in numbers if key.endswith(("/ci95", "/n", "/value"))]


def test_missing_figures_are_left_out(random_requests: Make, make_results: Make) -> None:
    """A zero in their place would be averaged, plotted and believed."""
    results = make_results([], max_proposal_len=0, timing=None, kv=None)
    numbers = plain_numbers(results)
    assert "proposal/acceptance_rate" not in numbers
    assert not [key for key in numbers if key.startswith(("timing/", "kv/"))]
    assert numbers["proposal/num_rounds"] == 0
