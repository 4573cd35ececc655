"""How graphs are captured, with a device that counts in place of CUDA."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")

import torch

from parley_torch.runtime import cuda_graphs
from parley_torch.runtime.cuda_graphs import CudaCapture


class Stream:
    """Work that waits for other streams' work."""

    def __init__(self):
        self.waited_for = []

    def wait_stream(self, other):
        self.waited_for.append(other)


class Device:
    """``torch.cuda``: the stream that work goes to, and what is being captured."""

    def __init__(self):
        self.default = self.current = Stream()
        self.captured = []
        self.capturing = False

    Stream = Stream

    def current_stream(self):
        return self.current

    def graph_pool_handle(self):
        return (0, 1)

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    class CUDAGraph:
        def replay(self):
            pass

    @contextmanager
    def graph(self, graph, *, pool, stream, capture_error_mode):
        """As torch does it, which takes a stream of its own if there is none."""
        self.captured.append((graph, pool, capture_error_mode))
        self.capturing = True
        with self.stream(stream):
            yield
        self.capturing = False


class Library:
    """Such as cuFFT: it makes a plan at the first call of each stream, but not in a capture."""

    def __init__(self, device):
        self._device = device
        self.plans = []
        self.calls = 0

    def __call__(self):
        stream = self._device.current_stream()
        if stream not in self.plans:
            if self._device.capturing:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.plans.append(stream)
        self.calls += 1
        return torch.tensor(self.calls)


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setattr(cuda_graphs.torch, "cuda", device)
    return device


def test_libraries_have_their_plans_before_the_capture(device):
    library = Library(device)
    replay, result = CudaCapture()(library)
    assert library.calls == 3
    assert result.item() == 3, "the result is where the captured run has put it"
    assert len(library.plans) == 1
    assert callable(replay)


def test_all_graphs_share_a_stream_and_a_pool(device):
    capture = CudaCapture()
    library = Library(device)
    for _ in range(3):
        capture(library)
    assert len(library.plans) == 1
    assert {(pool, mode) for _, pool, mode in device.captured} == {((0, 1), "thread_local")}
    assert len({id(graph) for graph, *_ in device.captured}) == 3


def test_the_warm_up_follows_earlier_work_and_later_work_follows_it(device):
    library = Library(device)
    CudaCapture()(library)
    (stream,) = library.plans
    assert stream.waited_for == [device.default]
    assert device.default.waited_for == [stream]
    assert device.current is device.default


def test_a_graph_keeps_the_tensors_that_it_works_on(device):
    def record():
        memory = torch.zeros(4)
        replay, result = CudaCapture()(lambda: memory + 1)
        return replay, result, weakref.ref(memory)

    replay, _, memory = record()
    gc.collect()
    assert memory() is not None, "the addresses in the graph would be those of other tensors"
    del replay
    gc.collect()
    assert memory() is None
