"""Prompt lookup: what followed the last few tokens the last time they occurred in this very sequence.

After Saxena, "Prompt lookup decoding" (2023), as vLLM's n-gram speculator does it. No model, so no KV cache.
"""

from dataclasses import dataclass

from spec_harness.proposers.base import ProposalContext, Proposals, Proposer, ProposerEnv, ProposerSpec


class NgramProposer(Proposer):
    """Looks up windows of ``max_window`` down to ``min_window`` last tokens, the longest first."""

    def __init__(self, env: ProposerEnv, *, max_window: int, min_window: int) -> None:
        super().__init__(env)
        if not 1 <= min_window <= max_window:
            raise ValueError(f"1 <= min_window <= max_window must hold, not {min_window} and {max_window}")
        self._windows = range(max_window, min_window - 1, -1)

    def propose(self, context: ProposalContext) -> Proposals:
        wanted = zip(context.sequences, context.max_lens, strict=True)
        return Proposals.from_lists([self._look_up(m.data.token_ids, n) if n else [] for m, n in wanted], self.env)

    def _look_up(self, tokens: list[int], max_len: int) -> list[int]:
        """Up to ``max_len`` tokens after the most recent earlier occurrence of the longest window that has one."""
        for window in self._windows:
            if window >= len(tokens):
                continue
            suffix = tokens[-window:]
            # The suffix itself, at len - window, has nothing after it: matches start before it.
            for start in range(len(tokens) - window - 1, -1, -1):
                if tokens[start : start + window] == suffix:
                    return tokens[start + window : start + window + max_len]
        return []


@dataclass(frozen=True, kw_only=True)
class NgramLookup(ProposerSpec):
    max_window: int  # tokens
    min_window: int
    name: str = "ngram"
    label: str = "n-gram lookup"

    def build(self, env: ProposerEnv) -> NgramProposer:
        return NgramProposer(env, max_window=self.max_window, min_window=self.min_window)
