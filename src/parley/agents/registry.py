"""The agents that a server serves: those of a folder, whose changes are taken without a restart."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from parley.agents.folder import Fingerprint, look_at, read_folder
from parley.agents.reader import AgentFile, AgentFileError
from parley.engines.base import ChatModel, Closable
from parley.errors import ModelLoadingError, ModelUnavailableError, UnknownAgentError
from parley.knowledge.passages import KnowledgeSearch
from parley.names import suggest_name
from parley.protocol import AgentSummary
from parley.timeouts import best_effort, loop_time
from parley.tools.base import ServerTools

if TYPE_CHECKING:
    from parley.calls.webhooks import Webhooks

DEFAULT_FOLDER = "agents"
"""Beside the model repository."""
_INTERVAL_S = 1.0
"""Between two looks at the folder. A change is taken once it is the same in two of them."""
_RETRY_S = 30.0
"""Between two attempts to open agents whose files are unchanged: what they name, such as a key file, may have
come.
"""
_OPEN_S = 10.0
"""An agent that takes longer to open, because its documents are indexed, is served when it is ready."""
_CLOSE_S = 5.0
_FOLDER = ""
"""The name under which problems of the folder itself are kept."""
_FAILED = "it could not be opened"
"""The problem of an agent whose opening raised no :class:`AgentFileError`."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentModel:
    """The language model of one agent."""

    chat: ChatModel
    names: tuple[tuple[str, str], ...]
    """Of each model its engine, as the setting ``llm`` names it, and its name for clients; empty: unknown."""


class ServedAgent:
    """An agent with what its calls share, which is closed when the last of them has ended.

    Args:
        tools: all tools of its calls but their clients'.
        model: answers its calls; None: the server's own.
        knowledge: its documents; None: it has none.
        webhooks: learn of its calls; what they have not delivered counts as a call.
        owned: what is closed with the agent.
    """

    def __init__(
        self,
        file: AgentFile,
        *,
        tools: ServerTools | None = None,
        model: AgentModel | None = None,
        knowledge: KnowledgeSearch | None = None,
        webhooks: Webhooks | None = None,
        owned: tuple[Closable, ...] = (),
    ) -> None:
        self.file = file
        self.tools = tools
        self.model = model
        self.knowledge = knowledge
        self._owned = owned
        self._sessions = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self.webhooks = webhooks
        if webhooks is not None:
            webhooks.on_begin, webhooks.on_end = self.begin_session, self.end_session

    def begin_session(self) -> None:
        """A call of this agent begins; :meth:`end_session` ends it."""
        self._sessions += 1
        self._unused.clear()

    def end_session(self) -> None:
        """A call has ended."""
        self._sessions -= 1
        if not self._sessions:
            self._unused.set()

    def forget_sessions(self) -> None:
        """Count no call any more: the server stops."""
        self._unused.set()

    async def close_when_unused(self) -> None:
        """Wait for the end of the last call, and close what the agent owns."""
        await self._unused.wait()
        await close_parts(self.file.name, self._owned)


async def close_parts(agent: str, parts: Iterable[Closable]) -> None:
    """Close all that an agent owns; what fails, or takes longer than 5 s, is logged."""

    async def close(part: Closable) -> None:
        try:
            await best_effort(part.close(), _CLOSE_S, f"closing a part of the agent {agent}")
        except Exception:  # noqa: BLE001 - logged; the other parts matter too
            _log.exception("a part of the agent %s could not be closed", agent)

    await asyncio.gather(*map(close, parts))


def agents_folder(repository: Path, named: str) -> Path:
    """The folder of the agents of a server; ``named``: the setting ``agents``, empty: the default."""
    return repository.parent / (named or DEFAULT_FOLDER)


class AgentRegistry:
    """The agents of one folder, by name.

    Args:
        folder: has a file ``NAME.toml`` for each.
        open_agent: makes what calls need; raises :class:`AgentFileError` for a definition that this server
            cannot serve.
    """

    def __init__(self, folder: Path, open_agent: Callable[[AgentFile], Awaitable[ServedAgent]]) -> None:
        self._folder = folder
        self._open_agent = open_agent
        self._agents: dict[str, ServedAgent] = {}
        self._problems: dict[str, str] = {}
        self._opening: dict[str, tuple[AgentFile | AgentFileError, asyncio.Task[None]]] = {}
        self._seen: Fingerprint | None = None
        self._taken: Fingerprint | None = None
        self._tried_at = -math.inf
        self._watch: asyncio.Task[None] | None = None
        self._retired: dict[asyncio.Task[None], ServedAgent] = {}

    async def open(self) -> None:
        """Serve what is in the folder, and watch it. A wrong file is logged and left out.

        Raises:
            ModelLoadingError: the folder cannot be read, or has too many files.
        """
        try:
            await self._take(await asyncio.to_thread(look_at, self._folder))
        except OSError as error:
            raise ModelLoadingError(f"{self._folder} cannot be read: {error.strerror}") from error
        self._watch = asyncio.create_task(self._follow(), name="watch of the folder of agents")

    async def close(self) -> None:
        """Stop watching, and close all agents: calls have ended, or are ended with the server."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await asyncio.gather(*map(self._stop_opening, [*self._opening]))
        while self._agents:
            self._retire(self._agents.popitem()[1])
        for agent in self._retired.values():
            agent.forget_sessions()
        await asyncio.gather(*self._retired)

    def find(self, name: str) -> ServedAgent:
        """The agent of a name, for a call that begins now.

        Raises:
            UnknownAgentError: there is none.
            ModelUnavailableError: its file was found and is not taken yet. Another instance of the server may
                serve it already.
        """
        if (agent := self._agents.get(name)) is not None:
            return agent
        if name in self._problems:
            raise UnknownAgentError(f"the file of the agent {name!r} is wrong; the server's log says how")
        if name in self._opening or any(path.stem == name for path in self._seen or ()):
            raise ModelUnavailableError(f"the agent {name!r} is being read", retry_after_s=_INTERVAL_S)
        raise UnknownAgentError(f"no agent {name!r} on this server{suggest_name(name, self._agents)}")

    def __len__(self) -> int:
        """Agents that are served."""
        return len(self._agents)

    @property
    def summaries(self) -> list[AgentSummary]:
        """What clients learn of the agents, by name."""
        return [self._agents[name].file.definition.summary(name) for name in sorted(self._agents)]

    @property
    def wrong_files(self) -> int:
        """Files that are wrong now; an earlier definition of theirs may be served."""
        return len(self._problems)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - logged; the next look may find more
                _log.exception("changes of the agents in %s could not be taken", self._folder)

    async def _look(self) -> None:
        """Take what has changed, unless it may still be changing."""
        try:
            found = await asyncio.to_thread(look_at, self._folder)
            overdue = self._problems and loop_time() - self._tried_at >= _RETRY_S
            if found == self._seen and (found != self._taken or overdue):
                await self._take(found)
        except AgentFileError as error:
            self._report(_FOLDER, str(error))
        except OSError as error:
            self._report(_FOLDER, f"{self._folder} cannot be read: {error.strerror}")
        else:
            self._seen = found
            self._problems.pop(_FOLDER, None)

    async def _take(self, found: Fingerprint) -> None:
        self._tried_at = loop_time()
        known = {name: agent.file for name, agent in self._agents.items()}
        known |= {name: file for name, (file, _) in self._opening.items() if isinstance(file, AgentFile)}
        read = await asyncio.to_thread(read_folder, self._folder, known)
        for name, one in read.items():
            if name not in self._opening or self._opening[name][0] is not one:
                if not await self._stop_opening(name):
                    self._report(name, f"the agent {name} cannot be opened: its last opening does not end")
                    continue
                task = asyncio.create_task(self._take_file(name, one), name=f"opening of the agent {name}")
                self._opening[name] = one, task
        if tasks := [task for _, task in self._opening.values()]:
            await asyncio.wait(tasks, timeout=_OPEN_S)
        named = self._agents.keys() | self._problems.keys() | self._opening.keys()
        for name in named - read.keys() - {_FOLDER}:
            await self._stop_opening(name)
            self._problems.pop(name, None)
            if (agent := self._agents.pop(name, None)) is not None:
                _log.info("the agent %s is served no more: its file is gone", name)
                self._retire(agent)
        self._taken = found

    async def _stop_opening(self, name: str) -> bool:
        """Whether no opening of this agent is under way any more: one that hangs stays the only one."""
        if name not in self._opening:
            return True
        _, task = self._opening[name]
        if not task.cancelling():  # a second time would cut off the closing of its parts
            task.cancel()
        await asyncio.wait([task], timeout=_CLOSE_S)
        if task.done():
            self._opening.pop(name, None)
        return task.done()

    async def _take_file(self, name: str, read: AgentFile | AgentFileError) -> None:
        try:
            await self._open_file(name, read)
        finally:
            if name in self._opening and self._opening[name][1] is asyncio.current_task():
                del self._opening[name]

    async def _open_file(self, name: str, read: AgentFile | AgentFileError) -> None:
        if isinstance(read, AgentFileError):
            self._report(name, str(read))
            return
        served = self._agents.get(name)
        try:
            if served is None or read is not served.file:
                self._agents[name] = await self._open_agent(read)
                _log.info("the agent %s is served to new calls", name)
                if served is not None:
                    self._retire(served)
        except AgentFileError as error:
            self._report(name, str(error))
        except Exception:  # noqa: BLE001 - logged; other agents are served
            if self._problems.get(name) != _FAILED:
                _log.exception("the agent %s could not be opened", name)
            self._problems[name] = _FAILED
        else:
            self._problems.pop(name, None)

    def _report(self, name: str, problem: str) -> None:
        """Log a problem, once; what is served stays so."""
        if self._problems.get(name) != problem:
            stays = " (the agent is served as it was before)" if name in self._agents else ""
            _log.error("%s%s", problem, stays)
        self._problems[name] = problem

    def _retire(self, agent: ServedAgent) -> None:
        task = asyncio.create_task(agent.close_when_unused(), name=f"end of the agent {agent.file.name}")
        self._retired[task] = agent
        task.add_done_callback(self._retired.pop)
