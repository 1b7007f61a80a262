"""The baseline: plain autoregressive decoding is speculative decoding that proposes nothing."""

from dataclasses import dataclass, replace

from spec_harness.proposers.base import ProposalContext, Proposals, Proposer, ProposerEnv, ProposerSpec
from spec_harness.requests import SkipReason


class NoProposer(Proposer):
    """k = 0, so that the baseline runs through the very code it is compared with."""

    skip_reason: SkipReason = "cap"

    def __init__(self, env: ProposerEnv) -> None:
        super().__init__(replace(env, max_proposal_len=0))

    def propose(self, context: ProposalContext) -> Proposals:
        return Proposals.from_lists([[] for _ in context.sequences], self.env)


@dataclass(frozen=True, kw_only=True)
class NoProposals(ProposerSpec):
    name: str = "none"
    label: str = "no proposals"

    def build(self, env: ProposerEnv) -> NoProposer:
        return NoProposer(env)
