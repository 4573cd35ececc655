"""``parley agents``: check the files of agents, and list those of a server."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import uuid
from contextlib import aclosing
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from parley import protocol
from parley_client.call import Call
from parley_client.cli import CHECKOUT
from parley_client.cli.arguments import add_server, read_tls_options
from parley_client.cli.commands.run import check_agent, load_agent
from parley_client.cli.output import plain_table
from parley_client.cli.own_server import add_profile, default_profile
from parley_client.errors import ClientError, UsageError
from parley_client.options import Deadlines
from parley_client.transport import TritonTransport

EXAMPLES = """\
  parley agents check                      the files of the folder `agents`, without a server
  parley agents check restaurant/restaurant.py
  parley agents check agents/restaurant.toml --profile gpu
  parley agents list                       the agents that sessions of a running server may name"""
HELP = "check the files of agents, and list those of a server"
_REPOSITORY = CHECKOUT / "model_repository"
_DEFAULT = Path("agents")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="read files as a server would, in its environment")
    check.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=_DEFAULT,
        metavar="FILE|FOLDER",
        help="of one agent, or of all (default: the folder `agents`)",
    )
    add_profile(check, "of the model repository, whose voices count (default: that of `make serve`)")
    listing = actions.add_parser("list", help="the agents of a running server")
    listing.add_argument("--json", action="store_true", help="print one JSON object per agent")
    add_server(listing)


async def run(args: argparse.Namespace, console: Console) -> int:
    """Check files, or list a server's agents.

    Returns:
        1 if a file is wrong.

    Raises:
        ParleyError: the files cannot be read, or the server does not answer.
    """
    if args.action == "check":
        return await _check(args, console)
    agents = await _ask(args)
    if args.json:
        for agent in agents:
            print(msgspec.json.encode(agent).decode())
    elif agents:
        _show(agents, console)
    else:
        console.print(f"{args.server} defines no agents.")
    return 0


async def _check(args: argparse.Namespace, console: Console) -> int:
    if not _REPOSITORY.is_dir():
        raise ClientError("files are checked by the server's code: run this in a checkout of it")
    from parley.agents.folder import read_folder  # noqa: PLC0415
    from parley.agents.reader import AgentFile, AgentFileError  # noqa: PLC0415 - of the server
    from parley.launcher.agent_files import check_agents  # noqa: PLC0415

    is_file = args.path.is_file()
    folder = args.path.parent if is_file else args.path
    profile = args.profile or default_profile()
    found: dict[str, AgentFile | AgentFileError]
    try:
        if args.path.suffix == ".py":
            _, loaded = load_agent(args.path)
            found = {args.path.stem: await asyncio.to_thread(check_agent, loaded, profile)}
        else:
            read = await asyncio.to_thread(read_folder, folder.absolute(), {})
            if is_file:  # the numbers were compared with those of the other files
                read = {name: one for name, one in read.items() if name == args.path.stem}
            found = await check_agents(read, _REPOSITORY, profile, os.environ)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from error
    if is_file and not found:
        raise UsageError(f"{args.path} is no file of an agent: these are called NAME.toml, or NAME.py")
    if not found:
        raise UsageError(f"{folder} has no file NAME.toml; one in Python is named itself: NAME.py")
    wrong = [error for error in found.values() if isinstance(error, AgentFileError)]
    for one in wrong:
        print(one, file=sys.stderr)
    right = [
        file.definition.summary(file.name) for file in found.values() if not isinstance(file, AgentFileError)
    ]
    if right:
        _show(right, console)
    return 1 if wrong else 0


async def _ask(args: argparse.Namespace) -> list[protocol.AgentSummary]:
    """What the server says of its agents; the session is a health check's and takes no caller's place."""
    start = protocol.Start(system_prompt="", greeting="", language="", describe=True)
    call_id = f"{protocol.CANARY_PREFIX}{uuid.uuid4().hex}"
    transport = TritonTransport(args.server, tls=read_tls_options(args))
    try:
        stream = await transport.open(call_id, args.timeout)
        async with aclosing(
            Call(stream, call_id, start, deadlines=Deadlines(connect_s=args.timeout))
        ) as call:
            described = (await call.open()).agent
    finally:
        await transport.close()
    return described.agents if described is not None else []


def _show(agents: list[protocol.AgentSummary], console: Console) -> None:
    table = plain_table("agent", "title", "language", "voice", "telephone")
    for agent in agents:
        cells = (agent.name, agent.title, agent.language, agent.voice, " ".join(agent.numbers))
        table.add_row(*map(escape, cells))
    console.print(table)
