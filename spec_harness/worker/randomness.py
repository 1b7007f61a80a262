"""Randomness that belongs to a request, not to a batch.

Every random number is a hash of (request seed, sample index, absolute position, stream, token id). So a request draws
the same numbers whatever its neighbors, its batch size and its place in the batch are, and on every device: the hash is
integer arithmetic modulo 2^64 (the finalizer of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014). Three streams keep the draft token, the acceptance test and the target token of one position
independent.
"""

from collections.abc import Sequence
from enum import IntEnum

import torch
from jaxtyping import Float, Int
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Stream(IntEnum):
    """What a random number decides at its position."""

    DRAFT_TOKEN = 1
    ACCEPTANCE = 2
    TARGET_TOKEN = 3


def _signed(x: int) -> int:
    """The int64 with the bits of an unsigned 64-bit integer; torch has no shifts on uint64."""
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x


_C1, _C2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _mix(x: Int[Tensor, "*N"]) -> Int[Tensor, "*N"]:
    # The right shift of int64 copies the sign bit; the masks make it the unsigned shift of the definition.
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _C1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _C2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def request_keys(seeds: Sequence[int], samples: Sequence[int], *, device: torch.device) -> Int[Tensor, " B"]:
    """One 64-bit key per sequence, from its request's seed (any integer) and its sample index."""
    seed = torch.tensor([_signed(s) for s in seeds], dtype=torch.int64, device=device)
    sample = torch.tensor(samples, dtype=torch.int64, device=device)
    return _mix(_mix(seed + _signed(_GOLDEN)) + sample * _signed(_GOLDEN))


def _position_keys(keys: Int[Tensor, "*N"], positions: Int[Tensor, "*N"], stream: Stream) -> Int[Tensor, "*N"]:
    return _mix(_mix(keys + positions * _signed(_GOLDEN)) + int(stream))


def _unit(bits: Int[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """The upper 53 bits as a float64 in [0, 1)."""
    return ((bits >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53


def uniform(keys: Int[Tensor, "*N"], positions: Int[Tensor, "*N"], stream: Stream) -> Float[Tensor, "*N"]:
    """One float64 in [0, 1) for each (key, position) of ``stream``."""
    return _unit(_mix(_position_keys(keys, positions, stream)))


def sample_race(
    probs: Float[Tensor, "B V"], keys: Int[Tensor, " B"], positions: Int[Tensor, " B"], stream: Stream
) -> Int[Tensor, " B"]:
    """One token per row, drawn from ``probs`` (need not be normalized) by an exponential race.

    Token v arrives at time E_v / probs_v with E_v ~ Exp(1); the first wins (the Gumbel-max trick). Unlike inverting the
    cumulative sum, a rounding step in one probability moves no other token's draw. Greedy rows are one-hot: always that
    token.
    """
    tokens = torch.arange(1, probs.shape[-1] + 1, device=probs.device, dtype=torch.int64)
    bits = _mix(_position_keys(keys, positions, stream)[:, None] + tokens * _signed(_GOLDEN))
    times = -torch.log1p(-_unit(bits))
    return (probs.to(torch.float64) / times.clamp_min(2.0**-60)).argmax(-1)
