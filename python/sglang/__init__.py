"""An LLM serving engine built around disaggregated prefill and decode."""

__version__ = "0.1.0"
