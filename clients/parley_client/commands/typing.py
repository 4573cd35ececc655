"""What is typed during a call."""

from __future__ import annotations

from collections.abc import Callable

from parley.errors import InvalidMessageError, OverloadedError
from parley_client.call import Call
from parley_client.terminal.view import CallView

HELP = "a line of text, /say TEXT, /dtmf KEYS, /mute or /unmute"


def obey(line: str, call: Call, view: CallView, at_s: float) -> None:
    """Send what a line asks for, and show it; say what is wrong with it.

    Args:
        line: Text is the user's turn, unless it begins with a slash.
        call: Gets it.
        view: Shows it.
        at_s: Seconds into the call.
    """
    if not line.strip():
        return
    try:
        shown = _send(line.strip(), call)
    except (InvalidMessageError, OverloadedError) as error:
        view.show_problem(str(error), error.code, at_s)
    else:
        view.show_typed(shown, at_s)


def _send(line: str, call: Call) -> str:
    """Send it.

    Returns:
        What is to be shown.

    Raises:
        InvalidMessageError: it cannot be sent.
        OverloadedError: too much is waiting to be sent.
    """
    if not line.startswith("/"):
        call.send_text(line)
        return line
    command, _, argument = line[1:].partition(" ")
    argument = argument.strip()
    with_argument: dict[str, Callable[[str], None]] = {"say": call.say, "dtmf": call.send_dtmf}
    without: dict[str, Callable[[], None]] = {"mute": call.mute, "unmute": call.unmute}
    if command in with_argument:
        with_argument[command](argument)
    elif command in without and not argument:
        without[command]()
    else:
        raise InvalidMessageError(f"{line!r} is not known; type {HELP}")
    return line
