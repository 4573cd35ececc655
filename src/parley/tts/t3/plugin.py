"""Tells vLLM about T3. Named in ``pyproject.toml``: every process of vLLM calls it."""

from __future__ import annotations

_MODELS = {
    "ChatterboxT3": "parley.tts.t3.llama:ChatterboxT3",
    "ChatterboxT3Turbo": "parley.tts.t3.gpt2:ChatterboxT3Turbo",
}


def register() -> None:
    """Make the models known by name; they are imported when one of them is loaded."""
    from vllm import ModelRegistry  # noqa: PLC0415 - only inside vLLM's processes

    known = ModelRegistry.get_supported_archs()
    for name, model in _MODELS.items():
        if name not in known:
            ModelRegistry.register_model(name, model)
