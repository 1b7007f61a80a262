"""Sequences as the engine sees them: token ids, lengths and sampling parameters. No torch."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """What one request asks for. Temperature, top-k and top-p belong to the sampler of a worker, not to a request."""

    max_new_tokens: int  # tokens, the prefill's token included
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
