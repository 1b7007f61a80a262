"""Corpus, tokenizer and batches: the standard library's own sources as token streams."""

import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 4096
CONTEXT = 1024

# Newlines and indentation are tokens of their own, so a prompt cut at a line start, or after
# the indentation, is tokenised as the same text inside a file would be.
WORD_PATTERN = r"\n| {2,}| ?[^\W\d]+| ?\d+| ?[^\s\w]+|\s"

LEFT_OUT_FOLDERS = frozenset(
    {
        "test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "turtledemo",
        "encodings", "pydoc_data", "__pycache__", "lib-dynload", "ensurepip", "__phello__",
        "__pypackages__",
    }
)  # fmt: skip
LEFT_OUT_PREFIXES = ("config-", "_sysconfigdata")
LEFT_OUT_FILES = frozenset({"this.py", "antigravity.py", "stringprep.py", "entities.py"})

# Where a top-level definition starts on a line of its own.
CUT_GAP = 120  # characters; at least so long is every piece but a file's last
DEFINITION = re.compile(r"\n(?=(?:@|def |class |async def )[^\n]*)")


@dataclass(frozen=True)
class Corpus:
    """Documents of both splits; a long file gives several documents."""

    training: list[str]
    held_out: list[str]
    training_files: int
    held_out_files: int
    cutting: str


def source_files() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if LEFT_OUT_FOLDERS.intersection(parts) or path.name in LEFT_OUT_FILES:
            continue
        if any(part.startswith(LEFT_OUT_PREFIXES) for part in parts):
            continue
        files.append(path)
    return files


def split_at_definitions(text: str, rng: random.Random, *, probability: float) -> list[str]:
    """Cuts a file before some of its top-level definitions, so that a model learns to stop."""
    cuts = [0]
    for match in DEFINITION.finditer(text):
        decorated = text[: match.start()].rsplit("\n", 1)[-1].startswith("@")
        if not decorated and match.end() - cuts[-1] > CUT_GAP and rng.random() < probability:
            cuts.append(match.end())
    ends = [*cuts[1:], len(text)]
    pieces = (text[start:end].strip("\n") for start, end in zip(cuts, ends, strict=True))
    return [piece + "\n" for piece in pieces if piece.strip()]


def load_corpus(*, seed: int, held_out_files: int = 25, cut_probability: float = 0.85) -> Corpus:
    """Splits the files at random: neighbours in a listing resemble each other too much."""
    rng = random.Random(seed)
    texts = []
    for path in source_files():
        text = path.read_text(encoding="utf-8", errors="ignore").expandtabs(8)
        if len(text) > 200:
            texts.append(text)
    rng.shuffle(texts)
    documents = [split_at_definitions(text, rng, probability=cut_probability) for text in texts]
    return Corpus(
        training=[piece for file in documents[held_out_files:] for piece in file],
        held_out=[piece for file in documents[:held_out_files] for piece in file],
        training_files=len(documents) - held_out_files,
        held_out_files=held_out_files,
        cutting=f"probability {cut_probability:g}, pieces over {CUT_GAP} characters",
    )


def train_tokenizer(corpus: Corpus) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.training, trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise RuntimeError(f"the tokenizer has {tokenizer.get_vocab_size()} tokens")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def encode_documents(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> list[Tensor]:
    """One int64 tensor a document, its last token end-of-text."""
    end = tokenizer.eos_token_id
    encoded = tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]
    return [torch.tensor([*ids, end], dtype=torch.int64) for ids in encoded]


class PackedText(IterableDataset[Tensor]):
    """Endless batches [rows, length + 1] from documents shuffled and packed anew each epoch.

    Shapes alternate, so long positions are trained without paying for them in every batch.
    Every token is seen once an epoch and length; `start` continues another stream of the seed.
    """

    def __init__(
        self,
        documents: list[Tensor],
        *,
        seed: int,
        shapes: tuple[tuple[int, int], ...],
        start: int = 0,
    ) -> None:
        self.documents = documents
        self.seed = seed
        self.shapes = shapes
        self.start = start

    def __iter__(self) -> Iterator[Tensor]:
        streams = [
            self._stream(rows, length, 1000 * self.seed + 10 * self.start + index)
            for index, (rows, length) in enumerate(self.shapes)
        ]
        while True:
            for stream in streams:
                yield next(stream)

    def _stream(self, rows: int, length: int, seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self.documents), generator=generator).tolist()
            stream = torch.cat([self.documents[i] for i in order])
            offset = int(torch.randint(length, (1,), generator=generator))
            count = (stream.numel() - offset - 1) // length
            blocks = torch.randperm(count, generator=generator)
            for chunk in blocks.split(rows):
                if chunk.numel() == rows:
                    starts = offset + chunk * length
                    yield torch.stack([stream[s : s + length + 1] for s in starts.tolist()])


def held_out_batches(documents: list[Tensor], *, length: int, rows: int) -> list[Tensor]:
    """The held-out stream cut into [rows, length + 1] batches, each token predicted once."""
    stream = torch.cat(documents)
    count = (stream.numel() - 1) // length
    blocks = torch.stack([stream[i * length : i * length + length + 1] for i in range(count)])
    return list(blocks.split(rows))
