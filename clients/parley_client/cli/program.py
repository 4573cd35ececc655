"""The command ``parley``.

Exit status: 0 all went well, 1 something failed (one line says what), 2 wrong usage, 130 Ctrl-C,
141 the reader of the output has closed it.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any

from parley.errors import ParleyError
from parley.names import suggest_name
from parley_client import __version__
from parley_client.cli import PARLEY
from parley_client.cli.advice import advice
from parley_client.cli.arguments import handle_signals, run_to_end
from parley_client.cli.output import print_error, until_closed
from parley_client.cli.view import make_console
from parley_client.errors import OutputClosedError, UsageError

_NAMES = (
    "demo",
    "new",
    "run",
    "say",
    "talk",
    "transcribe",
    "voices",
    "probe",
    "trace",
    "replay",
    "test",
    "conform",
    "capacity",
    "drain",
    "gateway",
    "agents",
    "calls",
    "turns",
    "models",
)
_SERVER = ("parley", "parley_gateway", "parley_stages", "parley_testing")
_EXTRA_AGENT = ("httpx2", "jsonschema", "jsonschema_specifications", "mcp", "referencing")


def _load(name: str) -> ModuleType | str:
    """The module of a command, or what it needs and is not installed."""
    try:
        return importlib.import_module(f"parley_client.cli.commands.{name}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _SERVER:
            return "the package parley, the server"
        if missing in _EXTRA_AGENT:
            return "the packages of parley's extra “agent”"
        raise


_COMMANDS = {name: _load(name) for name in _NAMES}
_IS = "" if PARLEY == "parley" else f" (parley is {PARLEY})"
_EXAMPLES = f"""\
examples{_IS}:
  parley demo                      start a server, and play a recorded conversation with it
  parley gateway                   talk to a running server in the browser, or with OpenAI clients
  parley talk                      talk to it here

parley COMMAND --help shows what a command can do, with examples."""
_INTERRUPTED = 130
_WRONG_USAGE = 2


class CommandParser(argparse.ArgumentParser):
    """Refuses what it does not know, with its own usage and the nearest name.

    A parser of :mod:`argparse` leaves that to the topmost one, which prints the usage of all commands. What
    follows a misspelt option it takes for the name of a command.
    """

    def parse_known_args(  # type: ignore[override] # of its overloads this is the general one
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As the base class; ends the program if an argument is unknown."""
        given = sys.argv[1:] if args is None else list(args)
        self._refuse_unknown_options(given)
        found, rest = super().parse_known_args(given, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def _refuse_unknown_options(self, args: Sequence[str]) -> None:
        """Refuse long options before values that follow them are taken for something else."""
        commands = [
            name
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - has no public name
            for name in action.choices
        ]
        known = [option for action in self._actions for option in action.option_strings]
        takes_value = False
        for arg in args:
            if arg == "--" or arg in commands:
                return
            name, is_assigned, _ = arg.partition("=")
            # The base class takes what contains a space for a value, unless it is an option with its value.
            is_value = " " in name or (takes_value and " " in arg)
            found = [option for option in known if option.startswith(name)] if arg.startswith("--") else []
            if arg.startswith("--") and not is_value and not found:
                self.error(f"unrecognized arguments: {arg}{suggest_name(name, known)}")
            takes_value = not is_assigned and any(self._takes_value(option) for option in found)

    def _takes_value(self, option: str) -> bool:
        return self._option_string_actions[option].nargs != 0


def build_parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    parser = CommandParser(
        prog="parley",
        description="Talk to a Parley voice agent.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"parley {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, module in _COMMANDS.items():
        if isinstance(module, str):
            commands.add_parser(name, help=f"needs {module}, beside parley-client")
            continue
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP[0].upper() + module.HELP[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.epilog = "\n\n".join(filter(None, [sub.epilog, f"examples{_IS}:\n{module.EXAMPLES}"]))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; expected failures are one line, not a traceback."""
    given = sys.argv[1:] if argv is None else argv
    needed = _COMMANDS.get(given[0]) if given else None
    if isinstance(needed, str):
        verb = "are" if "packages" in needed else "is"
        print_error(f"parley {given[0]} needs {needed}, which {verb} not installed here", UsageError.code, "")
        return _WRONG_USAGE
    parser = build_parser()
    args = parser.parse_args(given)
    if args.command is None:
        parser.print_help(sys.stderr)
        return _WRONG_USAGE
    return until_closed(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    console = make_console()
    module = _COMMANDS[args.command]
    assert not isinstance(module, str), "main has refused it"
    run = module.run
    try:
        with handle_signals(_interrupt):
            if inspect.iscoroutinefunction(run):
                return run_to_end(run(args, console))
            return int(run(args, console))
    except OutputClosedError:
        raise
    except ParleyError as error:
        server = getattr(args, "server", None)
        print_error(str(error), error.code, advice(error, server, command=args.command))
        return _WRONG_USAGE if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return _INTERRUPTED


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """End as on Ctrl-C: hang up, stop the server, then leave."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
