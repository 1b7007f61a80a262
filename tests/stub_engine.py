"""The real engine on models without weights: exact, fast, and able to see what is wrong with its KV cache.

A stub model's logits are a function of the tokens that it reads back from its cache. Each slot also holds the position
it was written for, so a block that was not copied, not moved, taken by another sequence or never written is noticed
where it is read, and not only once it changes a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from spec_harness.engine.native import NativeEngine
from spec_harness.engine.proposal_length import ProposalLengths
from spec_harness.engine.round import SpecDecodeWorker
from spec_harness.engine.scheduler import Scheduler
from spec_harness.engine.stage_timer import StageTimer
from spec_harness.engine.stopping import StopCriteria
from spec_harness.kv_cache.block_manager import BlockManager
from spec_harness.kv_cache.kv_cache import KVCache, LayerShape
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.base import Proposer
from spec_harness.proposers.draft_model import DraftModelTop1Proposer
from spec_harness.proposers.multi_step_worker import MultiStepWorker
from spec_harness.proposers.ngram import NgramProposer
from spec_harness.proposers.none import NoProposer
from spec_harness.worker.model_runner import ModelRunner, QueryRow
from spec_harness.worker.randomness import Stream
from spec_harness.worker.sampler import Sampler
from spec_harness.worker.worker import Worker
from tests.helpers import CPU, decode, proposer_env, tiny_loaded

VOCAB, CONTEXTS = 7, 61


class StaleKVError(AssertionError):
    """A slot holds something else than what its sequence wrote there."""


def logits_table(role: str) -> Tensor:
    """Logits by hashed context; draft and target agree about half of the time."""
    generator = torch.Generator().manual_seed(0)
    target = 2 * torch.randn(CONTEXTS, VOCAB, generator=generator)
    return target if role == "target" else target + 2 * torch.randn(CONTEXTS, VOCAB, generator=generator)


def hashed(token_ids: Sequence[int]) -> int:
    value = 0
    for token in token_ids:
        value = (7 * value + token + 1) % CONTEXTS
    return value


def greedy(prompt: Sequence[int], *, max_new_tokens: int, max_model_len: int, stop: frozenset[int]) -> list[int]:
    """What the stub target says, without any engine."""
    best = logits_table("target").argmax(-1).tolist()
    tokens = list(prompt)
    while len(tokens) < min(len(prompt) + max_new_tokens, max_model_len):
        tokens.append(best[hashed(tokens)])
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


class StubRunner(ModelRunner):
    """Writes the tokens fed as keys and their positions as values, then reads each whole sequence back."""

    def __init__(self, cache: KVCache, role: str) -> None:
        self.cache = cache
        self._table = logits_table(role)

    def run(self, rows: Sequence[QueryRow], pending: Tensor | None = None) -> Tensor:
        size = self.cache.block_size
        drafted = iter([] if pending is None else pending.tolist())
        slots: list[list[int]] = []
        for row in rows:
            tokens = row.token_ids + [next(drafted) for _ in range(row.num_pending)]
            slots.append([row.block_table[p // size] * size + p % size for p in range(row.end)])
            new = torch.tensor(slots[-1][row.start :])
            key, value = torch.tensor(tokens), torch.arange(row.start, row.end)
            self.cache.write(0, new, key.float().view(-1, 1, 1), value.float().view(-1, 1, 1))
        contexts: list[int] = []
        for row, own in zip(rows, slots, strict=True):
            key, value = self.cache.gather(0, torch.tensor([own]))
            if value.flatten().tolist() != list(range(row.end)):  # NaN too
                raise StaleKVError(f"positions {value.flatten().tolist()} in blocks {row.block_table}")
            tokens = [int(token) for token in key.flatten().tolist()]
            contexts += [hashed(tokens[: row.end - i]) for i in reversed(range(row.num_logits))]
        return self._table[torch.tensor(contexts)]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a stub engine is made with."""

    k: int = 3
    batch: int = 4
    block_size: int = 2
    num_blocks: int = 400
    num_host_blocks: int = 0
    preemption: str = "recompute"
    proposer: str = "draft"
    draft_max: int = 40
    target_max: int = 40
    temperature: float = 0.0
    min_draft_prob: float = 0.0
    layers: list[LayerShape] = field(default_factory=lambda: [LayerShape(1, 1, 1)])


def _runner(setup: Setup, role: str) -> StubRunner:
    cache = KVCache(
        setup.layers,
        num_blocks=setup.num_blocks,
        block_size=setup.block_size,
        num_host_blocks=setup.num_host_blocks,
        dtype=torch.float32,
        device=CPU,
    )
    return StubRunner(cache, role)


def _proposer(setup: Setup) -> Proposer:
    env = proposer_env(_target_of_env(), k=setup.k)
    if setup.proposer == "none" or (setup.proposer == "draft" and setup.k == 0):
        return NoProposer(env)
    if setup.proposer == "ngram":
        return NgramProposer(env, max_window=2, min_window=1)
    sampler = Sampler(temperature=setup.temperature, stream=Stream.DRAFT_TOKEN, vocab_size=VOCAB)
    worker = MultiStepWorker(
        _runner(setup, "draft"), sampler, max_model_len=setup.draft_max, min_prob=setup.min_draft_prob
    )
    return DraftModelTop1Proposer(env, worker)


@cache
def _target_of_env() -> LoadedModel:
    """Of it, these proposers only ask the vocabulary and the device."""
    return tiny_loaded(vocab_size=VOCAB)


def stub_engine(setup: Setup) -> NativeEngine:
    sampler = Sampler(temperature=setup.temperature, stream=Stream.TARGET_TOKEN)
    target = Worker(_runner(setup, "target"), sampler, max_model_len=setup.target_max)
    blocks = BlockManager(
        num_blocks=setup.num_blocks, block_size=setup.block_size, num_host_blocks=setup.num_host_blocks
    )
    proposer = _proposer(setup)
    lengths = ProposalLengths(
        max_proposal_len=0 if setup.proposer == "none" else setup.k,
        target_max=setup.target_max,
        draft_max=proposer.max_model_len,
    )
    return NativeEngine(
        SpecDecodeWorker(proposer, target, StageTimer(CPU)),
        Scheduler(
            blocks,
            max_num_seqs=setup.batch,
            max_proposal_len=lengths.max_proposal_len,
            swap=setup.preemption == "swap",
        ),
        lengths,
        StopCriteria(decode),
    )
