"""spec_harness: an evaluation harness for speculative decoding."""

__version__ = "0.1.0"
