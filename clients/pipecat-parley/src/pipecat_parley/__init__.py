"""Pipecat services for a Parley server: they talk gRPC to Triton.

::

    stt = ParleySTTService(server="127.0.0.1:8001")
    llm = ParleyLLMService(server="127.0.0.1:8001")
    tts = ParleyTTSService(server="127.0.0.1:8001")
"""

from __future__ import annotations

from pipecat_parley.adapter import ParleyLLMAdapter
from pipecat_parley.llm import ParleyLLMService, ParleyLLMSettings
from pipecat_parley.stt import PARLEY_TTFS_P99, ParleySTTService
from pipecat_parley.stt_settings import ParleySTTSettings
from pipecat_parley.tts import ParleyTTSService, ParleyTTSSettings

__all__ = [
    "PARLEY_TTFS_P99",
    "ParleyLLMAdapter",
    "ParleyLLMService",
    "ParleyLLMSettings",
    "ParleySTTService",
    "ParleySTTSettings",
    "ParleyTTSService",
    "ParleyTTSSettings",
]
