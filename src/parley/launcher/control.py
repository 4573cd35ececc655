"""Replacing models of the running server: the control model's client, and the slots of dead instances.

Triton 24.10 removes a replaced instance of a sequence model when the last of its sequence slots is free. A
slot becomes free with the request that ends its sequence, and a dead process fails that request a second
later. If no other slot is taken then, the thread that removes the instance runs while the instance's own
thread returns from that request: ``StopBackendThread`` reads ``model_instances_.back()``, which is empty
until it has returned, and the server ends with a segmentation fault.

So one sequence is begun on the dead instance before it is replaced, and never ended. Triton ends it when it
has been idle for ``max_sequence_idle_microseconds``; nothing runs on the instance by then.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
from tritonclient.grpc import model_config_pb2, service_pb2_grpc
from tritonclient.utils import triton_to_np_dtype

from parley.canaries.connection import ServerAddress, open_blocking_channel
from parley.grpc_messages import to_message
from parley.inference import ModelRequest, SequenceFlags, Tensor
from parley.protocol import CANARY_PREFIX
from parley.triton.failures import is_of_dead_process
from parley.triton.model_control import (
    ControlAnswer,
    ControlRequest,
    Load,
    ShowRestarts,
    Unload,
    receive_all,
)

_SHORT_S = 5.0

_PATIENCE_S = 0.5
"""A living instance refuses an empty request within this time; a dead one fails it after a second."""
_MOST = 32
_DRAIN_S = 60.0
_log = logging.getLogger(__name__)


class ControlError(RuntimeError):
    """Triton refused (``refused``), or the control model did not answer and the outcome is unknown."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class ModelControl:
    """Client of :mod:`parley.triton.model_control`. Safe to use from several threads.

    Args:
        folder: of the sockets of the control model's processes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._busy: Counter[Path] = Counter()

    def load(self, model: str, config: str, timeout_s: float) -> None:
        """Load a model in place of the loaded one, and return when it serves.

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

    def show(self, restarts: Mapping[str, Mapping[str, int]], dead_instances: int) -> None:
        """Write the launcher's numbers on the metrics page.

        Args:
            restarts: by model, and under an empty name for the server: all restarts by reason.
            dead_instances: that the server holds.

        Raises:
            ControlError: they were not written.
        """
        numbers = {model: dict(counts) for model, counts in restarts.items()}
        self._ask(ShowRestarts(numbers, dead_instances), _SHORT_S)

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
    """Send a message and read the answer; ConnectionRefusedError is left to the caller."""
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


@contextmanager
def occupy_dead_slots(address: ServerAddress, config: Any, dead: int) -> Iterator[bool]:
    """Occupy a sequence slot of each dead instance of a model while they are replaced.

    Half a second passes before an instance counts as dead, unless all are.

    ``config``: the model's ``ModelConfig``, with groups of one instance each.

    Yields:
        Whether the slots are occupied; if not, Triton may crash.
    """
    slots = _Slots(address, config, dead)
    try:
        held = slots.hold()
        if not held:
            _log.warning("no sequence of %s could be begun on its dead instance", config.name)
        yield held
    finally:
        slots.release()


class _Slots:
    """Begins sequences until the dead instances have enough, and ends those of the living ones.

    Triton chooses the instance of a new sequence, so several may be needed. The requests hold no
    data, so a living instance refuses them.
    """

    def __init__(self, address: ServerAddress, config: Any, dead: int) -> None:
        self._config = config
        self._living = len(config.instance_group) - dead
        # Several dead instances get their sequences in any order.
        self._wanted = dead if dead == 1 else 4 * dead
        self._name = f"{CANARY_PREFIX}{uuid.uuid4().hex}"
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._refused: list[str] = []
        self._ended = False
        self._thread = threading.Thread(target=self._read, args=(address,), name="hold slots", daemon=True)

    def hold(self) -> bool:
        """Begin the sequences; returns whether the dead instances have enough of them."""
        self._thread.start()
        names = [f"{self._name}-{number}" for number in range(_MOST)]
        held = 0
        for name in names:
            self._requests.put(self._request(name, start=True))
            # Where no instance lives, a dead one has the sequence for certain.
            held += self._living == 0 or not self._is_refused(name)
            if held >= self._wanted or self._ended:
                break
        return held >= self._wanted and not self._ended

    def release(self) -> None:
        """End the sequences of living instances, without waiting; those of dead ones stay."""
        with self._changed:
            refused = tuple(self._refused)
        for name in refused:
            self._requests.put(self._request(name, start=False))
        self._requests.put(None)

    def _is_refused(self, name: str) -> bool:
        end = time.monotonic() + _PATIENCE_S
        with self._changed:
            while name not in self._refused and not self._ended:
                if not self._changed.wait(end - time.monotonic()):
                    return False
            return name in self._refused

    def _read(self, address: ServerAddress) -> None:
        """Read the responses to the end.

        The stream is not cancelled while a dead instance may still answer: that would free the slot.
        """
        try:
            with open_blocking_channel(address) as channel:
                stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                for answer in stub.ModelStreamInfer(iter(self._requests.get, None), timeout=_DRAIN_S):
                    if not is_of_dead_process(answer.error_message):
                        with self._changed:
                            self._refused.append(answer.infer_response.id)
                            self._changed.notify_all()
        except grpc.RpcError as error:
            _log.warning("the answers of %s were not read to the end: %s", self._config.name, error)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _request(self, sequence: str, *, start: bool) -> Any:
        inputs = {each.name: _nothing(each, bool(self._config.max_batch_size)) for each in self._config.input}
        return to_message(
            ModelRequest(
                self._config.name,
                inputs,
                (),
                request_id=sequence,
                sequence=SequenceFlags(sequence, start=start, end=not start),
            )
        )


def _nothing(tensor: Any, batched: bool) -> Tensor:
    """The smallest value of an input, all zero."""
    shape = ([1] if batched else []) + [max(length, 1) for length in tensor.dims]
    kind = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    if kind == "STRING":
        return np.full(shape, b"", np.object_)
    return np.zeros(shape, triton_to_np_dtype(kind))
