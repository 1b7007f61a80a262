"""Who runs, who waits and who is preempted, on plain integers."""

import pytest

from spec_harness.engine.scheduler import Demand, RoundPlan, RowDemand, Scheduler
from spec_harness.kv_cache.block_manager import BlockManager

SIZE = 4


def scheduler(
    num_blocks: int = 8, *, max_num_seqs: int = 4, k: int = 3, host: int = 0, swap: bool = False
) -> Scheduler:
    blocks = BlockManager(num_blocks=num_blocks, block_size=SIZE, num_host_blocks=host)
    return Scheduler(blocks, max_num_seqs=max_num_seqs, max_proposal_len=k, swap=swap)


def grown(made: Scheduler, num_slots: int) -> RoundPlan:
    """A round for which every running sequence asks for ``num_slots``."""
    return made.plan([RowDemand(seq_id, num_slots, write_from=num_slots - 1) for seq_id in made.running])


def test_sequences_are_admitted_while_there_are_slots() -> None:
    made = scheduler(100, max_num_seqs=3)
    assert made.admit(Demand(prompt_len=3, max_slots=20, num_samples=2)) == [0, 1]
    assert made.has_free_slot
    assert made.admit(Demand(prompt_len=3, max_slots=20, num_samples=2)) == []
    assert made.admit(Demand(prompt_len=3, max_slots=20)) == [2]
    assert not made.has_free_slot
    made.finish(0)
    assert made.running == (1, 2)
    assert made.admit(Demand(prompt_len=3, max_slots=20)) == [3]


def test_admission_asks_for_the_blocks_of_a_first_round_and_not_more_than_the_request_can_fill() -> None:
    made, first_round = scheduler(5), Demand(prompt_len=5, max_slots=20)  # 5 + 3 + 1 slots: 3 blocks
    assert made.admit(first_round) == [0]
    assert made.admit(first_round) == []
    assert made.admit(Demand(prompt_len=5, max_slots=8)) == [1]


def test_samples_share_the_blocks_of_their_prompt() -> None:
    made = scheduler(8)
    made.admit(Demand(prompt_len=8, max_slots=20, num_samples=3))
    assert made.blocks.num_allocated == 2
    assert len({tuple(made.blocks.block_table(seq_id)) for seq_id in made.running}) == 1


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        (Demand(prompt_len=5, max_slots=33), "needs 9 KV blocks, the pool has 8"),
        (Demand(prompt_len=5, max_slots=9, num_samples=5), "asks for 5 samples, where 1 to 4 can run"),
        (Demand(prompt_len=5, max_slots=9, num_samples=0), "asks for 0 samples"),
    ],
)
def test_what_can_never_run_is_refused(demand: Demand, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scheduler(8).check(demand)


@pytest.mark.parametrize("swap", [False, True])
def test_the_newest_gives_way_and_comes_back_before_anyone_new(swap: bool) -> None:
    made = scheduler(5, k=0, host=8, swap=swap)
    for _ in range(2):
        made.admit(Demand(prompt_len=7, max_slots=16))
    plan = grown(made, 9)
    assert plan.seq_ids == [0]
    assert plan.preempted == {1: swap}
    assert len(plan.cache_ops.swap_out) == (2 if swap else 0)
    assert (made.running, list(made._preempted)) == ((0,), [1])
    assert (plan.tokens_held, plan.slots_held) == (7, 12)
    assert made.admit(Demand(prompt_len=1, max_slots=4)) == []
    made.finish(0)
    made.resume()
    assert (made.running, list(made._preempted)) == ((1,), [])
    assert len(grown(made, 9).cache_ops.swap_in) == (2 if swap else 0)


def test_a_full_host_means_recomputing() -> None:
    made = scheduler(4, k=0, host=1, swap=True)
    for _ in range(2):
        made.admit(Demand(prompt_len=7, max_slots=16))
    assert grown(made, 9).preempted == {1: False}


def test_a_preempted_sequence_asks_for_its_present_length() -> None:
    made = scheduler(5, k=0)
    for _ in range(2):
        made.admit(Demand(prompt_len=7, max_slots=16))
    made.extend(1, 2)
    assert grown(made, 9).preempted == {1: False}
    made.resume()  # 9 tokens: 3 blocks, where 2 are free
    assert made.running == (0,)


def test_block_moves_wait_for_the_next_round_and_are_handed_out_once() -> None:
    made = scheduler(8, k=0)
    made.admit(Demand(prompt_len=6, max_slots=16, num_samples=2))
    plan = made.plan([RowDemand(seq_id, 7, write_from=6) for seq_id in made.running])
    assert len(plan.cache_ops.copy) == 1  # the last to write keeps the block
    assert plan.tokens_held == 12 - SIZE  # the full block that both share counts once
    assert not grown(made, 7).cache_ops
