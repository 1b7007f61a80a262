"""The target's own greedy text: prompts from the training files, continuations with top logits."""

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tiny_pair.decoding import GreedyDecoder

TOP = 16
MAX_PROMPT = 200
MIN_PROMPT = 10
NEW_TOKENS = (48, 96)


@dataclass(frozen=True)
class GreedyBatch:
    """Equally long prompts with the target's greedy continuation of each.

    tokens: [B, L + N] prompt and continuation. top_ids, top_logprobs: [B, N, TOP], the first
    id being the continuation. valid: [B, N], false after a first end-of-text.
    """

    tokens: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    valid: Tensor

    def split(self, rows: int) -> Iterator["GreedyBatch"]:
        parts = (self.tokens, self.top_ids, self.top_logprobs, self.valid)
        for pieces in zip(*(part.split(rows) for part in parts), strict=True):
            yield GreedyBatch(*pieces)


class PromptCutter:
    """Crops of tokenised files that start at a line and end at one, or just around it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, documents: list[Tensor]) -> None:
        vocabulary = tokenizer.get_vocab()
        newline = vocabulary["Ċ"]
        self.indents = {i for token, i in vocabulary.items() if len(token) > 1 and not token.strip("Ġ")}
        openers = {vocabulary[word] for word in ("def", "class", "@")}
        self.documents = [document[:-1].tolist() for document in documents]
        self.lines: list[list[int]] = []
        self.starts: list[tuple[int, int]] = []
        self.definitions: list[tuple[int, int]] = []
        for index, ids in enumerate(self.documents):
            lines = [0, *(i + 1 for i, token in enumerate(ids) if token == newline)]
            lines = [line for line in lines if line < len(ids)]
            self.lines.append(lines)
            for number, line in enumerate(lines):
                self.starts.append((index, number))
                first = line + (ids[line] in self.indents)
                if first < len(ids) and ids[first] in openers:
                    self.definitions.append((index, number))

    def draw(self, rng: random.Random) -> list[int] | None:
        """A prompt of MIN_PROMPT to MAX_PROMPT tokens, or nothing where the draw was short."""
        at_definition = rng.random() < 0.6
        index, number = rng.choice(self.definitions if at_definition else self.starts)
        ids, lines = self.documents[index], self.lines[index]
        start = lines[number]
        wanted = rng.randint(MIN_PROMPT, 80 if rng.random() < 0.6 else MAX_PROMPT)
        end = lines[bisect_right(lines, start + wanted) - 1]
        where = rng.random()
        if where < 0.3:
            end -= 1  # before the newline
        elif where < 0.5 and end < len(ids) and ids[end] in self.indents:
            end += 1  # after the indentation
        prompt = ids[start:end]
        return prompt if MIN_PROMPT <= len(prompt) <= MAX_PROMPT else None

    def batches(self, rng: random.Random, *, rows: int, count: int) -> list[Tensor]:
        """[rows, L] batches out of a pool four times as large, sorted by length.

        The prompts of a batch differ by a token or two: longer ones lose their first tokens.
        """
        pool: list[list[int]] = []
        while len(pool) < 4 * rows * count:
            prompt = self.draw(rng)
            if prompt is not None:
                pool.append(prompt)
        pool.sort(key=len)
        groups = [pool[i : i + rows] for i in range(0, len(pool), rows)]
        chosen = rng.sample(groups, count)
        return [torch.tensor([prompt[-len(group[0]) :] for prompt in group]) for group in chosen]


def continue_batch(decoder: GreedyDecoder, prompts: Tensor, *, new_tokens: int) -> GreedyBatch:
    logprobs, ids = decoder.continue_prompts(prompts, new_tokens=new_tokens, top=TOP)
    continuation = ids[:, :, 0]
    ended = (continuation == 0).cumsum(dim=1)
    return GreedyBatch(
        tokens=torch.cat([prompts, continuation], dim=1).to(torch.int16),
        top_ids=ids.to(torch.int16),
        top_logprobs=logprobs.to(torch.float16),
        valid=(ended == 0) | ((ended == 1) & (continuation == 0)),
    )


def generate_shards(model: LlamaForCausalLM, cutter: PromptCutter, folder: Path, *, tokens: int, seed: int) -> None:
    """Writes shards of greedy text until they hold `tokens` tokens; shards there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    decoder = GreedyDecoder(model, max_length=MAX_PROMPT + NEW_TOKENS[1])
    done, shard = 0, 0
    while done < tokens:
        path = folder / f"shard-{shard:03d}.pt"
        if not path.exists():
            rng = random.Random(seed * 1000 + shard)
            batches = [
                continue_batch(decoder, prompts, new_tokens=rng.randint(*NEW_TOKENS))
                for prompts in cutter.batches(rng, rows=128, count=12)
            ]
            torch.save([vars(batch) for batch in batches], path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        done += sum(int(part["valid"].sum()) for part in torch.load(path))
        shard += 1
        print(f"shard {shard}: {done} greedy tokens", flush=True)


def load_shards(folder: Path) -> list[GreedyBatch]:
    paths = sorted(folder.glob("shard-*.pt"))
    return [GreedyBatch(**part) for path in paths for part in torch.load(path)]
