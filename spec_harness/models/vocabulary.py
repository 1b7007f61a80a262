"""Whether draft and target speak the same tokens."""

from transformers import PreTrainedTokenizerBase

from spec_harness.errors import UserError


def check_vocabularies(draft: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> None:
    """An id must mean the same text to both, as far as both have it: draft tokens go to the target by their ids.

    Equal sizes prove nothing, so the tokens themselves are compared.
    """
    ours = {index: token for token, index in draft.get_vocab().items()}
    theirs = {index: token for token, index in target.get_vocab().items()}
    for index in sorted(ours.keys() & theirs.keys()):
        if ours[index] != theirs[index]:
            raise UserError(
                f"draft and target have different tokenizers: token {index} is {ours[index]!r} to the draft and "
                f"{theirs[index]!r} to the target; use a draft with the target's vocabulary"
            )
