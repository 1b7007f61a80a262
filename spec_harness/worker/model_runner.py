"""One packed forward of one model over its paged KV cache."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from spec_harness.kv_cache.block_table import pad_block_tables
from spec_harness.kv_cache.kv_cache import KVCache
from spec_harness.worker.attention import PagedBatch


@dataclass(frozen=True, kw_only=True)
class QueryRow:
    """What one forward feeds of one sequence: host tokens from position ``start``, then tokens still on the device."""

    block_table: list[int]
    start: int
    token_ids: list[int] = field(default_factory=list)
    num_pending: int = 0  # tokens that follow ``token_ids`` and are given as a tensor
    num_logits: int = 1  # logits wanted, of the row's last tokens

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_pending

    @property
    def end(self) -> int:
        """Tokens of the sequence once this row is fed."""
        return self.start + self.num_tokens


class ModelRunner:
    """Packs rows of any lengths into one forward: prefill, decode, catch-up and scoring are the same call.

    ``known_ids``: how many token ids the model has, where it may be fed others. A draft may lack ids of its target,
    which can emit them; the draft is fed its last one in their place (the target verifies what it proposes then).
    """

    def __init__(self, model: nn.Module, cache: KVCache, *, known_ids: int | None = None) -> None:
        self.model = model
        self.cache = cache
        self._known_ids = known_ids
        # Most models compute logits only where asked; for one that cannot, all are computed and then chosen.
        self._selects_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def device(self) -> torch.device:
        return self.cache.device

    def run(self, rows: Sequence[QueryRow], pending: Int[Tensor, " P"] | None = None) -> Float[Tensor, "N V"]:
        """Logits of each row's last ``num_logits`` tokens, rows in order (N in all). Writes the fed tokens' KV.

        ``pending`` holds the rows' device tokens one after the other (P = sum of ``num_pending``). Tokens that the
        draft sampled are fed back, and scored, without a copy to the host.
        """
        ids: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        wanted: list[int] = []
        pending_at: list[int] = []
        for row_index, row in enumerate(rows):
            ids += row.token_ids
            pending_at += range(len(ids), len(ids) + row.num_pending)
            ids += [0] * row.num_pending
            positions += range(row.start, row.end)
            owners += [row_index] * row.num_tokens
            wanted += range(len(ids) - row.num_logits, len(ids))
        columns = (ids, positions, owners, wanted, pending_at)
        input_ids, position_ids, owner, keep, pending_index = self._to_device(*columns)
        if pending is not None:
            input_ids = input_ids.index_copy(0, pending_index, pending)
        if self._known_ids is not None:
            input_ids = input_ids.clamp_max(self._known_ids - 1)
        batch = PagedBatch.build(
            self.cache,
            query_lens=[row.num_tokens for row in rows],
            seq_lens=[row.end for row in rows],
            block_tables=torch.tensor(pad_block_tables([row.block_table for row in rows]), device=self.device),
            rows=owner,
            positions=position_ids,
        )
        return self._forward(input_ids, position_ids, batch, keep)

    def _forward(
        self, input_ids: Int[Tensor, " T"], positions: Int[Tensor, " T"], batch: PagedBatch, keep: Int[Tensor, " N"]
    ) -> Float[Tensor, "N V"]:
        options = {"logits_to_keep": keep} if self._selects_logits else {}
        with batch.in_use():
            output = self.model(input_ids=input_ids[None], position_ids=positions[None], use_cache=False, **options)
        logits: Tensor = output.logits[0]
        return logits if self._selects_logits else logits[keep]

    def _to_device(self, *columns: list[int]) -> list[Tensor]:
        """All index lists in one copy to the device."""
        flat = torch.tensor([x for column in columns for x in column], dtype=torch.int64)
        return list(flat.to(self.device, non_blocking=True).split([len(column) for column in columns]))
