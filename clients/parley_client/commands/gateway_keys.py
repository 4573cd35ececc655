"""``parley gateway keys``: API keys for the gateway."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parley_gateway.access import Scope

_SCOPES = ("agent", "transcribe", "speak", "chat", "admin")
_USUAL: tuple[Scope, ...] = ("agent", "transcribe", "speak", "chat")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``parley gateway keys``."""
    actions = parser.add_subparsers(dest="keys_action", required=True)
    new = actions.add_parser("new", help="make a key: print it once, and the line for the file of keys")
    new.add_argument("--name", default="", help="whose it is, for people")
    new.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        choices=_SCOPES,
        help=f"what it may do; can be given several times (default: {', '.join(_USUAL)})",
    )
    new.add_argument("--days", type=_days, metavar="N", help="how long it is valid (default: for ever)")


def run(args: argparse.Namespace) -> int:
    """Make a key.

    The line for the file goes to standard output, so that it can be appended; the key to standard error.

    Returns:
        The exit status.
    """
    from parley_gateway.security.keys import new_key  # noqa: PLC0415 - an optional extra

    expires = None if args.days is None else datetime.now(UTC) + timedelta(days=args.days)
    scopes: Sequence[Scope] = args.scopes or _USUAL
    made = new_key(args.name, scopes, expires)
    print(f"The key, which is shown only now: {made.secret}", file=sys.stderr, flush=True)
    print(made.line, flush=True)
    return 0


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days <= 36_500:
        raise argparse.ArgumentTypeError(f"a number of days is expected, not {text!r}")
    return days
