"""How long a proposal may be, and why there is none."""

from spec_harness.requests import SequenceMetadata, SkipReason


def plan_proposal_len(
    metadata: SequenceMetadata, *, max_proposal_len: int, target_max: int, draft_max: int | None
) -> tuple[int, SkipReason | None]:
    """The proposal length l of one sequence of ``len`` tokens in its next round, and the reason if it is 0.

    ``remaining = min(max_new_tokens - generated, target_max - len)``, ``l = max(0, min(max_proposal_len, the request's
    cap, remaining - 1, draft_max + 1 - len))``: a round emits up to l + 1 tokens, and the draft is fed positions up to
    len + l - 2. The origin (vLLM v0) proposes either k tokens or none, none already where ``len + k >= max_model_len``:
    two tokens stricter than the positions need. The reason is the first of the smallest terms.
    """
    length, generated = len(metadata.data), len(metadata.data.output_token_ids)
    cap = metadata.sampling.max_proposal_len
    terms: list[tuple[int, SkipReason]] = [
        (max_proposal_len if cap is None else min(max_proposal_len, cap), "cap"),
        (metadata.sampling.max_new_tokens - generated - 1, "budget"),
        (target_max - length - 1, "target_max"),
    ]
    if draft_max is not None:
        terms.append((draft_max + 1 - length, "draft_max"))
    bound, reason = min(terms, key=lambda term: term[0])
    return (bound, None) if bound > 0 else (0, reason)
