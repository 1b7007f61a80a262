"""The draft's training: the target's distribution on text, then the target's own greedy text."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import IterableDataset
from transformers import LlamaForCausalLM

from tiny_pair.data import PackedText
from tiny_pair.generation import GreedyBatch
from tiny_pair.models import hidden_states
from tiny_pair.training import LossFunction, TimedModule


class MixedBatches(IterableDataset[Tensor | GreedyBatch]):
    """Endless batches: shuffled greedy text, with a text batch after every `every` of them."""

    def __init__(self, greedy: list[GreedyBatch], text: PackedText, *, rows: int, every: int, seed: int) -> None:
        self.greedy = [part for batch in greedy for part in batch.split(rows)]
        self.text = text
        self.every = every
        self.seed = seed

    def __iter__(self) -> Iterator[Tensor | GreedyBatch]:
        rng = random.Random(self.seed)
        text = iter(self.text)
        step = 0
        while True:
            for batch in rng.sample(self.greedy, len(self.greedy)):
                yield batch
                step += 1
                if step % self.every == 0:
                    yield next(text)


class DraftModule(TimedModule):
    """Distils the target. Text ([rows, length + 1] ids): cross-entropy to its distribution.

    Greedy text: cross-entropy to a mixture of its argmax and its top tokens, renormalised.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        target: LlamaForCausalLM,
        *,
        compile_loss: bool,
        argmax_weight: float,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.argmax_weight = argmax_weight

        def text_loss(batch: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                with torch.no_grad():
                    taught = target(input_ids=batch, use_cache=False).logits
                logits = model(input_ids=batch, use_cache=False).logits
            shares = taught.float().softmax(dim=-1)
            expected = (shares * logits.float()).sum(dim=-1)
            loss: Tensor = (logits.float().logsumexp(dim=-1) - expected).mean()
            return loss

        def greedy_loss(states: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
            """states [M, hidden], ids and weights [M, TOP]: mean cross-entropy to the weights."""
            with torch.autocast("cpu", torch.bfloat16):
                logits = model.lm_head(states)
            logits = logits.float()
            expected = (weights * logits.gather(1, ids)).sum(dim=1)
            loss: Tensor = (logits.logsumexp(dim=1) - expected).mean()
            return loss

        self._text_loss: LossFunction = text_loss
        self._greedy_loss: LossFunction = greedy_loss
        if compile_loss:
            self._text_loss = torch.compile(text_loss, dynamic=False)

    def batch_loss(self, batch: Any) -> tuple[Tensor, int]:
        if isinstance(batch, GreedyBatch):
            return self._greedy_batch_loss(batch)
        text = batch[:, :-1].contiguous()
        return self._text_loss(text), text.numel()

    def _greedy_batch_loss(self, batch: GreedyBatch) -> tuple[Tensor, int]:
        count = batch.valid.shape[1]
        with torch.autocast("cpu", torch.bfloat16):
            states = hidden_states(self.model, batch.tokens[:, :-1].long())
        shares = batch.top_logprobs.float().exp()
        weights = (1.0 - self.argmax_weight) * functional.normalize(shares, p=1.0, dim=-1)
        weights[:, :, 0] += self.argmax_weight
        valid = batch.valid
        loss = self._greedy_loss(states[:, -count:][valid], batch.top_ids.long()[valid], weights[valid])
        return loss, int(valid.sum())
