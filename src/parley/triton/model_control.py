"""Loading and unloading models from inside the server, on the launcher's request.

Triton's own repository API would need a key, and Triton takes keys on its command line only, where every
user of the machine can read them. A Python model may load and unload models without one
(``pb_utils.load_model``). So the launcher adds a model to the server that does this, and nothing else,
for requests from a Unix socket in a folder that only this user can enter.

One connection carries one request and its answer, each one JSON message up to the end of its direction.
"""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec

from parley.metrics import Family
from parley.triton.observability import make_family

CONTROL_MODEL = "parley_control"
FOLDER_VARIABLE = "PARLEY_CONTROL_DIR"
RELOAD_S = 5.0
"""For a model whose processes have ended to be loaded again: what callers are advised to wait."""
MAX_MESSAGE_BYTES = 1 << 20
_CONNECTION_S = 5.0
_CLOSE_S = 5.0
_log = logging.getLogger(__name__)


def loss_path(folder: Path, model: str) -> Path:
    """The file that the launcher touches when a model has lost the last of its processes."""
    return folder / f"{model}.lost"


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Load a model, in place of the one that is loaded under this name."""

    model: str
    config: str
    """Triton's configuration as JSON. Triton loads nothing if neither this nor a file has changed."""


class Unload(msgspec.Struct, frozen=True, tag="unload"):
    """Unload a model. The answer does not wait for its end."""

    model: str


class ShowRestarts(msgspec.Struct, frozen=True, tag="show_restarts"):
    """Write the launcher's numbers on the metrics page."""

    restarts: dict[str, dict[str, int]]
    """By model, and under an empty name for the server: restarts by reason, since the launcher's start."""
    dead_instances: int


class ControlAnswer(msgspec.Struct, frozen=True):
    """The result of a request."""

    error: str = ""
    """Triton's words, empty after success."""


ControlRequest = Load | Unload | ShowRestarts


def socket_path(folder: Path, instance: str) -> Path:
    """Where an instance of the control model listens."""
    return folder / f"{instance}.sock"


def receive_all(connection: socket.socket) -> bytes:
    """All that the other side sends before it ends its direction.

    Raises:
        ValueError: it is more than a message may be.
        OSError: the connection failed, or its timeout is over.
    """
    received = bytearray()
    while piece := connection.recv(1 << 16):
        received += piece
        if len(received) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
    return bytes(received)


MODEL_RESTARTS = Family(
    "parley_model_restarts_total",
    "counter",
    "Model processes that were replaced by the launcher",
    ("model", "reason"),
)
SERVER_RESTARTS = Family(
    "parley_server_restarts_total", "counter", "Servers that were replaced by the launcher", ("reason",)
)
DEAD_INSTANCES = Family(
    "parley_dead_instances", "gauge", "Instances whose process has ended and that tritonserver still holds"
)


class ControlService:
    """Answers the launcher, one request after the other, in a thread."""

    def __init__(self, pb_utils: Any, path: Path) -> None:
        self._pb = pb_utils
        families = (MODEL_RESTARTS, SERVER_RESTARTS, DEAD_INSTANCES)
        self._families = {family.name: make_family(pb_utils, family) for family in families}
        self._metrics: dict[tuple[str, ...], Any] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; waits for a request under way."""
        # Closing alone does not wake a thread that waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_CLOSE_S)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with connection:
                try:
                    connection.settimeout(_CONNECTION_S)
                    answer = self._answer(receive_all(connection))
                    connection.sendall(msgspec.json.encode(answer))
                except (OSError, ValueError):  # the launcher has given up, or died
                    _log.warning("a request was not answered", exc_info=True)

    def _answer(self, message: bytes) -> ControlAnswer:
        try:
            self._execute(msgspec.json.decode(message, type=ControlRequest))
        except Exception as error:  # noqa: BLE001 - Triton's errors have no type of their own
            return ControlAnswer(error=str(error) or type(error).__name__)
        return ControlAnswer()

    def _execute(self, request: ControlRequest) -> None:
        match request:
            case Load(model, config):
                self._pb.load_model(model_name=model, config=config)
            case Unload(model):
                self._pb.unload_model(model_name=model)
            case ShowRestarts(restarts, dead_instances):
                for model, counts in restarts.items():
                    for reason, number in counts.items():
                        if model:
                            metric = self._metric(MODEL_RESTARTS, model=model, reason=reason)
                        else:
                            metric = self._metric(SERVER_RESTARTS, reason=reason)
                        # The other process of this model may have counted some of them.
                        metric.increment(max(0, number - metric.value()))
                self._metric(DEAD_INSTANCES).set(dead_instances)

    def _metric(self, family: Family, **labels: str) -> Any:
        key = (family.name, *labels.values())
        if key not in self._metrics:
            self._metrics[key] = self._families[family.name].Metric(labels=labels)
        return self._metrics[key]
