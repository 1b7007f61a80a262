"""How rows are packed, seen by a model that echoes what it is fed."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spec_harness.kv_cache.kv_cache import KVCache, LayerShape
from spec_harness.worker.attention import batch_in_use
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from tests.helpers import CPU


class Echo(nn.Module):
    """Logits of a token: its id, its position, and the slot where its KV goes."""

    def forward(self, *, input_ids: Tensor, position_ids: Tensor, use_cache: bool, logits_to_keep: Tensor) -> Any:
        return SimpleNamespace(logits=self.all(input_ids, position_ids)[:, logits_to_keep])

    def all(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        return torch.stack([input_ids, position_ids, batch_in_use().slots[None]], dim=-1).float()


class EchoAll(Echo):
    """A model that cannot compute chosen logits only."""

    def forward(  # type: ignore[override]  # the argument that it lacks is the point
        self, *, input_ids: Tensor, position_ids: Tensor, use_cache: bool
    ) -> Any:
        return SimpleNamespace(logits=self.all(input_ids, position_ids))


@pytest.mark.parametrize("model", [Echo(), EchoAll()], ids=["selects", "gives all"])
def test_rows_are_packed_in_order_and_pending_tokens_follow_their_rows_own(model: nn.Module) -> None:
    cache = KVCache([LayerShape(1, 2, 2)], num_blocks=20, block_size=2, dtype=torch.float32, device=CPU)
    rows = [
        QueryRow(block_table=[3, 1], start=1, token_ids=[11, 12], num_pending=1, num_logits=2),
        QueryRow(block_table=[7, 2, 5], start=4, num_pending=2, num_logits=1),
        QueryRow(block_table=[4], start=0, token_ids=[31, 32], num_logits=2),
        QueryRow(block_table=[6, 8], start=3, token_ids=[41], num_logits=1),
    ]
    assert [row.end for row in rows] == [4, 6, 2, 4]
    logits = ModelRunner(model, cache).run(rows, torch.tensor([13, 21, 22]))
    assert logits.tolist() == [
        [12, 2, 1 * 2 + 0],
        [13, 3, 1 * 2 + 1],
        [22, 5, 5 * 2 + 1],
        [31, 0, 4 * 2 + 0],
        [32, 1, 4 * 2 + 1],
        [41, 3, 8 * 2 + 1],
    ]


def test_rows_without_pending_tokens_need_no_tensor() -> None:
    cache = KVCache([LayerShape(1, 2, 2)], num_blocks=20, block_size=2, dtype=torch.float32, device=CPU)
    logits = ModelRunner(Echo(), cache).run([QueryRow(block_table=[3], start=0, token_ids=[5, 6])])
    assert logits.tolist() == [[6, 1, 7]]
