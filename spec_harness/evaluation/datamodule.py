"""The data module: hands the requests out to each engine run."""

from collections.abc import Sequence

from lightning import LightningDataModule
from torch.utils.data import DataLoader

from spec_harness.requests import Request


def _as_list(batch: list[Request]) -> list[Request]:
    return batch


class PromptDataModule(LightningDataModule):
    """The same requests once per pass (speculative, baseline): one data loader each, of up to ``max_num_seqs``."""

    def __init__(self, requests: Sequence[Request], *, max_num_seqs: int, num_passes: int) -> None:
        super().__init__()
        self.requests = list(requests)
        self._batch_size = max_num_seqs
        self._num_passes = num_passes

    def transfer_batch_to_device(self, batch: list[Request], device: object, dataloader_idx: int) -> list[Request]:
        """Requests are host data."""
        return batch

    def test_dataloader(self) -> list[DataLoader[Request]]:
        return [
            DataLoader(self.requests, batch_size=self._batch_size, collate_fn=_as_list)  # type: ignore[arg-type]  # a list
            for _ in range(self._num_passes)
        ]
