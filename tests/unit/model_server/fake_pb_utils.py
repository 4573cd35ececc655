"""Stands in for ``triton_python_backend_utils``, which exists only inside Triton."""

import asyncio
import queue
import threading

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2


class Tensor:
    def __init__(self, name, value):
        self._name = name
        self._value = value

    def name(self):
        return self._name

    def as_numpy(self):
        return self._value


class TritonError:
    def __init__(self, message):
        self._message = message

    def message(self):
        return self._message


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self._tensors = list(output_tensors)
        self._error = error

    def output_tensors(self):
        return self._tensors

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error


class ResponseSender:
    """Records what was sent, in order: ("data", tensors), ("error", text), ("final",)."""

    def __init__(self):
        self.sent = []
        self.sends = 0
        self.gone = False
        self.broken = False
        self.final = threading.Event()

    def send(self, response=None, flags=0):
        if self.broken:
            raise RuntimeError("cannot send")
        self.sends += 1
        if response is not None and response.has_error():
            self.sent.append(("error", response.error().message()))
        elif response is not None:
            self.sent.append(("data", {t.name(): t.as_numpy() for t in response.output_tensors()}))
        if flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL:
            self.sent.append(("final",))
            self.final.set()

    def is_cancelled(self):
        if isinstance(self.gone, Exception):
            raise self.gone
        return self.gone


class Request:
    """A request that Triton hands to ``execute``."""

    def __init__(self, inputs=None, request_id="r1"):
        self.sender = ResponseSender()
        self._inputs = [Tensor(name, value) for name, value in (inputs or {}).items()]
        self._id = request_id

    def request_id(self):
        return self._id

    def inputs(self):
        return self._inputs

    def get_response_sender(self):
        return self.sender


class Model:
    """What is behind a BLS call: ``calls`` are made to wait until ``answer`` is called."""

    def __init__(self):
        self.requests = []
        self.answers = queue.SimpleQueue()

    def answer(self, *responses):
        """Answer the next call, once."""
        self.answers.put(responses)


def response(**outputs):
    return InferenceResponse([Tensor(name, np.asarray(value)) for name, value in outputs.items()])


def failure(text):
    return InferenceResponse(error=TritonError(text))


def make_request_class(model):
    """An ``InferenceRequest`` whose calls are answered by ``model``."""

    class InferenceRequest:
        def __init__(self, **fields):
            self.fields = fields
            model.requests.append(self)

        def exec(self):
            return model.answers.get(timeout=10)[0]

        def async_exec(self):
            loop = asyncio.get_running_loop()
            return loop.run_in_executor(None, lambda: model.answers.get(timeout=10)[0])

    return InferenceRequest


class Logger:
    lines = None  # set by the test

    @classmethod
    def log_error(cls, text):
        cls.lines.append(("error", text))

    @classmethod
    def log_warn(cls, text):
        cls.lines.append(("warning", text))

    @classmethod
    def log_info(cls, text):
        cls.lines.append(("info", text))

    @classmethod
    def log_verbose(cls, text):
        cls.lines.append(("verbose", text))


class Metric:
    """A series of a metrics page."""

    def __init__(self, labels, buckets):
        self.labels, self.buckets = labels, buckets
        self.value = 0.0
        self.observed = []

    def increment(self, amount):
        self.value += amount

    def set(self, value):
        self.value = value

    def observe(self, value):
        self.observed.append(value)


class MetricFamily:
    """Keeps its series in ``series``, by labels."""

    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, name, description, kind):
        self.name, self.description, self.kind = name, description, kind
        self.series = {}

    def Metric(self, labels, buckets=None):  # noqa: N802 - Triton's name
        assert (buckets is not None) == (self.kind == self.HISTOGRAM)
        made = self.series[tuple(labels.items())] = Metric(labels, buckets)
        return made
