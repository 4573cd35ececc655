"""``parley run``: serve an agent of one's own that a Python file defines."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console
from rich.markup import escape

from parley.agents.reader import AgentFile, AgentFileError, parse_agent
from parley.tls import TlsOptions
from parley_client.agent_program import AgentProgram, LoadedAgent
from parley_client.agent_registration import Registration, remove_left, to_toml
from parley_client.cli import CHECKOUT
from parley_client.cli.advice import command_for
from parley_client.cli.arguments import add_tls, address, read_tls_options, run_to_end
from parley_client.cli.commands.calls import own_calls
from parley_client.cli.commands.demo import serve_page
from parley_client.cli.launcher_notes import LOCAL_HOSTS, NOTES, find_server, noted_state
from parley_client.cli.own_server import add_profile, default_profile, own_server
from parley_client.connection import DEFAULT_SERVER
from parley_client.errors import ClientError, ToolDefinitionError, UsageError
from parley_client.tools import ToolTable

if TYPE_CHECKING:
    from parley_client.cli.own_agent import OwnAgent

EXAMPLES = """\
  parley run restaurant.py         serve it on the server of this machine, or start one
  parley run restaurant.py --profile tiny
                                   start a server with these models, if none runs
  parley run restaurant.py --server 127.0.0.1:9001 --agents /etc/parley/agents
                                   a server that watches this folder for agents"""
HELP = "serve an agent and its functions from a Python file"
FOLDER_VARIABLE = "PARLEY_VOICE_AGENT_AGENTS"
RECORD_VARIABLE = "PARLEY_VOICE_AGENT_RECORD_DEBUG"
_REPOSITORY = CHECKOUT / "model_repository"
_CONNECT_S = 1.0
_NEEDS = "parley run needs the packages of the extra “agent”; `make setup` installs them in the checkout"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.epilog = (
        "The file defines one Agent(...), and marks functions with @tool (docs/your-agent.md). New calls\n"
        "get the version that was saved last. Ctrl-C ends the command and removes the agent from the server."
    )
    parser.add_argument("file", type=Path, metavar="FILE.py", help="the agent")
    parser.add_argument(
        "--server",
        type=address,
        metavar="HOST:PORT",
        help=f"a server on this machine (default: {DEFAULT_SERVER} if there is one; else one is started)",
    )
    parser.add_argument(
        "--agents",
        type=Path,
        metavar="FOLDER",
        help=f"where the server looks for agents (default: as the launcher has noted, or {FOLDER_VARIABLE})",
    )
    parser.add_argument(
        "--record-debug",
        type=Path,
        metavar="FOLDER",
        help="record every call as a whole, on a server that is started, for parley replay",
    )
    add_profile(parser, "of the models of the server that is started (see parley models)")
    add_tls(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Serve the agent until Ctrl-C or SIGTERM.

    Raises:
        ClientError: the file does not define an agent, or no server takes it.
    """
    server = args.server or (DEFAULT_SERVER if _is_there(DEFAULT_SERVER) else "")
    profile = "" if server else args.profile or default_profile()
    program, loaded = load_agent(args.file)
    check_agent(loaded, profile)
    if server:
        if args.profile:
            raise UsageError(f"--profile is for a server that is started, and one runs at {server}")
        if args.record_debug:
            raise UsageError(f"--record-debug is for a server that is started, and one runs at {server}")
        place = ServingPlace(server, args.agents or folder_of(server), read_tls_options(args))
        return run_to_end(_serve(program, loaded, place, console))
    if args.tls or args.ca or args.cert or args.key or args.server_name:
        raise UsageError(f"options of TLS are for a server that runs, and none runs at {DEFAULT_SERVER}")
    folder = own_folder("run", args.agents)
    environment = {FOLDER_VARIABLE: str(folder)}
    if args.record_debug:
        environment[RECORD_VARIABLE] = str(args.record_debug.absolute())
    options: dict[str, Any] = {"profile": profile, "environment": environment}
    with own_server(console, "run", is_brief=True, usual_ports=True, **options) as own:
        place = ServingPlace(own.endpoints.grpc, folder, profile=profile)
        return run_to_end(_serve(program, loaded, place, console))


AgentInPython: TypeAlias = tuple[AgentProgram, LoadedAgent]
"""The file of an agent, and what it defines."""


def load_agent(file: Path) -> AgentInPython:
    """An agent that is to be served, or checked.

    Raises:
        UsageError: the packages that serve its functions are not installed.
        ToolDefinitionError: the file does not define an agent.
    """
    if importlib.util.find_spec("mcp") is None:
        raise UsageError(_NEEDS)
    sys.dont_write_bytecode = True  # bytecode of a file that was changed within the same second would be used
    program = AgentProgram(file)
    return program, program.load()


def own_folder(server: str, named: Path | None = None) -> Path:
    """The folder of agents of a server that is started under a name, without those of killed programs."""
    folder = (named or NOTES / server / "agents").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    remove_left(folder)
    return folder


@dataclass(frozen=True)
class ServingPlace:
    """A server, and where it looks for agents."""

    server: str
    folder: Path
    tls: TlsOptions | None = None
    profile: str = ""
    """Of the server, if this command has started it."""


def check_agent(loaded: LoadedAgent, profile: str = "") -> AgentFile:
    """Refuse fields that the definition of an agent with these functions cannot have.

    ``profile``: refuse also what a server of it cannot do, such as voices; not within an event loop.

    Raises:
        ToolDefinitionError: they are refused; the message names the field, and the nearest name.
        ParleyError: the settings of the profile are wrong.
    """
    from parley_client.cli.own_agent import definition  # noqa: PLC0415 - takes half a second

    name = loaded.name
    path = Path(f"{name}.toml")
    try:
        parse_agent(path, to_toml(loaded.fields).encode())  # the functions are added to what it has
        fields = definition(loaded, ToolTable(loaded.functions), "http://127.0.0.1/mcp")
        file = parse_agent(path, to_toml(fields).encode())
        if profile:
            from parley.launcher.agent_files import check_agents  # noqa: PLC0415 - of the server

            found = asyncio.run(check_agents({name: file}, _REPOSITORY, profile, os.environ))[name]
            if isinstance(found, AgentFileError):
                raise found
    except AgentFileError as error:
        # Before the first colon and blank stand the name and the line of that file.
        raise ToolDefinitionError(f"Agent(...): {str(error).partition(': ')[2]}") from error
    return file


@asynccontextmanager
async def serving_agent(
    program: AgentProgram, loaded: LoadedAgent, place: ServingPlace, console: Console
) -> AsyncIterator[OwnAgent]:
    """Serve an agent, which was checked, as long as the block runs, which begins when calls may choose it.

    Raises:
        ClientError: another program serves it, or the server does not take it.
    """
    from parley_client.cli.own_agent import OwnAgent, wait_until_served  # noqa: PLC0415 - takes half a second
    from parley_client.tool_server import ToolServer  # noqa: PLC0415 - an optional extra

    tools = ToolServer()
    async with tools.serving():
        with Registration(place.folder, loaded.name) as entry:
            check = partial(check_agent, profile=place.profile)
            agent = OwnAgent(program, tools, entry, check, console)
            agent.publish(loaded)
            called = tools if loaded.functions else None
            indexes = bool(loaded.fields.get("knowledge"))
            more = ", and indexes its knowledge" if indexes else ""
            console.print(f"The server reads the agent {escape(loaded.name)}{more} …")
            try:
                await wait_until_served(place.server, loaded.name, called, indexes=indexes, tls=place.tls)
            except ClientError as error:
                raise ClientError(f"{error}. {_advice(place.folder)}") from error
            yield agent


async def _serve(program: AgentProgram, loaded: LoadedAgent, place: ServingPlace, console: Console) -> int:
    with suppress(asyncio.CancelledError):  # Ctrl-C is the usual end
        async with AsyncExitStack() as stack:
            agent = await stack.enter_async_context(serving_agent(program, loaded, place, console))
            serving = serve_page(place.server, own_calls() if place.profile else None)
            page = None if place.tls else await stack.enter_async_context(serving)
            console.print(_invitation(loaded, place.server, page))
            await agent.follow()
    return 0


def _advice(folder: Path) -> str:
    return (
        f"The definition is in {folder}: does the server look for agents there (--agents), run as this user "
        "and on this machine? Its log says which definitions it has refused"
    )


def _invitation(loaded: LoadedAgent, server: str, page: str | None) -> str:
    name = escape(loaded.name)
    count = len(loaded.functions)
    functions = f"{count} function{'' if count == 1 else 's'}"
    typed = "" if importlib.util.find_spec("sounddevice") else " --text"
    lines = [
        f"The agent [bold]{name}[/] is served, with {functions}; Ctrl-C ends it. Talk to it:",
        f"  {command_for('talk', server)} --agent {name}{typed}",
    ]
    if page is not None:
        lines.append(f"  {page}/?agent={name}")
    return "\n".join(lines)


def _is_there(server: str) -> bool:
    """Whether a server listens, or its launcher has begun to start it.

    Raises:
        ClientError: it has begun, or is stopping.
    """
    if state := noted_state(server, NOTES) if not _listens(server) else "":
        raise ClientError(f"the server at {server} is {state}; try again in a while")
    return _listens(server)


def _listens(server: str) -> bool:
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError:
        return False
    return True


def folder_of(server: str) -> Path:
    """Where a running server looks for agents.

    Raises:
        UsageError: that is not known, or it is on another machine.
    """
    if server.rpartition(":")[0] not in LOCAL_HOSTS:
        raise UsageError(
            f"{server} is on another machine, which cannot reach functions that are served here; put the "
            "definition there, with an MCP server that it reaches (docs/your-agent.md)"
        )
    found = find_server(server, NOTES)
    noted = found[1].agents if found else None
    if noted is None:  # a server without a launcher, whose settings may be those of this environment
        named, usual = os.environ.get(FOLDER_VARIABLE), CHECKOUT / "agents"
        noted = named or (str(usual) if usual.is_dir() else "")
    if noted:
        return Path(noted)
    raise UsageError(
        f"{server} looks for agents in no folder that is known here; name it with --agents FOLDER. A server "
        f"looks in the folder of {FOLDER_VARIABLE}, or in `agents` beside the model repository, if there is "
        "one when it starts"
    )
