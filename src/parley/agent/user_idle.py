"""Prompts and hang-up after a silence of both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from parley.runtime.parameters import NonNegative, read_with
from parley.timeouts import loop_time

_EARLY_S = 1e-3  # the event loop may wake this much early


class UserIdleSettings(
    msgspec.Struct,
    frozen=True,
    rename={
        "prompt_after_s": "silence_prompt_after_s",
        "prompts": "silence_prompt",
        "hang_up_after_s": "silence_hang_up_after_s",
    },
):
    """Settings of one session; 0 s: never."""

    prompt_after_s: NonNegative = 0.0
    """Silence of both sides after which the agent says something."""
    prompts: Annotated[Sequence[str], read_with(lambda text: (text,))] = ("Are you still there?",)
    """What it says then, the first time and later."""
    hang_up_after_s: NonNegative = 0.0
    """Silence of the user after which the call is ended."""


class UserIdleTimer:
    """Prompts a silent user, and finally hangs up.

    The time runs while neither side speaks. A prompt begins a new silence, but it is no sign of life of the
    user: the time until the call is ended goes on after it.

    ``prompt`` is called with the text to speak, and whether it is the first one in this silence.
    """

    def __init__(
        self, settings: UserIdleSettings, prompt: Callable[[str, bool], None], hang_up: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._prompt = prompt
        self._hang_up = hang_up
        self._prompts = 0
        self._silent_s = 0.0  # before the silence that is going on
        self.speaking = False
        """Whether the user speaks."""
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def change(self, settings: UserIdleSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings
        if self._since is not None:
            self.stop()
            self.quiet()

    def user_active(self, *, speaking: bool = False) -> None:
        """Start over with the next silence; with ``speaking`` not before :meth:`user_silent`."""
        self.stop()
        self.speaking = self.speaking or speaking
        self._prompts, self._silent_s = 0, 0.0

    def user_silent(self) -> None:
        """The user has stopped speaking; the turn may go on."""
        self.speaking = False

    def quiet(self) -> None:
        """Both sides are silent."""
        if self._since is None and not self.speaking:
            self._since = loop_time()
            self._set_timer()

    def stop(self) -> None:
        """Do not count until :meth:`quiet`: the agent thinks or speaks, or the session is over."""
        if self._since is not None:
            self._silent_s += loop_time() - self._since
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
        self.stop()
        settings = self._settings
        patience_s = settings.hang_up_after_s
        if not settings.prompt_after_s or (patience_s and self._silent_s >= patience_s - _EARLY_S):
            self._hang_up()
            return
        prompt = settings.prompts[min(self._prompts, len(settings.prompts) - 1)]
        self._prompts += 1
        self._prompt(prompt, self._prompts == 1)
