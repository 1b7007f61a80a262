"""From the configuration, the models and the prompts to the settings of the engine."""

from collections.abc import Sequence

from spec_harness.config import EvalConfig, ProposalConfig
from spec_harness.data.prompts import PromptRow
from spec_harness.engine import EngineSettings, SamplerSettings, bytes_per_block, pool_size
from spec_harness.errors import UserError
from spec_harness.kv_cache.block_manager import blocks_for
from spec_harness.models.load import LoadedModel
from spec_harness.requests import Request


def engine_settings(
    config: EvalConfig, models: Sequence[LoadedModel], requests: Sequence[Request], rows: Sequence[PromptRow]
) -> EngineSettings:
    """Raises ``UserError`` for a length or a pool that cannot work with these models and prompts.

    ``models`` are the target and, if one proposes, the draft model.
    """
    k = 0 if config.proposal.kind == "none" else config.proposal.max_proposal_len
    for role, model in zip(("target", "draft"), models, strict=False):
        if k >= model.max_model_len:
            raise UserError(
                f"proposal.max_proposal_len={k} must be below the {role}'s maximum of {model.max_model_len} tokens"
            )
    sampling = SamplerSettings(
        temperature=config.sampling.temperature, top_k=config.sampling.top_k or 0, top_p=config.sampling.top_p
    )
    largest = _largest_request(config, models[0], requests, rows)
    at_once = min(config.max_num_seqs, sum(request.num_samples for request in requests))
    num_blocks = _num_blocks(config, models, largest, at_once)
    return EngineSettings(
        block_size=config.kv_cache.block_size,
        num_blocks=num_blocks,
        num_host_blocks=_num_host_blocks(config, models, largest, at_once),
        preemption="swap" if config.kv_cache.preemption == "swap" else "recompute",
        max_num_seqs=config.max_num_seqs,
        max_proposal_len=k,
        min_draft_prob=config.proposal.min_draft_prob,
        disable_above_batch=config.proposal.disable_above_batch,
        target_sampling=sampling,
        draft_sampling=_draft_sampling(config.proposal, sampling),
    )


def _draft_sampling(proposal: ProposalConfig, target: SamplerSettings) -> SamplerSettings:
    if proposal.draft_sampling == "same":
        return target
    if proposal.draft_sampling == "greedy":
        return SamplerSettings()
    return SamplerSettings(
        temperature=proposal.draft_temperature or 0.0,
        top_k=proposal.draft_top_k or 0,
        top_p=1.0 if proposal.draft_top_p is None else proposal.draft_top_p,
    )


def _largest_request(
    config: EvalConfig, target: LoadedModel, requests: Sequence[Request], rows: Sequence[PromptRow]
) -> int:
    """KV blocks of the largest request at its full length."""
    longest = target.max_model_len  # of later turns nothing else is known yet
    if all(row.turns is None or len(row.turns) == 1 for row in rows):
        longest = max(min(len(r.prompt_token_ids) + r.sampling.max_new_tokens, longest) for r in requests)
    return blocks_for(longest - 1, config.kv_cache.block_size)


def _num_blocks(config: EvalConfig, models: Sequence[LoadedModel], largest: int, at_once: int) -> int:
    """As configured, or sized: on a GPU what fits, on the CPU the largest request for each sequence running at once."""
    cache = config.kv_cache
    num_blocks = cache.num_blocks
    if num_blocks is None:
        share = cache.gpu_memory_utilization
        num_blocks = pool_size(models, block_size=cache.block_size, memory_share=share, on_cpu=at_once * largest)
    if num_blocks < largest:
        raise UserError(
            f"kv_cache.num_blocks={num_blocks} is too small: the largest request needs {largest} (of "
            f"{cache.block_size} tokens)"
        )
    return num_blocks


def _num_host_blocks(config: EvalConfig, models: Sequence[LoadedModel], largest: int, at_once: int) -> int:
    """What fits into the swap space, and not more than could ever be swapped out."""
    if config.kv_cache.preemption != "swap":
        return 0
    fitting = int(min(config.kv_cache.swap_space_gib, 2**30) * 2**30) // bytes_per_block(
        models, config.kv_cache.block_size
    )
    return min(fitting, at_once * largest)
