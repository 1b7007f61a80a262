"""From requests to one data loader for each engine run."""

import pytest

from spec_harness.evaluation.datamodule import PromptDataModule
from spec_harness.requests import Request, SamplingParams


@pytest.mark.parametrize(("max_num_seqs", "sizes"), [(2, [2, 2, 1]), (5, [5]), (8, [5])])
def test_each_pass_gets_every_request_in_order(max_num_seqs: int, sizes: list[int]) -> None:
    requests = [
        Request(request_id=f"r{i}", prompt="x", prompt_token_ids=[1], sampling=SamplingParams(max_new_tokens=1))
        for i in range(5)
    ]
    loaders = PromptDataModule(requests, max_num_seqs=max_num_seqs, num_passes=2).test_dataloader()
    assert len(loaders) == 2
    for loader in loaders:
        batches = list(loader)
        assert [len(batch) for batch in batches] == sizes
        assert [request for batch in batches for request in batch] == requests
