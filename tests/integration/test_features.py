"""What a proposer sees of its target: the hidden states and logits of a dense forward, at every position it may use.

The witness keeps what it observes by sequence, and each time it is asked to propose compares all of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import attention_set_to
from spec_harness.proposers.base import ProposalContext, Proposals, Proposer, ProposerEnv, ProposerSpec
from spec_harness.requests import RequestRecord, SequenceMetadata
from spec_harness.worker.features import FeatureReader, TargetFeatures, TargetView
from spec_harness.worker.worker import Worker
from tests.helpers import noisy_copy, pool_for, prompts, request, run_samples, scheduler
from tests.inspection import drawn

LAYERS, TOP, K = (0, 1), 3, 4
WANTED = TargetView(hidden_layers=LAYERS, final_hidden=True, top_logits=TOP)
TOLERANCE = 1e-5  # of the largest value


class StaleFeaturesError(AssertionError):
    """What the proposer holds is not what the target says of these positions."""


def rows_of(features: TargetFeatures) -> Tensor:
    assert features.final_hidden is not None
    assert features.top_logits is not None
    hidden = [features.hidden[index] for index in LAYERS]
    return torch.cat([*hidden, features.final_hidden, features.top_logits], dim=1)


def dense_rows(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """The last entry of hidden_states is after the final norm: the last layer's own output is caught on its way."""
    last: list[Tensor] = []
    handle = model.get_decoder().norm.register_forward_pre_hook(lambda _, args: last.append(args[0]))
    with attention_set_to(model, "eager"):
        output = model(input_ids=torch.tensor([list(token_ids)]), use_cache=False, output_hidden_states=True)
    handle.remove()
    first, final = output.hidden_states[1], output.hidden_states[-1]
    return torch.cat([first, last[0], final, output.logits.topk(TOP, dim=-1).values], dim=-1)[0]


class Witness(Proposer):
    """Proposes what the target would say up to a wrong token, so that some is accepted and some rejected."""

    wants = WANTED
    compared: ClassVar[int] = 0

    def __init__(self, env: ProposerEnv) -> None:
        super().__init__(env)
        self.seen: dict[int, Tensor] = {}
        self.dense: dict[tuple[int, ...], Tensor] = {}

    def observe(self, sequences: Sequence[SequenceMetadata], features: Sequence[TargetFeatures]) -> None:
        for sequence, part in zip(sequences, features, strict=True):
            rows = rows_of(part)
            held = self.seen.get(sequence.seq_id, rows[:0])
            if len(held) != part.start:
                raise StaleFeaturesError(f"{len(held)} positions held, seen from {part.start} on")
            self.seen[sequence.seq_id] = torch.cat([held, rows])

    def rewind(self, seq_id: int, length: int) -> None:
        self.seen[seq_id] = self.seen[seq_id][: length - 1]

    def preempt(self, seq_id: int) -> None:
        del self.seen[seq_id]

    def finish(self, seq_id: int) -> None:
        del self.seen[seq_id]

    def fork(self, parent: SequenceMetadata, children: Sequence[int]) -> None:
        for child in children:
            self.seen[child] = self.seen[parent.seq_id]

    def propose(self, context: ProposalContext) -> Proposals:
        rows = []
        for sequence, most in zip(context.sequences, context.max_lens, strict=True):
            self._compare(sequence)
            rows.append(self._continued(sequence.data.token_ids, most))
        return Proposals.from_lists(rows, self.env)

    def _compare(self, sequence: SequenceMetadata) -> None:
        ids = sequence.data.token_ids[:-1]
        held = self.seen.get(sequence.seq_id)
        if held is None or len(held) != len(ids):
            raise StaleFeaturesError(f"{0 if held is None else len(held)} positions held of {len(ids)}")
        dense = self._dense(ids)
        difference = float((held - dense).abs().max() / dense.abs().max())
        if not difference < TOLERANCE:
            raise StaleFeaturesError(f"off by {difference}")
        type(self).compared += len(ids)

    def _dense(self, ids: list[int]) -> Tensor:
        key = tuple(ids)
        if key not in self.dense:
            self.dense[key] = dense_rows(self.env.target.model, ids)
        return self.dense[key]

    def _continued(self, ids: list[int], most: int) -> list[int]:
        """The target's own next token, then an arbitrary one: partly rejected."""
        if not most:
            return []
        with attention_set_to(self.env.target.model, "eager"):
            best = int(self.env.target.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
        return [best, *range(5, 4 + most)]


@dataclass(frozen=True, kw_only=True)
class WitnessSpec(ProposerSpec):
    name: str = "witness"
    label: str = "witness"

    def build(self, env: ProposerEnv) -> Witness:
        return Witness(env)


def play(target: LoadedModel, *, samples: int = 1, share: float | None = None, **options: Any) -> list[RequestRecord]:
    asked = [
        request(i, prompt, max_new_tokens=14, num_samples=samples)
        for i, prompt in enumerate(prompts(6 if samples == 1 else 2, seed=13, low=3, high=20))
    ]
    if share is not None:
        options["num_blocks"] = pool_for(share, asked, block_size=options["block_size"])
    engine = scheduler(target, WitnessSpec(), k=K, **options)
    Witness.compared = 0
    with torch.inference_mode():
        records = run_samples(engine, asked)
    assert isinstance(engine.worker.proposer, Witness)
    assert not engine.worker.proposer.seen
    assert Witness.compared > 500 if samples == 1 else Witness.compared > 100
    rounds = [r for record in records.values() for r in record.rounds]
    assert any(r.num_accepted for r in rounds)
    assert any(r.num_accepted < r.proposal_len for r in rounds)
    if share is not None:
        assert engine.stats.preemptions
    return [records[key] for key in sorted(records)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("batch", [1, 5])
def test_every_position_is_what_a_dense_forward_gives(
    target: LoadedModel, batch: int, block_size: int, temperature: float
) -> None:
    play(target, batch=batch, block_size=block_size, temperature=temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_tight_pool_changes_neither_features_nor_statistics(
    target: LoadedModel, preemption: str, temperature: float
) -> None:
    roomy = play(target, batch=5, block_size=4, temperature=temperature)
    tight = play(
        target,
        batch=5,
        block_size=4,
        temperature=temperature,
        share=1.6,
        preemption=preemption,
        num_host_blocks=30 if preemption == "swap" else 0,
    )
    assert [drawn(record) for record in tight] == [drawn(record) for record in roomy]


@pytest.mark.parametrize("share", [None, 1.6])
def test_forks_go_on_from_their_parent_s_features(target: LoadedModel, share: float | None) -> None:
    play(target, samples=3, batch=5, block_size=4, temperature=0.8, share=share)


def off_by_one_position(patch: pytest.MonkeyPatch) -> None:
    run = FeatureReader.run

    def shifted(self: FeatureReader, *args: Any) -> Any:
        logits, features = run(self, *args)
        for part in features:
            for index in part.hidden:
                part.hidden[index] = part.hidden[index].roll(1, dims=0)
        return logits, features

    patch.setattr(FeatureReader, "run", shifted)


def kept_at_rewind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Witness, "rewind", lambda self, seq_id, length: None)


def not_seen_again_after_recompute(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "catch_up", lambda self, metadata: None)


def preempted_untold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Witness, "preempt", lambda self, seq_id: None)


@pytest.mark.parametrize(
    "fault", [off_by_one_position, kept_at_rewind, not_seen_again_after_recompute, preempted_untold]
)
def test_a_planted_fault_is_noticed(
    target: LoadedModel, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    with pytest.raises(StaleFeaturesError):
        play(target, batch=5, block_size=4, share=1.6)


def test_nobody_asks_and_nothing_is_hooked(target: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FeatureReader, "run", lambda *_: pytest.fail("features were read"))
    hooks = [len(module._forward_hooks) for module in target.model.modules()]
    run_samples(scheduler(target, noisy_copy(target, scale=0.02)), [request(0, [1, 2, 3])])
    assert [len(module._forward_hooks) for module in target.model.modules()] == hooks
