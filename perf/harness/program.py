"""How a program ends: what it says of a failure, and its exit status."""

from __future__ import annotations

import signal
from collections.abc import Callable

from rich.console import Console

from parley.errors import ParleyError
from parley_client.cli.arguments import handle_signals
from parley_client.cli.output import until_closed
from parley_client.cli.view import make_console
from parley_client.errors import OutputClosedError

_INTERRUPTED = 130


def run_program(name: str, program: Callable[[Console], int], *failures: type[Exception]) -> int:
    """Run a program; signals that end it stop its servers, too.

    Args:
        name: begins the line that says why it failed.
        program: prints to the console; returns its exit status.
        failures: exceptions besides ParleyError whose text is for people.

    Returns:
        Its exit status, or 1 if it failed, 130 after Ctrl-C, 141 if the reader of its output left.
    """
    console = make_console()
    expected: tuple[type[Exception], ...] = (ParleyError, *failures)

    def run() -> int:
        try:
            with handle_signals(signal.default_int_handler):
                return program(console)
        except OutputClosedError:
            raise
        except expected as error:
            console.print(f"{name}: {error}", style="red", markup=False)
            return 1
        except KeyboardInterrupt:
            console.print("Interrupted.")
            return _INTERRUPTED

    return until_closed(run)
