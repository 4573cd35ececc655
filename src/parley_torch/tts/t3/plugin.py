"""Registers T3 with vLLM, whose every process imports this module (see ``pyproject.toml``)."""

from __future__ import annotations

_MODELS = {
    "ChatterboxT3": "parley_torch.tts.t3.vllm_models:ChatterboxT3",
    "ChatterboxT3Turbo": "parley_torch.tts.t3.vllm_models:ChatterboxT3Turbo",
}


def register() -> None:
    """Register the models by name; vLLM imports them when it loads one."""
    from parley.llm.vllm_api import ModelRegistry  # noqa: PLC0415 - only inside vLLM's processes

    known = ModelRegistry.get_supported_archs()
    for name, model in _MODELS.items():
        if name not in known:
            ModelRegistry.register_model(name, model)
