"""What the agent tells of itself to clients that ask."""

from __future__ import annotations

from parley.agent.config import AgentConfig
from parley.agent.engines import Engines
from parley.protocol import AgentDescription


def describe(engines: Engines, config: AgentConfig) -> AgentDescription:
    """The agent as it is configured now; its prompt is nobody's business."""
    return AgentDescription(
        recognizer=config.asr,
        language_model=config.llm,
        synthesizer=config.tts,
        languages=list(engines.synthesizer.languages),
        tools=sorted(engines.server_tools.names) if engines.server_tools else [],
        examples=list(config.examples),
    )
