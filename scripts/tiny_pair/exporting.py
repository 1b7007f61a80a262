"""Checkpoints and model cards; every figure in a card is measured on the exported weights."""

import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tiny_pair.data import Corpus
from tiny_pair.measuring import Acceptance, TextFigures
from tiny_pair.models import parameter_count


@dataclass(frozen=True)
class PairFigures:
    """What both cards quote. `builtin` is absent where there are no evaluation prompts."""

    text: TextFigures
    held_out: Acceptance
    builtin: Acceptance | None


def export_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """bf16 safetensors with the tokenizer beside them."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy = copy.bfloat16()
    copy.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=0, do_sample=False)
    copy.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)
    # The class name every version of transformers knows, and nothing about this machine.
    path = folder / "tokenizer_config.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    settings = {key: saved[key] for key in ("eos_token", "pad_token", "model_max_length")}
    settings["clean_up_tokenization_spaces"] = False
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def load_exported(folder: Path) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    return model


def builtin_prompts(path: Path, tokenizer: PreTrainedTokenizerFast) -> list[Tensor]:
    """The packaged evaluation prompts, one [1, L] tensor each; measured on, never trained on."""
    if not path.exists():
        return []
    prompts = [json.loads(line)["prompt"] for line in path.read_text("utf-8").splitlines() if line]
    encoded = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts]
    return [torch.tensor([ids]) for ids in encoded if ids]


def shape_line(model: LlamaForCausalLM) -> str:
    config = model.config
    return (
        f"{parameter_count(model):,} parameters: hidden {config.hidden_size}, "
        f"{config.num_hidden_layers} layers, {config.num_attention_heads} heads of "
        f"{config.head_dim}, {config.num_key_value_heads} key-value heads, intermediate "
        f"{config.intermediate_size}, vocabulary {config.vocab_size:,} (tied embeddings), "
        f"{config.max_position_embeddings} positions"
    )


def acceptance_lines(figures: PairFigures) -> list[str]:
    lines = [
        f"- crops of held-out files, 10 to 200 tokens, {figures.held_out.describe(k=4)}",
    ]
    if figures.builtin is not None:
        lines.append(f"- the packaged evaluation prompts, {figures.builtin.describe(k=4)}")
    return lines


def card(
    role: str,
    model: LlamaForCausalLM,
    corpus: Corpus,
    figures: PairFigures,
    *,
    training: list[str],
    seed: int,
    command: str,
) -> str:
    """A README.md for one of the two folders."""
    text = figures.text
    own = text.target_cross_entropy if role == "target" else text.draft_cross_entropy
    lines = [
        f"# Demonstration {role}",
        "",
        f"A small Llama that continues Python source: the {role} of the packaged "
        "demonstration pair. It exists to exercise the harness; it knows nothing else.",
        "",
        f"- **Shape.** {shape_line(model)}; bf16 weights.",
        f"- **Data.** The `.py` sources of Python {platform.python_version()}'s standard library "
        "(tests, generated tables and site-packages left out), split at random by file: "
        f"{corpus.training_files} training files, {corpus.held_out_files} held out. Files are "
        "cut before top-level definitions at random; each piece ends with `<|endoftext|>`.",
        "- **License.** The sources are under the PSF License Agreement; the weights are under "
        "this project's licence, Apache-2.0.",
        "- **Tokenizer.** Byte-level BPE trained on the training files, the same in both folders; "
        "newlines and indentation are tokens of their own; no begin-of-text token.",
        *training,
        f"- **Seeds.** Everything is drawn from seed {seed}, the draft's first weights from {seed + 1}; a run that "
        "ends by wall time is not reproducible bit for bit.",
        f"- **Held-out cross-entropy.** {own:.4f} nats a token over {text.tokens:,} tokens.",
        f"- **Target against draft on held-out text.** Σ min(p, q) {text.overlap:.4f} at "
        f"temperature 1, same argmax {text.same_argmax:.4f}.",
        "",
        "Greedy acceptance (accepted / proposed draft tokens, at most 64 new tokens, fp32 draft, "
        "target's greedy text decoded with bf16 products):",
        "",
        *acceptance_lines(figures),
        "",
        "To train the pair again (about two hours on one CPU thread):",
        "",
        f"    {command}",
        "",
    ]
    return "\n".join(lines)


def training_lines(role: str, counts: dict[str, dict[str, Any]]) -> list[str]:
    """counts: what each training run saved in its checkpoint, by stage."""

    def run(name: str) -> str:
        saved = counts[name]
        return (
            f"{saved['tokens_seen']:,} tokens in {saved['steps']:,} steps, "
            f"{saved['elapsed'] / 60:.0f} minutes on one CPU thread"
        )

    history = counts["target"]["history"]
    cuts = "; ".join(f"from token {start:,}: {note}" for start, note in history)
    if len(history) > 1:
        cuts += " (changed during this run; the command below uses the last from the start)"
    if role == "target":
        return [
            f"- **Training.** {run('target')}: bf16 autocast, Muon for matrices, AdamW for the "
            f"rest, learning rate linearly to zero, residual dropout 0.1, crops of 256 and 512. "
            f"Cuts at top-level definitions: {cuts}."
        ]
    lines = [
        f"- **Training.** Distilled from the target, whose embeddings it starts from: first "
        f"the target's distribution on training text, {run('draft-text')}"
    ]
    if "draft" in counts:
        lines[0] += (
            f"; then its own greedy continuations of training-text prompts, {run('draft')}, out "
            f"of {counts['generate']['tokens']:,} generated tokens, a text batch after every "
            f"{counts['generate']['text_every']}th"
        )
    lines[0] += "."
    return lines
