"""When a sequence ends by what it says: end-of-sequence ids, stop ids, stop strings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spec_harness.requests import SequenceMetadata, StopReason


@dataclass(frozen=True)
class StopCriteria:
    """Stop ids belong to the request (``SamplingParams.stop_token_ids``), stop strings to the run."""

    decode: Callable[[list[int]], str]  # token ids to text
    stop_strings: tuple[str, ...] = ()

    def first_stop(self, metadata: SequenceMetadata, emitted: Sequence[int]) -> tuple[int, StopReason] | None:
        """Index among the ``emitted`` tokens (not yet appended) of the first one that ends the sequence, and why."""
        output = metadata.data.output_token_ids
        for index, token in enumerate(emitted):
            if token in metadata.sampling.stop_token_ids:
                return index, "eos"
            if self.stop_strings and self._says_stop([*output, *emitted[: index + 1]]):
                return index, "stop"
        return None

    def _says_stop(self, output: list[int]) -> bool:
        text = self.decode(output)
        return any(stop in text for stop in self.stop_strings)
