"""What the agent tells of itself."""

from __future__ import annotations

from types import SimpleNamespace

from parley.agent.config import AgentConfig
from parley.agent.ports import Engines
from parley.agent.validation import describe
from parley.protocol import AgentDescription
from parley.runtime.parameters import LOADED_MODELS_VARIABLE, Parameters


def test_it_is_what_the_agent_is_configured_with():
    parameters = Parameters(
        "voice_agent",
        {"asr": "hears", "system_prompt": "A secret.", "examples": " set a timer | hello|| "},
        environment={"PARLEY_VOICE_AGENT_TTS": "speaks,sings", LOADED_MODELS_VARIABLE: "speaks"},
    )
    engines = Engines(
        recognizer=None,
        chat=None,
        synthesizer=SimpleNamespace(languages=("en", "de"), voices=("anna",)),
        server_tools=SimpleNamespace(names={"b", "a"}),
    )
    described = describe(engines, AgentConfig.from_parameters(parameters))
    assert described == AgentDescription(
        recognizer="hears",
        language_model="qwen3",
        synthesizers=["speaks"],
        languages=["en", "de"],
        voices=["anna"],
        tools=["a", "b"],
        examples=["set a timer", "hello"],
    )
    assert "secret" not in repr(described)
