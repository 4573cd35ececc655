"""``GET /v1/agent``: the options that sessions have here."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from parley import protocol
from parley_gateway.agent_descriptions import common_languages
from parley_gateway.bodies import json_answer
from parley_gateway.gateway import Gateway
from parley_gateway.schemas import answers


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """The models, languages, voices and tools of the agent."""

    recognizer: str
    """Name of the model that recognises speech in English."""
    recognizers: list[str]
    """Names of all such models: a session gets the first one that understands its language."""
    language_model: str
    """Name of the language model's weights, or of the model at the remote chat server."""
    synthesizers: list[str]
    """Names of the models that speak."""
    languages: list[str]
    """Languages that the agent both recognises and speaks."""
    voices: list[str] | None
    """Names of all voices of sessions, the default first; null: they change at run time."""
    tools: list[str]
    """Names of the server's own tools; a session's tools need other names."""
    examples: list[str]
    """Examples of what a user may say to this agent."""
    default_prompt: bool
    """Whether the agent has a prompt that Parley comes with, which a client's demo tools fit."""


def _agent(described: protocol.AgentDescription) -> Agent:
    return Agent(
        recognizer=described.recognizer,
        recognizers=described.recognizers,
        language_model=described.language_model,
        synthesizers=described.synthesizers,
        languages=common_languages(described.languages, described.recognized_languages),
        voices=described.voices,
        tools=described.tools,
        examples=described.examples,
        default_prompt=described.default_prompt,
    )


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/agent``."""
    router = APIRouter(tags=["sessions"])

    @router.get("/v1/agent", responses=answers(200, Agent, 401, 403, 429, 503))
    async def agent(request: Request) -> Response:
        """The options of sessions: languages, voices, and the names of tools that are not available."""
        await gateway.guard.admit(request, "agent")
        return json_answer(_agent(await gateway.descriptions.get()))

    return router
