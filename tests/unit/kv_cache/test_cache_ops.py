"""Block moves on the storage. Each block is filled with its own number, so that where it went can be read off."""

from collections.abc import Callable, Sequence

import pytest
import torch

from spec_harness.engine.round import SpecDecodeWorker
from spec_harness.engine.stage_timer import StageTimer
from spec_harness.kv_cache.cache_ops import CacheOps
from spec_harness.kv_cache.kv_cache import KVCache, LayerShape
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.base import ProposalContext
from spec_harness.proposers.draft_model import DraftModelTop1Proposer
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.requests import SequenceMetadata
from tests.helpers import CPU, forwards, metadata, proposer_env, worker

BLOCKS, HOST_BLOCKS, SIZE = 6, 4, 3


def cache() -> KVCache:
    """Device block b holds b, host block h holds 100 + h, in every layer, key and value."""
    store = KVCache(
        [LayerShape(2, 4, 4), LayerShape(1, 4, 6)],
        num_blocks=BLOCKS,
        block_size=SIZE,
        num_host_blocks=HOST_BLOCKS,
        dtype=torch.float32,
        device=CPU,
    )
    for storage, start in [*((x, 0) for x in (*store.keys, *store.values)), *((x, 100) for x in store._host)]:
        blocks = storage.unflatten(0, (-1, SIZE))
        blocks.copy_(torch.arange(start, start + len(blocks)).view(-1, *[1] * (blocks.dim() - 1)).expand_as(blocks))
    return store


def held(storages: Sequence[torch.Tensor]) -> list[int]:
    """What each block holds: the same number in all its slots and in all storages."""
    blocks = [storage.unflatten(0, (-1, SIZE)).flatten(1) for storage in storages]
    first = blocks[0][:, 0]
    assert all(torch.equal(b, first[:, None].expand_as(b)) for b in blocks)
    return [int(x) for x in first]


def device(store: KVCache) -> list[int]:
    return held([*store.keys, *store.values])


def test_each_kind_of_move_reaches_every_layers_keys_and_values() -> None:
    store = cache()
    store.apply(CacheOps(swap_in=[(3, 1)], swap_out=[(2, 0)], copy=[(4, 5)]))
    assert device(store) == [0, 103, 2, 3, 4, 4, 6]
    assert held(store._host) == [2, 101, 102, 103]


def test_swapping_in_comes_first_then_swapping_out_then_copying() -> None:
    store = cache()
    # Host block 0 goes to device block 1, then takes what device block 1 now holds; the copy sees that too.
    store.apply(CacheOps(swap_in=[(0, 1)], swap_out=[(1, 2), (3, 0)], copy=[(1, 3)]))
    assert device(store) == [0, 100, 2, 100, 4, 5, 6]
    assert held(store._host) == [3, 101, 100, 103]


def test_one_host_block_is_emptied_and_filled_in_one_go() -> None:
    store = cache()
    store.apply(CacheOps(swap_in=[(2, 5)], swap_out=[(4, 2)]))
    assert device(store)[5] == 102
    assert held(store._host)[2] == 4


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(1, 2), (2, 3), (3, 4)], [0, 1, 1, 2, 3, 5, 6]),  # a chain moves by one
        ([(1, 2), (2, 1)], [0, 2, 1, 3, 4, 5, 6]),  # two change places
        ([(1, 2), (2, 3), (3, 1)], [0, 3, 1, 2, 4, 5, 6]),
        ([(1, 5), (1, 6), (1, 2)], [0, 1, 1, 3, 4, 1, 1]),  # one source may have several copies
        ([(4, 4)], [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_within_a_list_all_sources_are_read_before_a_destination_is_written(
    pairs: list[tuple[int, int]], expected: list[int]
) -> None:
    for ordered in (pairs, pairs[::-1]):
        store = cache()
        store.apply(CacheOps(copy=list(ordered)))
        assert device(store) == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (CacheOps(copy=[(1, 2), (3, 2)]), r"copy: a destination block stands there twice: \[1, 2, 2, 4\]"),
        (CacheOps(swap_in=[(0, 2), (1, 2)]), "swap_in: a destination block stands there twice"),
        (CacheOps(swap_out=[(1, 2), (2, 2)]), "swap_out: a destination block stands there twice"),
        (CacheOps(copy=[(0, 2)]), r"copy: source block 0 is not in 1 \.\.\. 6"),
        (CacheOps(copy=[(2, 0)]), r"copy: destination block 0 is not in 1 \.\.\. 6"),
        (CacheOps(swap_in=[(1, 0)]), "swap_in: destination block 0"),
        (CacheOps(swap_out=[(0, 1)]), "swap_out: source block 0"),
        (CacheOps(copy=[(2, 7)]), "copy: destination block 7"),
        (CacheOps(copy=[(-1, 2)]), "copy: source block -1"),
        (CacheOps(swap_in=[(4, 1)]), r"swap_in: source block 4 is not in 0 \.\.\. 3"),
        (CacheOps(swap_out=[(1, -1)]), "swap_out: destination block -1"),
    ],
)
def test_wrong_ids_are_refused_and_nothing_is_changed(wrong: CacheOps, message: str) -> None:
    store = cache()
    ops = CacheOps(
        swap_in=[*wrong.swap_in, (3, 6)], swap_out=[*wrong.swap_out, (6, 3)], copy=[(5, 4), *wrong.copy, (4, 1)]
    )
    with pytest.raises(ValueError, match=message):
        store.apply(ops)
    assert device(store) == list(range(BLOCKS + 1))
    assert held(store._host) == [100, 101, 102, 103]


def test_a_cache_without_host_blocks_swaps_nothing() -> None:
    store = KVCache([LayerShape(1, 1, 1)], num_blocks=2, block_size=1, dtype=torch.float32, device=CPU)
    with pytest.raises(ValueError, match="swap_out: destination block 0"):
        store.apply(CacheOps(swap_out=[(1, 0)]))


def test_no_moves_are_false() -> None:
    assert not CacheOps()
    assert CacheOps(copy=[(1, 2)])


PROMPT = [5, 9, 33, 70, 12]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order: "moves" and "forward"."""
    events: list[str] = []
    move, run = KVCache.apply, MultiStepWorker._run

    def apply(self: KVCache, ops: CacheOps) -> None:
        events.append("moves")
        move(self, ops)

    def forward(self: MultiStepWorker, *args: object) -> torch.Tensor:
        events.append("forward")
        return run(self, *args)

    monkeypatch.setattr(KVCache, "apply", apply)
    monkeypatch.setattr(MultiStepWorker, "_run", forward)
    return events


def row(table: Sequence[int], output: Sequence[int] = ()) -> SequenceMetadata:
    return metadata(0, PROMPT, table, output)


@torch.inference_mode()
def test_a_multi_step_call_moves_once_before_its_first_step(target: LoadedModel, log: list[str]) -> None:
    worker(target).execute_model_multi_step([row([1, 2, 3])], 3, CacheOps(copy=[(4, 5)]))
    assert log == ["moves", "forward", "forward", "forward"]


@torch.inference_mode()
def test_a_single_step_moves_before_its_forward(target: LoadedModel, log: list[str]) -> None:
    worker(target).execute_model([row([1, 2])], CacheOps(copy=[(4, 5)]))
    assert log == ["moves", "forward"]


@torch.inference_mode()
@pytest.mark.parametrize("ops", [None, CacheOps()])
def test_without_moves_nothing_is_moved(target: LoadedModel, log: list[str], ops: CacheOps | None) -> None:
    worker(target).execute_model_multi_step([row([1, 2, 3])], 2, ops)
    assert log == ["forward", "forward"]


@torch.inference_mode()
def test_a_proposer_moves_even_where_every_row_is_skipped(target: LoadedModel, log: list[str]) -> None:
    """The target's step needs the blocks where they are said to be, and so will the draft's next one."""
    proposer = DraftModelTop1Proposer(proposer_env(target, k=2), worker(target, vocab_size=128))
    proposer.propose(ProposalContext([row([1, 2])], [0], CacheOps(copy=[(4, 5)])))
    assert log == ["moves"]
    proposer.worker.forget(0)
    SpecDecodeWorker(proposer, worker(target), StageTimer(CPU)).execute_round(
        [row([1, 2])], [0], CacheOps(copy=[(4, 5)])
    )
    assert log == ["moves", "moves", "moves", "forward"]


@torch.inference_mode()
@pytest.mark.parametrize("move", ["copy", "swap"])
def test_a_sequence_goes_on_in_the_blocks_its_own_were_moved_to(target: LoadedModel, move: str) -> None:
    def through(engine: MultiStepWorker) -> None:
        if move == "copy":
            engine.execute_model_multi_step([row([7, 9, 8], [6])], 3, CacheOps(copy=[(1, 7), (2, 9)]))
        else:
            engine.apply(CacheOps(swap_out=[(1, 2), (2, 0)]))
            engine.execute_model_multi_step([row([7, 9, 8], [6])], 3, CacheOps(swap_in=[(2, 7), (0, 9)]))

    fresh, moved = worker(target, num_host_blocks=3), worker(target, num_host_blocks=3)
    expected = fresh.execute_model_multi_step([row([1, 2, 3], [6])], 3)
    moved.execute_model([row([1, 2])])
    with forwards(target.model) as seen:
        through(moved)
    assert [ids.numel() for ids in seen] == [1, 1, 1]
    slots = torch.tensor([[7 * 4 + i for i in range(4)] + [9 * 4 + i for i in range(4)]])
    ours = moved.runner.cache.gather(1, slots)
    theirs = fresh.runner.cache.gather(1, torch.tensor([[4, 5, 6, 7, 8, 9, 10, 11]]))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert len(expected) == 3


@torch.inference_mode()
def test_wrong_moves_stop_a_call_before_its_forward(target: LoadedModel) -> None:
    engine = worker(target)
    calls: list[Callable[[], object]] = [
        lambda: engine.execute_model([row([1, 2])], CacheOps(copy=[(1, 0)])),
        lambda: engine.execute_model_multi_step([row([1, 2])], 2, CacheOps(copy=[(1, 0)])),
    ]
    with forwards(target.model) as seen:
        for call in calls:
            with pytest.raises(ValueError, match="copy: destination block 0"):
                call()
    assert not seen
