"""Metrics on Triton's metrics page."""

from __future__ import annotations

import threading
import time

import fake_pb_utils as pb
import pytest
from fake_pb_utils import Request

from parley.errors import ModelLoadingError, ParleyError
from parley.metrics import Family, MetricsRecorder
from parley.runtime.parameters import Parameters
from parley.triton.model_metrics import (
    BATCH_ITEMS,
    BATCHES,
    FIRST_RESPONSE,
    REQUEST_ERRORS,
    REQUESTS,
    STARTED,
    ModelMetrics,
)
from parley.triton.observability import MetricsPublisher
from parley.triton.responses import Responder

BYTES = Family("bytes_total", "counter", "Bytes")
OPEN = Family("open", "gauge", "Open calls", ("instance",))
WAIT = Family("wait_seconds", "histogram", "Waits", buckets=(0.1, 1.0))
NAMES = {"model": "voice"}


class Page:
    """What Triton makes of metrics."""

    def __init__(self):
        page = self
        self.families = {}
        self.refuses = False
        self.changed = threading.Condition()

        class Series(pb.Metric):
            def __getattribute__(self, name):
                if name in ("increment", "set", "observe"):
                    if page.refuses:
                        raise RuntimeError("the server is stopping")
                    with page.changed:
                        page.changed.notify_all()
                return super().__getattribute__(name)

        class Made(pb.MetricFamily):
            def __init__(self, name, description, kind):
                super().__init__(name, description, kind)
                page.families[name] = self

            def Metric(self, labels, buckets=None):  # noqa: N802 - Triton's name
                return self.series.setdefault(tuple(labels.items()), Series(labels, buckets))

        self.MetricFamily = Made

    def until(self, condition):
        """Wait until the page fulfils a condition."""
        with self.changed:
            assert self.changed.wait_for(condition, 10)

    def one(self, family, **labels):
        """A series; None: there is none."""
        return self.families[family.name].series.get(tuple(labels.items()))


@pytest.fixture
def page():
    return Page()


@pytest.fixture
def publish(page):
    publishers = []

    def build(metrics):
        publishers.append(MetricsPublisher(page, metrics, interval_s=0.01))
        return publishers[-1]

    yield build
    for publisher in publishers:
        publisher.close()


def test_recorded_metrics_reach_the_page(page, publish):
    metrics = MetricsRecorder((BYTES, OPEN, WAIT))
    publish(metrics)
    metrics.count(BYTES, 5)
    metrics.set(OPEN, 2, instance="a")
    metrics.observe(WAIT, 0.5)
    page.until(lambda: (series := page.one(WAIT)) is not None and series.observed == [0.5])
    assert page.one(BYTES).value == 5
    assert page.one(OPEN, instance="a").value == 2
    assert page.one(WAIT).buckets == [0.1, 1.0]
    metrics.count(BYTES, 3)
    page.until(lambda: page.one(BYTES).value == 8)


def test_a_page_that_refuses_does_not_end_the_publisher(page, publish, caplog):
    page.refuses = True
    metrics = MetricsRecorder((BYTES,))
    publish(metrics)
    metrics.count(BYTES, 5)
    end = time.monotonic() + 10
    while "the server is stopping" not in caplog.text and time.monotonic() < end:
        time.sleep(0.01)
    page.refuses = False
    metrics.count(BYTES, 3)
    page.until(lambda: (series := page.one(BYTES)) is not None and series.value == 8)
    assert caplog.text.count("were not written") == 1, "not once for each interval"


def test_requests_first_responses_and_batches_of_a_model(page):
    metrics = ModelMetrics(page, Parameters("voice", {}, instance="voice_0_1", environment={}))
    metrics.close()
    instance = {**NAMES, "model_instance": "voice_0_1"}
    assert page.one(STARTED, **instance).value > 0
    answered, refused, waiting = (Responder(pb, Request(), metrics) for _ in range(3))
    assert answered.send({})
    assert answered.send({})
    answered.finish()
    refused.fail(ValueError("no"))
    metrics.on_batch(3, 0.5)
    metrics.on_batch(1, 0.5)
    changes = metrics.recorder.drain()
    labels = tuple(NAMES.items())
    assert changes.values[REQUESTS, tuple(instance.items())] == 1
    assert [family for family, *_ in changes.observations] == [FIRST_RESPONSE], "an error is no answer"
    assert changes.counts[REQUEST_ERRORS, (*labels, ("code", ParleyError.code))] == 1
    assert (changes.counts[BATCHES, labels], changes.counts[BATCH_ITEMS, labels]) == (2, 4)
    waiting.finish()
    waiting.finish()
    assert metrics.recorder.drain().values[REQUESTS, tuple(instance.items())] == 0


def test_metrics_can_be_switched_off():
    page = Page()
    metrics = ModelMetrics(page, Parameters("voice", {}, environment={"PARLEY_METRICS": "false"}), (BYTES,))
    metrics.recorder.count(BYTES, 3)
    metrics.begin_request().on_response()
    metrics.on_batch(2, 0.1)
    metrics.close()
    assert page.families == {}
    with pytest.raises(ModelLoadingError, match="'off'; it must be true or false"):
        ModelMetrics(page, Parameters("voice", {}, environment={"PARLEY_METRICS": "off"}))
