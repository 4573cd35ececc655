"""``GET /v1/agent`` and ``/v1/agents``: the options of sessions, and the agents that they may choose."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from parley import protocol
from parley_gateway.agent_descriptions import common_languages
from parley_gateway.apis.recorded_calls import may_read_calls
from parley_gateway.bodies import json_answer
from parley_gateway.gateway import Gateway
from parley_gateway.schemas import answers


class DescribedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """The models, languages, voices and tools of the agent."""

    recognizer: str
    """Name of the model that recognises speech in English."""
    recognizers: list[str]
    """Names of all such models: a session gets the first one that understands its language."""
    language_model: str
    """Name of the weights of the language model that answers, or of the model at the remote chat server."""
    language_models: list[str]
    """Names of all of them, in order of preference; later ones answer where those before them fail."""
    demonstration: bool
    """Whether the language model that answers is a demonstration, which is often wrong."""
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
    agent: protocol.AgentSummary | None
    """The agent that `name` chooses; null: the server's own."""


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """The agents that sessions may choose by name."""

    agents: list[protocol.AgentSummary]
    """By name, those that the credentials may call. Empty: the server defines none of them."""
    own: bool
    """Whether the credentials may call the server's own agent, which has no name."""
    calls: bool
    """Whether `/v1/calls` answers the credentials: recorded calls can be read."""


def _agent(described: protocol.AgentDescription, chosen: protocol.AgentSummary | None) -> DescribedAgent:
    return DescribedAgent(
        recognizer=described.recognizer,
        recognizers=described.recognizers,
        language_model=described.language_model,
        language_models=described.language_models or [described.language_model],
        demonstration=described.demonstration,
        synthesizers=described.synthesizers,
        languages=common_languages(described.languages, described.recognized_languages),
        voices=described.voices,
        tools=described.tools,
        examples=described.examples,
        default_prompt=described.default_prompt,
        agent=chosen,
    )


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/agent`` and ``/v1/agents``."""
    router = APIRouter(tags=["sessions"])

    @router.get("/v1/agent", responses=answers(200, DescribedAgent, 401, 403, 404, 429, 503))
    async def agent(request: Request, name: str = "") -> Response:
        """The options of sessions: languages, voices, and the names of tools that are not available.

        `name` chooses one of the agents of `/v1/agents`.
        """
        principal = await gateway.guard.admit(request, "agent")
        principal.check_agent(name)
        if not name:
            return json_answer(_agent(await gateway.descriptions.get(), None))
        chosen, described = await gateway.descriptions.get_named(name, principal.may_call)
        return json_answer(_agent(described, chosen))

    @router.get("/v1/agents", responses=answers(200, Agents, 401, 403, 429, 503))
    async def agents(request: Request) -> Response:
        """The agents that sessions may choose by name, beside the server's own."""
        principal = await gateway.guard.admit(request, "agent")
        known = await gateway.descriptions.agents()
        callable_ones = [one for one in known if principal.may_call(one.name)]
        return json_answer(
            Agents(
                agents=callable_ones,
                own=principal.may_call(""),
                calls=may_read_calls(gateway, principal),
            )
        )

    return router
