"""Operate GPU nodes that run SGLang with DDTree speculative decoding."""

__version__ = "0.1.0"
