"""Trains the packaged demonstration pair; `scripts/train_tiny_pair.py` is the command line."""
