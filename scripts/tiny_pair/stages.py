"""The stages of the recipe, in order; each reads and writes the work folder."""

import random
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tiny_pair import exporting
from tiny_pair.data import (
    PackedText,
    encode_documents,
    held_out_batches,
    load_corpus,
    train_tokenizer,
)
from tiny_pair.distillation import DraftModule, MixedBatches
from tiny_pair.generation import PromptCutter, generate_shards, load_shards
from tiny_pair.measuring import compare_on_text, greedy_acceptance
from tiny_pair.models import add_dropout, build_model, draft_config, start_from_embeddings, target_config
from tiny_pair.training import TargetModule, TimedModule, fit, load_weights, saved_counts

# Half of the steps see 256 positions, half 512: prompt and continuation stay below 400.
TARGET_SHAPES = ((16, 256), (8, 512))
DRAFT_SHAPES = ((10, 384),)
TEXT_EVERY = 8  # a text batch costs as much as several greedy ones


def load_tokenizer(arguments: Namespace) -> PreTrainedTokenizerFast:
    folder = arguments.work_dir / "tokenizer"
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


def trained_target(arguments: Namespace) -> LlamaForCausalLM:
    """The target as it ships: its weights rounded to bf16, held in fp32."""
    target = build_model(target_config(), seed=arguments.seed)
    load_weights(target, arguments.work_dir / "target")
    target.bfloat16().float().requires_grad_(False).eval()
    return target


def tokenizer_stage(arguments: Namespace) -> None:
    corpus = load_corpus(seed=arguments.seed)
    train_tokenizer(corpus).save_pretrained(arguments.work_dir / "tokenizer")
    print(f"{corpus.training_files} training files, {corpus.held_out_files} held out")


def target_stage(arguments: Namespace) -> None:
    corpus = load_corpus(seed=arguments.seed)
    tokenizer = load_tokenizer(arguments)
    folder = arguments.work_dir / "target"
    batches = PackedText(
        encode_documents(tokenizer, corpus.training),
        seed=arguments.seed,
        shapes=TARGET_SHAPES,
        start=saved_counts(folder)["steps"],
    )
    model = build_model(target_config(), seed=arguments.seed)
    add_dropout(model, 0.1)  # about six epochs: without it the target would learn files by heart
    module = TargetModule(
        model,
        compile_loss=arguments.compile,
        minutes=arguments.minutes,
        matrix_lr=0.02,
        other_lr=4e-3,
        held_out=held_out_batches(encode_documents(tokenizer, corpus.held_out), length=384, rows=8),
        data_note=corpus.cutting,
    )
    fit(module, batches, folder=folder, checkpoint_steps=200)


def generate_stage(arguments: Namespace) -> None:
    corpus = load_corpus(seed=arguments.seed)
    cutter = PromptCutter(tokenizer := load_tokenizer(arguments), encode_documents(tokenizer, corpus.training))
    generate_shards(
        trained_target(arguments),
        cutter,
        arguments.work_dir / "greedy",
        tokens=arguments.greedy_tokens,
        seed=arguments.seed,
    )


def draft_stage(arguments: Namespace) -> None:
    """Text first; then, where there is greedy text, a second run from the first one's weights."""
    corpus = load_corpus(seed=arguments.seed)
    tokenizer = load_tokenizer(arguments)
    training = encode_documents(tokenizer, corpus.training)
    held_out = encode_documents(tokenizer, corpus.held_out)
    target = trained_target(arguments)
    cutter = PromptCutter(tokenizer, held_out)
    prompts = cutter.batches(random.Random(arguments.seed), rows=32, count=8)

    class ReportingDraft(DraftModule):
        def report(self) -> None:
            super().report()
            acceptance = greedy_acceptance(target, self.model.eval(), prompts)
            self.model.train()
            print(f"held-out prompts: {acceptance.describe(k=4)}", flush=True)

    def train(name: str, minutes: float, model: LlamaForCausalLM, start: str | None) -> None:
        folder = arguments.work_dir / name
        steps = saved_counts(folder)["steps"]
        batches: Any = PackedText(training, seed=arguments.seed + 1, shapes=DRAFT_SHAPES, start=steps)
        if start is not None:
            load_weights(model, arguments.work_dir / start)
            shards = load_shards(arguments.work_dir / "greedy")
            batches = MixedBatches(shards, batches, rows=64, every=TEXT_EVERY, seed=arguments.seed + steps)
        module: TimedModule = ReportingDraft(
            model,
            target,
            compile_loss=arguments.compile,
            argmax_weight=0.5,
            minutes=minutes,
            matrix_lr=arguments.draft_lr,
            other_lr=arguments.draft_lr / 5,
            held_out=held_out_batches(held_out, length=384, rows=8)[:12],
            data_note=corpus.cutting,
            evaluate_minutes=3.0,
        )
        fit(module, batches, folder=folder, checkpoint_steps=200)

    draft = build_model(draft_config(), seed=arguments.seed + 1)
    start_from_embeddings(draft, target, deviation=0.1)
    train("draft-text", arguments.draft_text_minutes, draft, None)
    if (arguments.work_dir / "greedy").exists():
        train("draft", arguments.draft_minutes, build_model(draft_config(), seed=arguments.seed + 1), "draft-text")


def export_stage(arguments: Namespace) -> None:
    corpus = load_corpus(seed=arguments.seed)
    tokenizer = load_tokenizer(arguments)
    folder: Path = arguments.output
    work: Path = arguments.work_dir
    counts: dict[str, dict[str, Any]] = {}
    target = build_model(target_config(), seed=0)
    counts["target"] = load_weights(target, work / "target")
    exporting.export_model(target, tokenizer, folder / "target")
    draft = build_model(draft_config(), seed=arguments.seed + 1)
    for name in ("draft-text", "draft"):
        if (work / name / "last.ckpt").exists():
            counts[name] = load_weights(draft, work / name)
    if "draft-text" not in counts:
        return
    if "draft" in counts:
        shards = load_shards(work / "greedy")
        tokens = sum(int(part.valid.sum()) for part in shards)
        counts["generate"] = {"tokens": tokens, "text_every": TEXT_EVERY}
    exporting.export_model(draft, tokenizer, folder / "draft")

    target = exporting.load_exported(folder / "target")
    draft = exporting.load_exported(folder / "draft")
    held_out = encode_documents(tokenizer, corpus.held_out)
    cutter = PromptCutter(tokenizer, held_out)
    prompts = cutter.batches(random.Random(arguments.seed), rows=32, count=16)
    builtin = exporting.builtin_prompts(arguments.prompts, tokenizer)
    figures = exporting.PairFigures(
        text=compare_on_text(target, draft, held_out_batches(held_out, length=384, rows=8)),
        held_out=greedy_acceptance(target, draft, prompts),
        builtin=greedy_acceptance(target, draft, builtin) if builtin else None,
    )
    for role, model in (("target", target), ("draft", draft)):
        text = exporting.card(
            role,
            model,
            corpus,
            figures,
            training=exporting.training_lines(role, counts),
            seed=arguments.seed,
            command=arguments.command,
        )
        (folder / role / "README.md").write_text(text, encoding="utf-8")
        print(text)


STAGES: dict[str, Callable[[Namespace], None]] = {
    "tokenizer": tokenizer_stage,
    "target": target_stage,
    "generate": generate_stage,
    "draft": draft_stage,
    "export": export_stage,
}
