"""Agents that files define: what their calls need, and the options of one call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from parley.agent.config import AgentConfig, find_llm_weights, read_key, read_secret_file, why_absent
from parley.agent.ports import Engines
from parley.agent.speech import check_voices
from parley.agent.turns import MAX_QUEUED
from parley.agent.validation import check_prompt, check_start, speech_language
from parley.agents.definition import AgentDefinition, ModelChoice
from parley.agents.reader import AgentFile
from parley.agents.registry import AgentModel, ServedAgent, close_parts
from parley.calls.settings import Delivery
from parley.checkpoint import QueuedText, Resume
from parley.engines.base import Closable, Embedder, RemoteChat, Synthesizer
from parley.engines.chat_fallback import ChatFallback, NamedChat, join_chats
from parley.engines.registry import CHAT_MODELS, REMOTE_CHAT, find_engine
from parley.errors import (
    InvalidInputError,
    ModelLoadingError,
    UnknownAgentError,
    UnsupportedLanguageError,
    UnsupportedVoiceError,
)
from parley.field_errors import fields_at
from parley.inference import ModelClient
from parley.knowledge.knowledge import Knowledge, check_documents
from parley.names import suggest_name
from parley.protocol import Start
from parley.runtime.parameters import Parameters
from parley.runtime.weights import cache_dir
from parley.tools.base import ServerTools
from parley.tools.combined import CombinedTools
from parley.tools.settings import ToolSettings, check_settings, check_url, tool_names

if TYPE_CHECKING:
    from parley.calls.webhooks import Webhooks
    from parley.tools.toolbox import Toolbox

_FIELD = re.compile(r"[a-z_]+(?:\[\d+\])*(?:\.[a-z_]+(?:\[\d+\])*)*")
_TOOL = re.compile(r"(?P<kind>tool|MCP server)s?\b[^']{0,16}'(?P<name>[^']*)'")
_TOOLS_SHARE = 4
"""The part of the window that tools may take: the client's, the conversation and the answer need the rest."""


@dataclass(frozen=True)
class AgentChoice:
    """What one session has of its agent."""

    start: Start
    engines: Engines
    config: AgentConfig
    agent: ServedAgent | None = None
    """None: the server's own."""


def choose_agent(start: Start, engines: Engines, config: AgentConfig) -> AgentChoice:
    """What a session of the agent that ``start`` names has.

    A session that goes on has all options already, of which some may have been updated; it gets the tools and
    the language model.

    Raises:
        UnknownAgentError: there is no such agent.
    """
    if not start.agent:
        return AgentChoice(start, engines, config)
    if engines.agents is None:
        raise UnknownAgentError(f"no agent {start.agent!r}: this server defines none")
    agent = engines.agents.find(start.agent)
    definition = agent.file.definition
    if start.resume is None:
        start = _announce(definition.complete(start), definition, config)
    elif engines.calls is None or not engines.calls.folder.has_sealed(start.resume.state, start.agent):
        start = _announce_later(start, start.resume, definition)
    engines = replace(
        engines,
        server_tools=agent.tools,
        chat=engines.chat if agent.model is None else agent.model.chat,
        knowledge=agent.knowledge,
    )
    return AgentChoice(start, engines, agent_settings(definition, agent.model, config), agent)


def _announce(start: Start, definition: AgentDefinition, config: AgentConfig) -> Start:
    """A session that says first that it is recorded, if the definition has a text for that."""
    consent = _consent(definition)
    if not consent:
        return start
    greeting = config.greeting if start.greeting is None else start.greeting
    return msgspec.structs.replace(start, greeting=f"{consent} {greeting}".rstrip())


def _announce_later(start: Start, resume: Resume, definition: AgentDefinition) -> Start:
    """A session that goes on, and says behind its turn under way that it is recorded."""
    text = _consent(definition)
    if not text:
        return start
    queued = [QueuedText(text=text, interruptible=False), *resume.state.queued]
    state = msgspec.structs.replace(resume.state, queued=queued[:MAX_QUEUED])
    return msgspec.structs.replace(start, resume=msgspec.structs.replace(resume, state=state))


def _consent(definition: AgentDefinition) -> str:
    return definition.recording.consent if definition.record else ""


def agent_settings(definition: AgentDefinition, model: AgentModel | None, config: AgentConfig) -> AgentConfig:
    """The settings of the sessions of an agent."""
    config = msgspec.structs.replace(
        config,
        system_prompt=definition.instructions,
        examples=tuple(definition.page.examples),
        context_tokens=definition.model.context_tokens or config.context_tokens,
    )
    if model is None:
        return config
    engines, weights = zip(*model.names, strict=True)
    return msgspec.structs.replace(config, llm=engines, llm_weights=weights)


class AgentOpener:
    """Makes what the sessions of an agent share. Without an embedder documents are searched by words."""

    def __init__(
        self,
        synthesizer: Synthesizer,
        server_tools: ServerTools | None,
        config: AgentConfig,
        parameters: Parameters,
        client: ModelClient,
        *,
        on_fallback: Callable[[ChatFallback], None],
        llm_timeout_s: float,
        embedder: Embedder | None = None,
        on_webhook: Callable[[Delivery], None] = lambda _: None,
    ) -> None:
        self._embedder = embedder
        self._on_webhook = on_webhook
        self._synthesizer = synthesizer
        self._server_tools = server_tools
        self._config = config
        self._parameters = parameters
        self._client = client
        self._on_fallback = on_fallback
        self._llm_timeout_s = llm_timeout_s

    async def open(self, file: AgentFile, *, only_checks: bool = False) -> ServedAgent:
        """An agent that calls can begin with.

        Args:
            file: defines it.
            only_checks: no MCP server is connected, which otherwise takes some seconds at most; documents are
                not indexed, which may take minutes; and weights of models may be missing.

        Raises:
            AgentFileError: every session would be refused; the text names the field.
        """
        owned: list[Closable] = []
        try:
            # In threads: files are read, and clients of HTTP and MCP are imported, while calls go on.
            model = await asyncio.to_thread(self._open_model, file, may_be_absent=only_checks)
            if model is not None and isinstance(model.chat, Closable):
                owned.append(model.chat)
            tools = self._server_tools if file.definition.server_tools else None
            config = agent_settings(file.definition, model, self._config)
            own_tools = file.definition.tools
            if own_tools.http or own_tools.mcp:
                toolbox = await asyncio.to_thread(self._make_toolbox, file, config, tools)
                owned.append(toolbox)
                if not only_checks:
                    await toolbox.open()
                tools = CombinedTools(toolbox, tools) if tools else toolbox
            await self._check(file, config, tools, only_checks=only_checks)
            knowledge = await self._open_knowledge(file, only_checks=only_checks)
            owned += [knowledge] if knowledge else []
            if webhooks := await asyncio.to_thread(self._open_webhooks, file):
                owned.append(webhooks)
        except BaseException:
            await close_parts(file.name, owned)
            raise
        return ServedAgent(
            file, tools=tools, model=model, knowledge=knowledge, webhooks=webhooks, owned=tuple(owned)
        )

    async def _open_knowledge(self, file: AgentFile, *, only_checks: bool) -> Knowledge | None:
        patterns, folder = file.definition.knowledge, file.path.parent
        if not patterns:
            return None
        try:
            if only_checks:
                await asyncio.to_thread(check_documents, folder, patterns)
                return None
            knowledge = Knowledge(file.name, folder, patterns, self._embedder, cache_dir() / "knowledge")
            await knowledge.open()
        except ModelLoadingError as error:
            raise file.error("knowledge", str(error)) from error
        return knowledge

    def _open_model(self, file: AgentFile, *, may_be_absent: bool) -> AgentModel | None:
        wanted = file.definition.model
        own = not wanted.url and (not wanted.name or (wanted.name,) == self._config.llm)
        if own and not wanted.fallback:
            return None
        fields = [
            (wanted, "model"),
            *((one, f"model.fallback[{n}]") for n, one in enumerate(wanted.fallback)),
        ]
        opened: list[tuple[str, NamedChat]] = []
        for choice, field in fields:
            if choice.url:
                opened.append(self._open_remote_model(file, choice, field))
            else:
                here = self._open_local_models(file, choice, field, may_be_absent=may_be_absent)
                before = [engine for engine, _ in opened]
                # A fallback may be one of the server's own.
                opened += [one for one in here if one[0] == REMOTE_CHAT or one[0] not in before]
        names = tuple((engine, one.name) for engine, one in opened)
        chat = join_chats([one for _, one in opened], self._config.chat_fallback, self._on_fallback)
        return AgentModel(chat, names)

    def _open_local_models(
        self, file: AgentFile, choice: ModelChoice, field: str, *, may_be_absent: bool
    ) -> list[tuple[str, NamedChat]]:
        """The model of a name; without a name those of the server."""
        if not choice.name and field != "model":
            raise file.error(field, "a fallback needs a name, or a url")
        if choice.name == REMOTE_CHAT:
            raise file.error(f"{field}.name", f"{REMOTE_CHAT} needs {field}.url instead of {field}.name")
        opened = []
        for engine in [choice.name] if choice.name else [name for name, _ in self._config.chat_models]:
            try:
                make = find_engine(CHAT_MODELS, engine)
            except ModelLoadingError as error:
                raise file.error(f"{field}.name", str(error)) from error
            if not may_be_absent and choice.name and (reason := why_absent(self._parameters, engine)):
                raise file.error(f"{field}.name", f"{engine} cannot be used: {reason}")
            chat = make(self._client, timeout_s=self._llm_timeout_s, remote=self._config.remote_chat)
            name = find_llm_weights(self._parameters, engine) or engine
            opened.append((engine, NamedChat(name, chat)))
        return opened

    def _open_remote_model(self, file: AgentFile, choice: ModelChoice, field: str) -> tuple[str, NamedChat]:
        if choice.name:
            raise file.error(f"{field}.url", f"{field} has a name and a url; it is one of them")
        try:
            parts = urlsplit(choice.url)
            has_address = bool(parts.hostname) and parts.port != 0
        except ValueError as error:
            raise file.error(f"{field}.url", f"the URL is wrong: {error}") from error
        is_printable = choice.url.isprintable() and " " not in choice.url
        if not (has_address and is_printable and choice.url.startswith(("http://", "https://"))):
            raise file.error(f"{field}.url", f"{choice.url!r} is no URL of the form https://host/v1")
        if not choice.model:
            raise file.error(f"{field}.url", f"{field}.model must name the model at {field}.url")
        key = ""
        if choice.key_file:
            try:
                key = read_key(file.path.parent / choice.key_file, f"{field}.key_file")
            except ModelLoadingError as error:
                raise file.error(f"{field}.key_file", str(error)) from error
        remote = RemoteChat(choice.url, choice.model, key, choice.continuation)
        make = find_engine(CHAT_MODELS, REMOTE_CHAT)
        chat = make(self._client, timeout_s=self._llm_timeout_s, remote=remote)
        return REMOTE_CHAT, NamedChat(choice.model, chat)

    def _make_toolbox(self, file: AgentFile, config: AgentConfig, others: ServerTools | None) -> Toolbox:
        from parley.tools.toolbox import Toolbox  # noqa: PLC0415 - imports an HTTP client, which few need

        settings = file.definition.tools
        try:
            check_settings(settings)
            _check_names(settings, others)
            return Toolbox(settings, self._parameters.environment, config.prompt_tokens // _TOOLS_SHARE)
        except (ValueError, ModelLoadingError) as error:
            raise file.error(_tool_field(settings, str(error)), str(error)) from error

    def _open_webhooks(self, file: AgentFile) -> Webhooks | None:
        if not file.definition.webhooks:
            return None
        from parley.calls.webhooks import Webhook, Webhooks, read_secret  # noqa: PLC0415 - an HTTP client

        tools, found = file.definition.tools, []
        for number, settings in enumerate(file.definition.webhooks):
            field = f"webhooks[{number}]"
            try:
                check_url(settings.url, tools, field)
                secret = read_secret_file(file.path.parent / settings.secret_file)
                found.append(Webhook(settings, read_secret(secret)))
            except OSError as error:
                problem = f"{field}.secret_file cannot be read: {error.strerror}"
                raise file.error(f"{field}.secret_file", problem) from error
            except ValueError as error:
                raise file.error(field, str(error)) from error
        return Webhooks(found, tools.allowed_hosts, tools.private_hosts, self._on_webhook)

    async def _check(
        self, file: AgentFile, config: AgentConfig, tools: ServerTools | None, *, only_checks: bool
    ) -> None:
        definition = file.definition
        for number, target in enumerate(definition.ending.transfers if definition.telephone.numbers else ()):
            if not target.to:
                problem = f"{target.name!r} needs a number in `to`: the agent takes calls by telephone"
                raise file.error(f"ending.transfers[{number}]", problem)
        field = "instructions"
        try:
            check_prompt(definition.instructions, config)
            field = ""
            start = _announce(definition.complete(Start()), definition, config)
            check_start(start, self._synthesizer, config, tools)
            if not only_checks:
                language, limit_s = speech_language(start, self._synthesizer), config.deadlines.voice_s
                await check_voices(self._synthesizer, start.voices, language, limit_s)
        except UnsupportedLanguageError as error:
            raise file.error("language", str(error)) from error
        except UnsupportedVoiceError as error:
            voices = {f"steps[{number}].voice": step.voice for number, step in enumerate(definition.steps)}
            voices |= {"voice": definition.voice}
            named = (name for name, voice in voices.items() if voice and repr(voice) in str(error))
            field = next(named, "voice" if definition.voice else "language")
            near = suggest_name(voices.get(field) or "", self._synthesizer.voices or ())
            raise file.error(field, f"{error}{near}") from error
        except InvalidInputError as error:
            raise file.error(field or _field_of(str(error)), str(error)) from error


def _check_names(settings: ToolSettings, others: ServerTools | None) -> None:
    for name in tool_names(settings):
        if others and name in others.names:
            raise ValueError(f"tool {name!r}: the server has a tool of this name")


def _field_of(problem: str) -> str:
    """The field that a text about a session's options is about; empty: none of a definition."""
    known = fields_at(AgentDefinition, "")
    return next((name for name in _FIELD.findall(problem) if re.split(r"[.\[]", name)[0] in known), "")


def _tool_field(settings: ToolSettings, problem: str) -> str:
    """The field that a text about a tool, or an MCP server, is about."""
    if found := _TOOL.search(problem):
        for number, tool in reversed([*enumerate(settings.http)]):
            if found["kind"] == "tool" and tool.name == found["name"]:
                return f"tools.http[{number}]"
        for number, server in enumerate(settings.mcp):
            offered = [f"{server.prefix}{name}" for name in server.tools]
            if found["name"] in (offered if found["kind"] == "tool" else [server.name]):
                return f"tools.mcp[{number}]"
    return "tools"
