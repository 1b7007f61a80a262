"""Oracle 5: sampled output follows the target's distribution, whatever the draft.

The verifier alone is tried on many rows at once, one request key each; then the whole engine on many requests. That the
test can fail is shown by three wrong verifiers.
"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from spec_harness.engine.verifiers.rejection import RejectionSampler
from spec_harness.models.load import LoadedModel
from spec_harness.models.paged_check import dense_logits
from spec_harness.proposers.base import Proposals
from spec_harness.worker.randomness import Stream, request_keys, sample_race, uniform
from tests.chi_square import p_value
from tests.helpers import CPU, acceptance_rate, noisy_copy, request, run, scheduler, tiny_loaded

VOCAB, K, DRAWS, FIRST_POSITION = 5, 3, 40_000, 17
Verifier = Callable[[Tensor, Proposals, Tensor, Tensor], tuple[Tensor, Tensor]]


def random_probs(*shape: int, seed: int, sharpness: float = 1.5) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * sharpness).softmax(-1)


class Case:
    """A target and a draft whose distributions depend on the tokens before: tables by position and last token."""

    def __init__(self, *, draft: str, seed: int, lens: int = K) -> None:
        self.target = random_probs(K + 1, VOCAB, VOCAB, seed=seed)
        other = random_probs(K, VOCAB, VOCAB, seed=seed + 1)
        self.draft = {
            "other": other,
            "equal": self.target[:K],
            "greedy": torch.nn.functional.one_hot(other.argmax(-1), VOCAB).float(),
            "some tokens only": other * (torch.arange(VOCAB) % 2 == 0) / other[..., ::2].sum(-1, keepdim=True),
        }[draft]
        self.lens = lens

    def draw(self, verify: Verifier, rounds: int = 2) -> tuple[Tensor, float]:
        """The first two tokens emitted of each of ``DRAWS`` requests, and the share of draft tokens accepted.

        A request whose first round emitted one token gets another round at the next position, with the same key.
        """
        keys = request_keys(range(DRAWS), [0] * DRAWS, device=CPU)
        emitted = torch.full((DRAWS, rounds), -1)
        done, accepted, drafted = torch.zeros(DRAWS, dtype=torch.int64), 0, 0
        last = torch.zeros(DRAWS, dtype=torch.int64)
        for _ in range(rounds):
            rows = (done < rounds).nonzero().flatten()
            start = done[rows]
            proposals, scored = self._propose(keys[rows], start, last[rows])
            output, num_accepted = verify(scored, proposals, keys[rows], start + FIRST_POSITION)
            accepted, drafted = accepted + int(num_accepted.sum()), drafted + sum(proposals.lens)
            for i in range(output.shape[1]):
                place = start + i
                valid = (output[:, i] >= 0) & (place < rounds)
                emitted[rows[valid], place[valid]] = output[valid, i]
            done[rows] += num_accepted + 1
            last[rows] = output.gather(1, num_accepted[:, None]).squeeze(1)
        return emitted, accepted / max(1, drafted)

    def _propose(self, keys: Tensor, start: Tensor, last: Tensor) -> tuple[Proposals, Tensor]:
        rows = len(keys)
        tokens, probs = torch.full((rows, K), -1), torch.zeros(rows, K, VOCAB)
        scored = torch.zeros(rows, K + 1, VOCAB)
        for i in range(self.lens + 1):
            place = (start + i).clamp_max(K)
            scored[:, i] = self.target[place, last]
            if i < self.lens:
                probs[:, i] = self.draft[place.clamp_max(K - 1), last]
                last = sample_race(probs[:, i], keys, start + i + FIRST_POSITION, Stream.DRAFT_TOKEN)
                tokens[:, i] = last
        return Proposals(tokens, [self.lens] * rows, probs), scored

    def exact(self) -> np.ndarray:
        """Probability of each pair of first two tokens."""
        return (self.target[0, 0][:, None] * self.target[1]).double().numpy()


def right(target: Tensor, proposals: Proposals, keys: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    verified = RejectionSampler().verify(target, proposals, keys, first)
    return verified.output_token_ids, verified.num_accepted


def p_values(case: Case, verify: Verifier) -> tuple[float, float, float]:
    """Of the first token, of the first two, and the acceptance rate."""
    emitted, rate = case.draw(verify)
    pairs = torch.bincount(emitted[:, 0] * VOCAB + emitted[:, 1], minlength=VOCAB**2).view(VOCAB, VOCAB).numpy()
    return p_value(pairs.sum(1), case.exact().sum(1)), p_value(pairs, case.exact()), rate


@pytest.mark.parametrize("seed", [10, 20])
@pytest.mark.parametrize(("draft", "lens"), [("other", 3), ("equal", 3), ("greedy", 3), ("some tokens only", 3)])
def test_emitted_tokens_follow_the_target(draft: str, lens: int, seed: int) -> None:
    first, both, rate = p_values(Case(draft=draft, seed=seed, lens=lens), right)
    assert first > 0.001
    assert both > 0.001
    assert rate == 1.0 if draft == "equal" else 0.01 < rate < 0.95


@pytest.mark.parametrize("lens", [0, 1, 2])
def test_shorter_proposals_and_none_follow_the_target_too(lens: int) -> None:
    first, both, _ = p_values(Case(draft="other", seed=30, lens=lens), right)
    assert first > 0.001
    assert both > 0.001


def test_acceptance_rate_is_the_overlap_of_the_distributions() -> None:
    case = Case(draft="other", seed=40, lens=1)
    keys = request_keys(range(DRAWS), [0] * DRAWS, device=CPU)
    zeros = torch.zeros(DRAWS, dtype=torch.int64)
    proposals, scored = case._propose(keys, zeros, zeros)
    verified = RejectionSampler().verify(scored, proposals, keys, zeros + FIRST_POSITION)
    overlap = float(torch.minimum(case.target[0, 0], case.draft[0, 0]).sum())
    torch.testing.assert_close(verified.expected_acceptance[:, 0], torch.full((DRAWS,), overlap))
    deviation = (overlap * (1 - overlap) / DRAWS) ** 0.5
    assert abs(float(verified.num_accepted.double().mean()) - overlap) < 4 * deviation


def wrong(target: Tensor, proposals: Proposals, keys: Tensor, first: Tensor, fault: str) -> tuple[Tensor, Tensor]:
    """A naive verifier with a planted ``fault``; with the fault "none" it is right."""
    tokens, draft = proposals.token_ids, proposals.probs
    rows, k = tokens.shape
    offsets = torch.arange(k)
    positions = first[:, None] + offsets
    u = uniform(keys[:, None].expand(rows, k), positions, Stream.ACCEPTANCE)
    q, p = (x[:, :k].gather(-1, tokens[..., None]).squeeze(-1) for x in (draft, target))
    passed = torch.ones_like(tokens, dtype=torch.bool) if fault == "accepts always" else u * q < p
    accepted = passed.long().cumprod(1).sum(1)
    row = torch.arange(rows)
    at = torch.cat([draft, torch.zeros(rows, 1, VOCAB)], dim=1)[row, accepted]
    difference = target[row, accepted] - at
    residual = difference.abs() if fault == "residual not clamped" else difference.relu()
    residual = torch.where(residual.sum(1, keepdim=True) > 0, residual, target[row, accepted])
    if fault == "one uniform for both":
        shared = uniform(keys, first + accepted, Stream.ACCEPTANCE)
        cumulative = (residual / residual.sum(1, keepdim=True)).double().cumsum(1)
        token = (cumulative < shared[:, None]).sum(1).clamp_max(VOCAB - 1)
    else:
        token = sample_race(residual, keys, first + accepted, Stream.TARGET_TOKEN)
    output = torch.where(offsets < accepted[:, None], tokens, -1)
    output = torch.cat([output, torch.full((rows, 1), -1)], dim=1)
    output[row, accepted] = token
    return output, accepted


@pytest.mark.parametrize("fault", ["accepts always", "residual not clamped", "one uniform for both"])
def test_a_wrong_verifier_fails(fault: str) -> None:
    first, both, _ = p_values(Case(draft="other", seed=10), lambda *args: wrong(*args, fault))
    assert first < 1e-6
    assert both < 1e-6


def test_the_naive_verifier_without_a_fault_passes_and_agrees() -> None:
    case = Case(draft="other", seed=10)
    emitted, _ = case.draw(lambda *args: wrong(*args, "none"))
    assert torch.equal(emitted, case.draw(right)[0])


SMALL_VOCAB, PROMPT, REQUESTS = 8, [3, 5, 4], 6000


@pytest.fixture(scope="module")
def tiny_target() -> LoadedModel:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return tiny_loaded(vocab_size=SMALL_VOCAB, intermediate_size=32, seed=1, **sizes)


def exact_joint(target: LoadedModel, temperature: float) -> np.ndarray:
    """Probability of each first three output tokens, from dense logits of every continuation."""

    def after(*tokens: int) -> Tensor:
        return (dense_logits(target.model, [*PROMPT, *tokens])[-1].double() / temperature).softmax(-1)

    first = after()
    second = torch.stack([after(a) for a in range(SMALL_VOCAB)])
    third = torch.stack([after(a, b) for a, b in itertools.product(range(SMALL_VOCAB), repeat=2)])
    joint = first[:, None, None] * second[:, :, None] * third.view(SMALL_VOCAB, SMALL_VOCAB, SMALL_VOCAB)
    return joint.numpy()


@pytest.mark.parametrize("k", [1, 3])
def test_the_whole_engine_follows_the_target(tiny_target: LoadedModel, k: int) -> None:
    """The joint of the first three tokens; a fourth one is asked for, so that proposals reach two tokens."""
    draft = noisy_copy(tiny_target, scale=0.3)
    engine = scheduler(tiny_target, draft, k=k, batch=1024, num_blocks=1024, temperature=1.5)
    requests = [request(i, PROMPT, seed=i, max_new_tokens=4) for i in range(REQUESTS)]
    records = run(engine, requests).values()
    assert len(records) == REQUESTS
    assert 0.2 < acceptance_rate(records) < 0.9
    counts = np.zeros((SMALL_VOCAB,) * 3)
    for record in records:
        counts[tuple(record.token_ids[:3])] += 1
    exact = exact_joint(tiny_target, 1.5)
    assert p_value(counts, exact) > 0.001
    assert p_value(counts, exact.transpose(1, 0, 2)) < 1e-6  # the test can fail
