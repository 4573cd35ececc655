"""The parser of a command line with commands: errors come with the usage of the command that they concern."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from parley.runtime.names import suggest_name


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
        for arg in args:
            if arg == "--" or arg in commands:
                return
            name = arg.partition("=")[0]
            if arg.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"unrecognized arguments: {arg}{suggest_name(name, known)}")
