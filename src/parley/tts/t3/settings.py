"""Engine arguments that T3 needs whatever a profile says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

ENGINE_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "skip_tokenizer_init": True,
        "enable_prompt_embeds": True,
        "logits_processors": ["parley.tts.t3.logits:SpeechDrawing"],
        # Drawing looks at the tokens before: no step may begin before the last one is known.
        "async_scheduling": False,
    }
)
