"""What the agent tells of itself to clients that ask."""

from __future__ import annotations

from parley.agent.config import AgentConfig
from parley.agent.engines import Engines
from parley.protocol import AgentDescription


def describe(engines: Engines, config: AgentConfig) -> AgentDescription:
    """The agent as it is configured now; its prompt is nobody's business."""
    voices = engines.synthesizer.voices
    synthesizers = [name for name in config.tts if name not in config.absent_models]
    return AgentDescription(
        recognizer=config.asr,
        language_model=config.llm,
        synthesizers=synthesizers or list(config.tts),
        languages=list(engines.synthesizer.languages),
        voices=None if voices is None else list(voices),
        tools=sorted(engines.server_tools.names) if engines.server_tools else [],
        examples=list(config.examples),
    )
