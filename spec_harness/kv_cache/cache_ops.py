"""What is to be done with KV blocks before a forward: move them to and from the host, copy them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

BlockPair = tuple[int, int]  # source, destination


@dataclass
class CacheOps:
    """Block moves, carried out once before a forward, in this order, by every cache that shares the block tables.

    Within one list all sources are read before any destination is written, so overlaps within a list are well defined;
    a destination may stand in a list only once.
    """

    swap_in: list[BlockPair] = field(default_factory=list)  # host block → device block
    swap_out: list[BlockPair] = field(default_factory=list)  # device block → host block
    copy: list[BlockPair] = field(default_factory=list)  # device block → device block

    def __bool__(self) -> bool:
        return bool(self.swap_in or self.swap_out or self.copy)

    def check(self, *, num_blocks: int, num_host_blocks: int) -> None:
        """Raises ``ValueError`` for ids out of range (block 0 belongs to nobody) and for repeated destinations."""
        device, host = range(1, num_blocks + 1), range(num_host_blocks)
        for name, pairs, sources, destinations in (
            ("swap_in", self.swap_in, host, device),
            ("swap_out", self.swap_out, device, host),
            ("copy", self.copy, device, device),
        ):
            _check_ids(name, "source", (source for source, _ in pairs), sources)
            _check_ids(name, "destination", (destination for _, destination in pairs), destinations)
            _check_distinct(name, [destination for _, destination in pairs])


def _check_ids(name: str, end: str, ids: Iterable[int], allowed: range) -> None:
    for index in ids:
        if index not in allowed:
            raise ValueError(f"{name}: {end} block {index} is not in {allowed.start} ... {allowed.stop - 1}")


def _check_distinct(name: str, destinations: Sequence[int]) -> None:
    if len(set(destinations)) != len(destinations):
        raise ValueError(f"{name}: a destination block stands there twice: {sorted(destinations)}")
