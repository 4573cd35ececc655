"""An agent of one's own in a Python file: what it is, and the functions that it may call.

::

    agent = Agent(
        instructions="You take reservations for a restaurant. Answer in one short sentence.",
        greeting="Good evening! What can I do for you?",
    )

    @tool
    def book_table(time: str, people: int) -> dict:
        \"\"\"Book a table.\"\"\"

``parley run FILE.py`` serves it.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from parley.protocol import AGENT_NAME
from parley_client.errors import ToolDefinitionError
from parley_client.tools import load_module, marked_functions

_NAME = re.compile(AGENT_NAME)


def is_agent_name(text: str) -> bool:
    """Whether an agent can have this name."""
    return _NAME.fullmatch(text) is not None


class Agent:
    """The definition of an agent in a Python file.

    Args:
        name: by which sessions choose the agent; empty: the name of the file.
        fields: those of a definition in TOML, under the same names; a table is a dictionary, or a struct of
            :mod:`parley.protocol` such as ``TurnOptions``. ``parley run`` checks them.
    """

    def __init__(self, *, name: str = "", **fields: Any) -> None:
        self.name = name
        self.fields = fields


@dataclass(frozen=True)
class LoadedAgent:
    """What a file defined when it was run."""

    name: str
    fields: dict[str, Any]
    """Plain values as in TOML; none is None."""
    functions: list[Callable[..., Any]]


class AgentProgram:
    """A Python file with an agent, which can be loaded again when it has changed.

    Modules that it imports from its own folder are a part of it.

    Args:
        path: the file; its folder is added to ``sys.path``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = path.absolute().parent
        self._parts: set[str] = set()
        """Names of modules that the file has imported from its folder."""
        self._seen: dict[Path, tuple[int, int] | None] = {}
        if str(self._folder) not in sys.path:
            sys.path.insert(0, str(self._folder))

    def load(self) -> LoadedAgent:
        """Run the file.

        Raises:
            ToolDefinitionError: it cannot be run, or does not define one agent. What was loaded before stays.
        """
        self._seen = {path: _state_of(path) for path in (self.path, *self._seen)}
        replaced = {name: sys.modules.pop(name) for name in self._parts if name in sys.modules}
        others = set(sys.modules)
        importlib.invalidate_caches()
        try:
            return self._read(load_module(self.path))
        except BaseException:
            sys.modules.update(replaced)
            raise
        finally:
            for name in set(sys.modules) - others:
                file = getattr(sys.modules[name], "__file__", None)
                if file and self._is_part(Path(file)):
                    self._parts.add(name)
                    self._seen.setdefault(Path(file), _state_of(Path(file)))

    def has_changed(self) -> bool:
        """Whether one of its files is another one than was loaded, or tried."""
        return any(_state_of(path) != seen for path, seen in self._seen.items())

    def _is_part(self, file: Path) -> bool:
        return file.is_relative_to(self._folder) and "site-packages" not in file.parts

    def _read(self, module: ModuleType) -> LoadedAgent:
        agents = {id(value): value for value in vars(module).values() if isinstance(value, Agent)}
        if len(agents) != 1:
            raise ToolDefinitionError(
                f"{self.path} defines {len(agents)} agents, and must define one: "
                'agent = Agent(instructions="You sell tea.")'
            )
        (agent,) = agents.values()
        name = agent.name or self.path.stem.lower()
        if not is_agent_name(name):
            raise ToolDefinitionError(
                f"{self.path}: {name!r} cannot be the name of an agent, which has 1 to 63 of a-z 0-9 _ - and "
                "begins with none of _ -; give it with Agent(name=...)"
            )
        try:
            fields = _without_none(msgspec.to_builtins(agent.fields, str_keys=True))
            msgspec.json.encode(fields)  # refuses text that UTF-8 does not have
        except (TypeError, ValueError) as error:
            raise ToolDefinitionError(f"{self.path}: Agent(...): {error}") from error
        own = fields.get("model")
        for model in (own, *_items(own.get("fallback"))) if isinstance(own, dict) else ():
            if isinstance(model, dict) and isinstance(file := model.get("key_file"), str) and file:
                model["key_file"] = str(self._folder / file)  # the server would look for it in its own folder
        if isinstance(knowledge := fields.get("knowledge"), list):
            fields["knowledge"] = [
                str(self._folder / one) if isinstance(one, str) else one for one in knowledge
            ]
        for webhook in _items(fields.get("webhooks")):
            if isinstance(webhook, dict) and isinstance(file := webhook.get("secret_file"), str) and file:
                webhook["secret_file"] = str(self._folder / file)
        return LoadedAgent(name, fields, marked_functions(module))


def _state_of(path: Path) -> tuple[int, int] | None:
    """What differs after a change: time (ns) and size; None: there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _items(value: Any) -> list[Any]:
    """Those of a list. A value of another type is refused when the definition is checked."""
    return value if isinstance(value, list) else []


def _without_none(value: Any) -> Any:
    """TOML has no null: a field that is None is left out."""
    if isinstance(value, dict):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, list) else value
