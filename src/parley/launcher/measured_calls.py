"""How many calls this machine was found to hold (``parley capacity``), for servers that start on it later."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from contextlib import suppress

from parley.launcher.larger_model import machine, weights_folder
from parley.launcher.options import TINY_PROFILE, ServerOptions

_FILE = "capacity.json"
_CALLS, _SESSIONS = "PARLEY_VOICE_AGENT_MAX_CALLS", "PARLEY_VOICE_AGENT_MAX_SESSIONS"


def keep_calls(options: ServerOptions, environment: Mapping[str, str], calls: int) -> str:
    """Write what a server of these options holds; the file, or why it cannot be written."""
    path = weights_folder(options, {**environment, **options.environment}) / _FILE
    kept = {**machine(), "profile": options.profile, "calls": calls, "measured": time.strftime("%Y-%m-%d")}
    try:
        path.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    except OSError as error:
        return f"not kept: {error}"
    return str(path)


def with_measured_calls(options: ServerOptions, environment: Mapping[str, str]) -> ServerOptions:
    """The options with the calls that were found here for the profile, where no setting says how many.

    Tiny models are for tests, which open what they need.
    """
    environment = {**environment, **options.environment}
    if options.profile == TINY_PROFILE or environment.get(_CALLS) or environment.get(_SESSIONS):
        return options
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
        kept = json.loads((weights_folder(options, environment) / _FILE).read_text(encoding="utf-8"))
        if (
            kept.items() >= {**machine(), "profile": options.profile}.items()
            and (calls := int(kept["calls"])) > 0
        ):
            # Each instance may have all of them, and calls that move there; together they begin no more.
            limits = {_CALLS: str(calls), _SESSIONS: str(2 * calls)}
            return dataclasses.replace(options, environment={**options.environment, **limits})
    return options
