"""Weights of a profile that are not part of the project: brought before the server starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from parley.launcher.errors import SetupIncompleteError, StartInterruptedError
from parley.launcher.options import ROOT, TINY_PROFILE, ServerOptions

PROGRAM = ROOT / "scripts/fetch_models"
_INTERRUPTED = 130
_GRACE_S = 10.0
"""For what the program has started itself."""


def bring_weights(
    options: ServerOptions, inherited: Mapping[str, str] = os.environ, program: Path = PROGRAM
) -> None:
    """Download and convert what the profile needs and this machine has not; else do nothing.

    The program shows on standard error what is to come, from whom, and how far it is. Where models are
    chosen one by one nothing is brought, nor for a model repository that is not the project's.

    Args:
        options: of the server.
        inherited: environment besides that of the options.
        program: does it.

    Raises:
        SetupIncompleteError: not all could be brought; the program has said why.
        StartInterruptedError: by Ctrl-C.
    """
    own = options.model_repository.resolve() == ROOT / "model_repository"
    if options.profile == TINY_PROFILE or options.load_models or not own or not program.exists():
        return
    environment = {**inherited, **options.environment}
    status = _run([str(program), "--profile", options.profile], environment)
    if status == _INTERRUPTED:
        raise StartInterruptedError("The download was interrupted.")
    if status:
        raise SetupIncompleteError(
            f"The profile {options.profile} has not all of its weights; see above and docs/models.md."
        )


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The program's exit status; it does not outlive an interruption of this process."""
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
