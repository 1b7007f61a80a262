"""The Lightning modules of the two models, on a schedule measured in minutes."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset
from transformers import LlamaForCausalLM

from tiny_pair.models import build_optimizers, hidden_states, schedule_factor

LossFunction = Callable[..., Tensor]


class TimedModule(lightning.LightningModule, ABC):
    """Trains for a wall time: the learning rate follows the elapsed fraction of it.

    The elapsed time is saved in the checkpoint, so a resumed run keeps its schedule and a
    loaded machine gives fewer steps, never an unfinished decay.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        *,
        minutes: float,
        matrix_lr: float,
        other_lr: float,
        held_out: list[Tensor],
        data_note: str,
        evaluate_minutes: float = 5.0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.minutes = minutes
        self.matrix_lr = matrix_lr
        self.other_lr = other_lr
        self.held_out = held_out
        self.data_note = data_note
        self.evaluate_minutes = evaluate_minutes
        self.elapsed = 0.0
        self.tokens_seen = 0
        self.steps = 0
        self.smoothed: float | None = None
        self.history: list[tuple[int, str]] = []  # (tokens seen, what is said of the data then on)
        self._last_tick = 0.0
        self._last_evaluation = 0.0

    @abstractmethod
    def batch_loss(self, batch: Any) -> tuple[Tensor, int]:
        """Mean loss of a batch, and how many tokens it trains on; the target and each stage of the draft define it."""

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return build_optimizers(self.model, matrix_lr=self.matrix_lr, other_lr=self.other_lr)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # everything stays on the CPU; Lightning refuses frozen dataclasses

    def on_train_start(self) -> None:
        self._last_tick = time.monotonic()
        self._last_evaluation = self.elapsed
        if not self.history or self.history[-1][1] != self.data_note:
            self.history.append((self.tokens_seen, self.data_note))

    def training_step(self, batch: Any, batch_index: int) -> None:
        fraction = min(self.elapsed / (60.0 * self.minutes), 1.0)
        factor = schedule_factor(fraction)
        optimizers = self.optimizers()
        assert isinstance(optimizers, list)
        for optimizer, peak in zip(optimizers, (self.matrix_lr, self.other_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
        loss, tokens = self.batch_loss(batch)
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self._count(float(loss.detach()), tokens)

    def _count(self, loss: float, tokens: int) -> None:
        self.smoothed = loss if self.smoothed is None else 0.95 * self.smoothed + 0.05 * loss
        self.tokens_seen += tokens
        self.steps += 1
        now = time.monotonic()
        self.elapsed += now - self._last_tick
        self._last_tick = now
        self.log("loss", self.smoothed, prog_bar=True)
        self.log("min", self.elapsed / 60.0, prog_bar=True)
        if self.elapsed - self._last_evaluation > 60.0 * self.evaluate_minutes:
            self._last_evaluation = self.elapsed
            self.report()
        if self.elapsed >= 60.0 * self.minutes:
            self.trainer.should_stop = True

    def on_train_end(self) -> None:
        self.report()

    def report(self) -> None:
        self.model.eval()
        held_out = cross_entropy(self.model, self.held_out)
        self.model.train()
        print(
            f"\nminute {self.elapsed / 60:.1f}  step {self.steps}  tokens {self.tokens_seen}  "
            f"loss {self.smoothed or 0:.3f}  held-out cross-entropy {held_out:.4f}",
            flush=True,
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["tiny_pair"] = {
            "elapsed": self.elapsed,
            "tokens_seen": self.tokens_seen,
            "steps": self.steps,
            "minutes": self.minutes,
            "history": self.history,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint["tiny_pair"]
        self.elapsed = saved["elapsed"]
        self.tokens_seen = saved["tokens_seen"]
        self.steps = saved["steps"]
        self.history = saved["history"]


class TargetModule(TimedModule):
    """Next-token cross-entropy on packed text; a batch is [rows, length + 1] ids."""

    def __init__(self, model: LlamaForCausalLM, *, compile_loss: bool, **options: Any) -> None:
        super().__init__(model, **options)

        def loss(batch: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(input_ids=batch[:, :-1], use_cache=False).logits
            return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

        self._compiled: LossFunction = torch.compile(loss, dynamic=False) if compile_loss else loss

    def batch_loss(self, batch: Tensor) -> tuple[Tensor, int]:
        return self._compiled(batch), batch[:, 1:].numel()


@torch.no_grad()
def cross_entropy(model: LlamaForCausalLM, batches: list[Tensor]) -> float:
    """Nats a token over [rows, length + 1] batches."""
    total, count = 0.0, 0
    for batch in batches:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model.lm_head(hidden_states(model, batch[:, :-1]))
        targets = batch[:, 1:].flatten()
        losses = functional.cross_entropy(logits.float().flatten(0, 1), targets, reduction="sum")
        total += float(losses)
        count += targets.numel()
    return total / count


def fit(module: TimedModule, batches: IterableDataset[Any], *, folder: Path, checkpoint_steps: int) -> None:
    """Trains, going on from the folder's last checkpoint where there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    last = folder / "last.ckpt"
    if saved_counts(folder)["elapsed"] >= 60.0 * module.minutes:
        print(f"{folder.name}: already trained for {module.minutes:g} minutes")
        return
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        logger=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(
                dirpath=folder,
                filename="last",
                every_n_train_steps=checkpoint_steps,
                save_top_k=1,
                monitor=None,
                enable_version_counter=False,
            ),
            TQDMProgressBar(refresh_rate=20),
        ],
    )
    loader: DataLoader[Any] = DataLoader(batches, batch_size=None)
    trainer.fit(
        module,
        train_dataloaders=loader,
        ckpt_path=str(last) if last.exists() else None,
        weights_only=False,
    )
    trainer.save_checkpoint(last)


def load_weights(model: LlamaForCausalLM, folder: Path) -> dict[str, Any]:
    """Puts the last checkpoint's weights into a model; returns what the run counted."""
    checkpoint = torch.load(folder / "last.ckpt", map_location="cpu", weights_only=False)
    prefix = "model."
    state = {
        name.removeprefix(prefix): value for name, value in checkpoint["state_dict"].items() if name.startswith(prefix)
    }
    model.load_state_dict(state)
    counts: dict[str, Any] = checkpoint["tiny_pair"]
    return counts


def saved_counts(folder: Path) -> dict[str, Any]:
    """What the folder's last checkpoint counted; zeros without one."""
    last = folder / "last.ckpt"
    if not last.exists():
        return {"elapsed": 0.0, "tokens_seen": 0, "steps": 0}
    counts: dict[str, Any] = torch.load(last, map_location="cpu", weights_only=False)["tiny_pair"]
    return counts
