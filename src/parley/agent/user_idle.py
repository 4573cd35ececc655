"""What happens while nobody says anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parley.agent.spoken_text import check_spoken
from parley.errors import InvalidMessageError
from parley.protocol import SilenceOptions

MIN_MS = 1_000
MAX_MS = 600_000
MAX_PROMPTS = 8
MAX_CHARACTERS = 500
_EARLY_S = 1e-3
"""The event loop may wake so early."""


@dataclass(frozen=True)
class UserIdleSettings:
    """Of one session; times are seconds, 0: never."""

    prompt_after_s: float = 0.0
    prompts: Sequence[str] = ("Are you still there?",)
    hang_up_after_s: float = 0.0


def choose_idle_settings(options: SilenceOptions, default: UserIdleSettings) -> UserIdleSettings:
    """The settings of a session.

    Args:
        options: what the client asked for.
        default: the server's choice.

    Raises:
        InvalidMessageError: a time is out of its range, or a prompt is empty or too long.
    """
    prompts = default.prompts if options.prompts is None else options.prompts
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise InvalidMessageError(
            f"silence.prompts has {len(prompts)} entries; it must have 1 to {MAX_PROMPTS}"
        )
    for prompt in prompts:
        check_spoken(prompt, "a text of silence.prompts", MAX_CHARACTERS)
    return UserIdleSettings(
        prompt_after_s=_seconds("prompt_after_ms", options.prompt_after_ms, default.prompt_after_s),
        prompts=tuple(prompts),
        hang_up_after_s=_seconds("hang_up_after_ms", options.hang_up_after_ms, default.hang_up_after_s),
    )


def _seconds(name: str, value_ms: int | None, default_s: float) -> float:
    if value_ms is None:
        return default_s
    if value_ms != 0 and not MIN_MS <= value_ms <= MAX_MS:
        raise InvalidMessageError(f"silence.{name} is {value_ms}; it must be 0, or {MIN_MS} to {MAX_MS}")
    return value_ms / 1000


class UserIdleTimer:
    """Prompts a user who says nothing, and hangs up in the end.

    The time runs while neither side speaks. A prompt begins a new silence, but it is no sign of life of the
    user: the time until the call is ended goes on after it.

    Args:
        settings: of the session.
        prompt: takes what the agent is to say, and whether it is the first time in this silence.
        hang_up: ends the call.
    """

    def __init__(
        self, settings: UserIdleSettings, prompt: Callable[[str, bool], None], hang_up: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._prompt = prompt
        self._hang_up = hang_up
        self._prompts = 0
        self._silent_s = 0.0  # before the silence that is going on
        self._speaking = False
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def change(self, settings: UserIdleSettings) -> None:
        """Have other patience from now on."""
        self._settings = settings
        if self._since is not None:
            self._stop()
            self.quiet()

    def user_active(self, *, speaking: bool = False) -> None:
        """The user does something: all begins anew, with the next silence.

        Args:
            speaking: it goes on until :meth:`user_silent`.
        """
        self._stop()
        self._speaking = self._speaking or speaking
        self._prompts, self._silent_s = 0, 0.0

    def user_silent(self) -> None:
        """The user does not speak any more; whether that is the end of the turn is another question."""
        self._speaking = False

    def agent_active(self) -> None:
        """The agent thinks or speaks."""
        self._stop()

    def quiet(self) -> None:
        """Nobody has anything to do."""
        if self._since is None and not self._speaking:
            self._since = _now()
            self._set_timer()

    def close(self) -> None:
        """Wait no longer."""
        self._stop()

    def _stop(self) -> None:
        if self._since is not None:
            self._silent_s += _now() - self._since
            self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        settings = self._settings
        waits = []
        if settings.prompt_after_s:
            waits.append(settings.prompt_after_s)
        if settings.hang_up_after_s:
            waits.append(max(0.0, settings.hang_up_after_s - self._silent_s))
        if waits:
            self._timer = asyncio.get_running_loop().call_later(min(waits), self._due)

    def _due(self) -> None:
        self._stop()
        settings = self._settings
        patience_s = settings.hang_up_after_s
        if not settings.prompt_after_s or (patience_s and self._silent_s >= patience_s - _EARLY_S):
            self._hang_up()
            return
        prompt = settings.prompts[min(self._prompts, len(settings.prompts) - 1)]
        self._prompts += 1
        self._prompt(prompt, self._prompts == 1)


def _now() -> float:
    return asyncio.get_running_loop().time()
