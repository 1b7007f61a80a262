"""What the target computes on the way to its logits, for whoever asks: hidden states and top logits by position.

Forward hooks read them off the unmodified model while it runs on the paged cache, whatever logits were asked for.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from spec_harness.errors import UserError
from spec_harness.worker.model_runner import ModelRunner, QueryRow


@dataclass(frozen=True, kw_only=True)
class TargetView:
    """Which features of the target a proposer wants to see; none by default."""

    hidden_layers: tuple[int, ...] = ()  # i: the output of decoder layer i = transformers' hidden_states[i + 1]
    final_hidden: bool = False  # what the head takes: after the final norm
    top_logits: int = 0  # largest raw logits at every position

    def __bool__(self) -> bool:
        return bool(self.hidden_layers or self.final_hidden or self.top_logits)


@dataclass(frozen=True, kw_only=True)
class TargetFeatures:
    """What one pass of the target gave at the T tokens that it fed of one sequence: positions ``start`` and on.

    Rows past the committed length are of draft tokens, and stand only as far as those are accepted.
    """

    start: int
    hidden: dict[int, Float[Tensor, "T H"]] = field(default_factory=dict)  # by decoder layer
    final_hidden: Float[Tensor, "T H"] | None = None
    top_logits: Float[Tensor, "T n"] | None = None
    top_token_ids: Int[Tensor, "T n"] | None = None


class FeatureReader:
    """Runs forwards of one model and reads a view's features off them. Hooks stand only for the time of a forward: the
    model may serve other engines too."""

    def __init__(self, model: PreTrainedModel, view: TargetView) -> None:
        self._view = view
        self._decoder: nn.Module = model.get_decoder()
        layers = _layers_of(self._decoder, model.config.get_text_config().num_hidden_layers)
        for index in view.hidden_layers:
            if not 0 <= index < len(layers):
                raise UserError(
                    f"the proposer wants hidden states of layer {index}, but the target has layers 0 to "
                    f"{len(layers) - 1}"
                )
        self._layers = {index: layers[index] for index in view.hidden_layers}

    def run(
        self, runner: ModelRunner, rows: Sequence[QueryRow], pending: Int[Tensor, " P"] | None
    ) -> tuple[Float[Tensor, "N V"], list[TargetFeatures]]:
        """The logits of ``ModelRunner.run``, and the features of each row."""
        every = [replace(row, num_logits=row.num_tokens) for row in rows] if self._view.top_logits else rows
        with self._recorded() as seen:
            logits = runner.run(every, pending)
        lens = [row.num_tokens for row in rows]
        hidden = {index: seen[index][0].split(lens) for index in self._layers}
        final = seen["final"][0].split(lens) if self._view.final_hidden else None
        top = logits.topk(self._view.top_logits, dim=-1) if self._view.top_logits else None
        features = [
            TargetFeatures(
                start=row.start,
                hidden={index: parts[b] for index, parts in hidden.items()},
                final_hidden=None if final is None else final[b],
                top_logits=None if top is None else top.values.split(lens)[b],
                top_token_ids=None if top is None else top.indices.split(lens)[b],
            )
            for b, row in enumerate(rows)
        ]
        if top is not None:
            keep = [part[-row.num_logits :] for part, row in zip(logits.split(lens), rows, strict=True)]
            logits = torch.cat(keep)
        return logits, features

    @contextmanager
    def _recorded(self) -> Iterator[dict[int | str, Tensor]]:
        seen: dict[int | str, Tensor] = {}

        def record(key: int | str) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                seen[key] = output if isinstance(output, Tensor) else output[0]

            return hook

        with ExitStack() as hooks:
            for index, layer in self._layers.items():
                hooks.enter_context(layer.register_forward_hook(record(index)))
            if self._view.final_hidden:  # a decoder's output is its last hidden state, normed
                hooks.enter_context(self._decoder.register_forward_hook(record("final")))
            yield seen


def _layers_of(decoder: nn.Module, count: int) -> nn.ModuleList:
    """Most decoders call them ``layers``, some ``h`` or ``blocks``."""
    for child in decoder.children():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return child
    raise UserError(f"{type(decoder).__name__}: its {count} layers are in no list of its own, so none can be watched")
