import math

import pytest
import torch

from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import PAGED, attention_set_to, dense_logits, paged_check


def test_tie_tolerance_is_twice_the_difference_measured() -> None:
    check = paged_check(3e-5, 10.0, torch.float32)
    assert math.isclose(check.tie_tolerance, 6e-5)
    assert check.max_difference < check.cap


def test_tie_tolerance_is_at_least_two_rounding_steps() -> None:
    check = paged_check(0.0, 10.0, torch.float32)
    assert math.isclose(check.tie_tolerance, 2 * torch.finfo(torch.float32).eps * 10)


@pytest.mark.parametrize(("dtype", "cap"), [(torch.float32, 1e-4), (torch.bfloat16, 10 / 32)])
def test_a_broken_cache_cannot_widen_the_tolerance(dtype: torch.dtype, cap: float) -> None:
    check = paged_check(7.0, 10.0, dtype)
    assert math.isclose(check.tie_tolerance, 2 * cap)
    assert check.max_difference > check.cap


def test_two_logits_may_be_off_in_opposite_directions() -> None:
    """The tolerance itself was capped once. A bfloat16 model whose logits differed by 0.31, allowed 0.32, could then
    have ties of 0.34 called faults."""
    check = paged_check(0.31, 10.125, torch.bfloat16)
    assert check.max_difference < check.cap
    assert check.tie_tolerance == 0.62


def test_attention_is_set_back_also_after_an_error(target: LoadedModel) -> None:
    def fail() -> None:
        with attention_set_to(target.model, "eager"):
            assert target.model.config._attn_implementation == "eager"
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        fail()
    assert target.model.config._attn_implementation == PAGED


def test_dense_logits_leave_the_model_on_paged_attention(target: LoadedModel) -> None:
    assert dense_logits(target.model, [3, 4, 5]).shape == (3, 128)
    assert target.model.config._attn_implementation == PAGED
