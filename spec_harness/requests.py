"""What is asked of an engine and what it gives back: requests, sequences, records of rounds. Plain values, no torch."""

from dataclasses import dataclass, field
from typing import Literal

SkipReason = Literal["cap", "budget", "target_max", "draft_max", "disabled", "low_confidence", "no_match"]
StopReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """What one request asks for. An engine that samples all requests alike refuses one that asks for something else."""

    max_new_tokens: int  # tokens, the prefill's token included
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0  # 1: all tokens
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()  # end-of-sequence ids and further stop ids; kept in the output
    max_proposal_len: int | None = None  # tokens; a cap of this request below the run's

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")


@dataclass
class SequenceData:
    """Token ids of one sequence. Its last token has been fed to no model."""

    prompt_token_ids: list[int]
    output_token_ids: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def tokens_from(self, start: int) -> list[int]:
        """Token ids at positions ``start`` to the end."""
        num_prompt = len(self.prompt_token_ids)
        if start >= num_prompt:
            return self.output_token_ids[start - num_prompt :]
        return self.prompt_token_ids[start:] + self.output_token_ids

    @property
    def token_ids(self) -> list[int]:
        return self.tokens_from(0)


@dataclass(frozen=True)
class SequenceMetadata:
    """One sequence as handed to a worker. A worker changes neither it nor anything it holds."""

    request_id: str
    seq_id: int
    data: SequenceData
    block_table: list[int]
    sampling: SamplingParams
    sample: int = 0  # index among the sequences of one request


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to complete, ``num_samples`` times."""

    request_id: str
    prompt: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    category: str = "default"
    turn: int = 0
    num_samples: int = 1


@dataclass(frozen=True, kw_only=True)
class RoundOutcome:
    """What one round gave one sequence, token by token."""

    num_accepted: int  # a: unbroken accepted prefix
    num_aligned: int  # n: draft tokens that pass the acceptance test regardless of earlier rejections
    draft_token_ids: list[int]
    output_token_ids: list[int]
    draft_probs: list[float]  # draft probability of each draft token
    target_probs: list[float]  # target probability of each draft token
    # At the accepted positions and the first rejected one. The last four are of the raw distributions (temperature 1),
    # in nats, and empty where the proposer has none (n-gram).
    expected_acceptance: list[float]  # sum over v of min(draft, target), processed distributions
    draft_entropy: list[float] = field(default_factory=list)
    target_entropy: list[float] = field(default_factory=list)
    kl_target_draft: list[float] = field(default_factory=list)
    target_rank_in_draft: list[int] = field(default_factory=list)  # of the target's most probable token


@dataclass(frozen=True, kw_only=True)
class RoundRecord(RoundOutcome):
    """One sequence in one round (propose, score, verify, commit).

    All is as after the end-of-sequence cut: if an end-of-sequence token was accepted at proposal index j, then
    ``proposal_len = num_accepted = num_emitted = j + 1`` and what was drafted after it is only in
    ``num_draft_tokens_past_end``. Otherwise ``num_emitted = num_accepted + 1``.
    """

    request_id: str
    turn: int
    sample: int
    round: int  # 0, 1, 2 ... within the sequence
    context_len: int  # tokens of the sequence (prompt and output) before the round
    proposal_len: int  # l: draft tokens that count
    num_emitted: int  # e
    num_draft_tokens_past_end: int
    skip_reason: SkipReason | None  # set if and only if nothing was proposed
    ended_by_accepted_eos: bool
    ended_s: float | None = None  # seconds from the sequence's admission to the round's commit


@dataclass(kw_only=True)
class RequestRecord:
    """One finished sequence of one request. Times in seconds on a monotonic clock, from its admission on; ``None``: the
    engine cannot say."""

    request_id: str
    turn: int
    sample: int
    category: str
    prompt: str
    prompt_token_ids: list[int]
    token_ids: list[int]  # the output, the prefill's token included
    text: str
    stop_reason: StopReason
    time_to_first_token: float
    time_per_output_token: float | None  # null for a single output token
    engine_s: float = 0.0  # its share of the engine's time: each step is split evenly over the sequences in it
    admitted_at: float | None = None  # Unix time, seconds
    queued_s: float | None = None  # from its arrival to its admission
    preemptions: int = 0
    rounds: list[RoundRecord] = field(default_factory=list)
    baseline_verdict: Literal["equal", "tie", "fault"] | None = None
