"""How long a proposal may be, and why there is none."""

from dataclasses import dataclass

from spec_harness.requests import SequenceMetadata, SkipReason


@dataclass(frozen=True, kw_only=True)
class ProposalLengths:
    """Proposes as much as every limit allows."""

    max_proposal_len: int
    target_max: int  # tokens
    draft_max: int | None = None  # tokens; None: any number
    disable_above_batch: int | None = None  # no proposals while more sequences run

    def plan(self, metadata: SequenceMetadata, *, batch: int) -> tuple[int, SkipReason | None]:
        """The proposal length l of one sequence of ``len`` tokens in its next round, and the reason if it is 0.

        ``remaining = min(max_new_tokens - generated, target_max - len)``, ``l = max(0, min(max_proposal_len, the
        request's cap, remaining - 1, draft_max + 1 - len))``: a round emits up to l + 1 tokens, and the draft is fed
        positions up to len + l - 2. The origin (vLLM v0) proposes either k tokens or none, none already where ``len + k
        >= max_model_len``: two tokens stricter than the positions need. The reason is the first of the smallest terms.
        """
        if self.disable_above_batch is not None and batch > self.disable_above_batch:
            return 0, "disabled"
        length, generated = len(metadata.data), len(metadata.data.output_token_ids)
        cap = metadata.sampling.max_proposal_len
        terms: list[tuple[int, SkipReason]] = [
            (self.max_proposal_len if cap is None else min(self.max_proposal_len, cap), "cap"),
            (metadata.sampling.max_new_tokens - generated - 1, "budget"),
            (self.target_max - length - 1, "target_max"),
        ]
        if self.draft_max is not None:
            terms.append((self.draft_max + 1 - length, "draft_max"))
        bound, reason = min(terms, key=lambda term: term[0])
        return (bound, None) if bound > 0 else (0, reason)
