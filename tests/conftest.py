"""Tiny models that many tests share; nothing here talks to a network."""

import os

# Before anything imports wandb or transformers.
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_ERROR_REPORTING"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.pop("COLUMNS", None)  # the width of whoever's terminal

import pytest
import torch
from hypothesis import settings

from spec_harness.models.load import LoadedModel
from tests.helpers import noisy_copy, tiny_loaded

torch.set_num_threads(1)
settings.register_profile("tests", deadline=None, derandomize=True, database=None)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def target() -> LoadedModel:
    return tiny_loaded()


@pytest.fixture(scope="session")
def draft(target: LoadedModel) -> LoadedModel:
    """Accepted about half of the time by ``target`` under greedy decoding."""
    return noisy_copy(target, scale=0.02)
