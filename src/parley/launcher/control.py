"""The launcher's side of :mod:`parley.triton.model_control`."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from pathlib import Path

import msgspec

from parley.triton.model_control import (
    ControlAnswer,
    ControlRequest,
    CountRestarts,
    Load,
    Unload,
    receive_all,
)

_SHORT_S = 5.0


class ControlError(RuntimeError):
    """Triton refused, or the control model did not answer.

    Attributes:
        refused: Triton refused it; otherwise the outcome is unknown.
    """

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class ModelControl:
    """Loads models of a running server again. Safe to use from several threads.

    Args:
        folder: where the processes of the control model listen.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._busy: Counter[Path] = Counter()

    def load(self, model: str, config: str, timeout_s: float) -> None:
        """Load a model in place of the loaded one, and return when it serves.

        Args:
            model: its name.
            config: Triton's configuration as JSON.
            timeout_s: for the whole load (seconds).

        Raises:
            ControlError: it was not loaded, or not in time.
        """
        self._ask(Load(model, config), timeout_s)

    def unload(self, model: str) -> None:
        """Begin to unload a model.

        Raises:
            ControlError: Triton refused.
        """
        self._ask(Unload(model), _SHORT_S)

    def count(self, model: str, reason: str, number: int = 1) -> None:
        """Add restarts to the counters on the metrics page; an empty model is the server.

        Raises:
            ControlError: they were not added.
        """
        self._ask(CountRestarts(model, reason, number), _SHORT_S)

    def _ask(self, request: ControlRequest, timeout_s: float) -> None:
        message = msgspec.json.encode(request)
        answer = None
        tried: set[Path] = set()
        while answer is None:
            path = self._take(tried)
            try:
                answer = _exchange(path, message, timeout_s)
            except ConnectionRefusedError:  # this process has died
                tried.add(path)
            finally:
                with self._lock:
                    self._busy[path] -= 1
        if answer.error:
            raise ControlError(answer.error, refused=True)

    def _take(self, without: set[Path]) -> Path:
        """The process with the least to do."""
        with self._lock:
            try:
                paths = sorted(set(self._folder.glob("*.sock")) - without)
            except FileNotFoundError:  # the folder was removed at this moment: the server has ended
                paths = []
            if not paths:
                raise ControlError("no process of the control model lives", refused=False)
            path = min(paths, key=lambda each: self._busy[each])
            self._busy[path] += 1
            return path


def _exchange(path: Path, message: bytes, timeout_s: float) -> ControlAnswer:
    """Send a message and read the answer; a refused connection is the caller's to handle."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)
            return msgspec.json.decode(receive_all(connection), type=ControlAnswer)
    except ConnectionRefusedError:
        raise
    except TimeoutError as error:
        raise ControlError(f"no answer within {timeout_s:g} s", refused=False) from error
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise ControlError(f"the control model did not answer: {error}", refused=False) from error
