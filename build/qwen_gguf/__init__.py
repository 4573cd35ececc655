"""Qwen2 chat models that are published as GGUF, as folders of int8 weights that vLLM loads."""
