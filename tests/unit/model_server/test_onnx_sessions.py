"""With which options ONNX Runtime opens a network on a GPU, and how a run is stopped."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from parley.errors import InferenceError, ModelLoadingError
from parley.runtime import onnx
from parley.runtime.parameters import Parameters


class FakeOnnxRuntime:
    """ONNX Runtime with CUDA, which keeps what it was asked."""

    SessionOptions = onnx.onnxruntime.SessionOptions

    def __init__(self, *available, active=None):
        self.available = list(available)
        self.active = self.available if active is None else list(active)
        self.calls = []

    def get_available_providers(self):
        return self.available

    def preload_dlls(self):
        self.calls.append("preload")

    def InferenceSession(self, graph, options, *, providers):  # noqa: N802 - its name
        self.calls.append(providers)
        return self

    def get_providers(self):
        return self.active


@pytest.fixture
def runtime(monkeypatch):
    fake = FakeOnnxRuntime("CUDAExecutionProvider", "CPUExecutionProvider")
    monkeypatch.setattr(onnx, "onnxruntime", fake)
    return fake


def open_with(tmp_path, **values):
    return onnx.open_configured(
        tmp_path / "encoder.onnx", Parameters("encoder", values, model_dir=tmp_path), device_id=1
    )


def test_a_gpu_gets_its_libraries_first_and_searches_no_algorithms(runtime, tmp_path):
    open_with(tmp_path, device="gpu")
    first, providers = runtime.calls
    assert first == "preload"
    (cuda, options), cpu = providers
    assert (cuda, cpu) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options == {
        "device_id": "1",
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
    }


def test_the_memory_of_a_gpu_can_be_limited(runtime, tmp_path):
    open_with(tmp_path, device="gpu", device_memory_mb="1500")
    assert runtime.calls[1][0][1]["gpu_mem_limit"] == str(1500 * 1024 * 1024)


def test_a_processor_needs_nothing_of_cuda(runtime, tmp_path):
    open_with(tmp_path, device="cpu", device_memory_mb="1500")
    assert runtime.calls == [["CPUExecutionProvider"]]


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(onnx, "onnxruntime", FakeOnnxRuntime("CPUExecutionProvider"))
    with pytest.raises(ModelLoadingError, match="onnxruntime-gpu"):
        open_with(tmp_path, device="gpu")
    fake = FakeOnnxRuntime("CUDAExecutionProvider", "CPUExecutionProvider", active=["CPUExecutionProvider"])
    monkeypatch.setattr(onnx, "onnxruntime", fake)
    with pytest.raises(ModelLoadingError, match="CUDA could not be started"):
        open_with(tmp_path, device="gpu")


class EndlessSession:
    """Runs until it is terminated, which it answers as ONNX Runtime does; may fail by itself."""

    def __init__(self, failure=None):
        self.failure = failure
        self.began = threading.Event()

    def run(self, outputs, feeds, options):
        self.began.set()
        if self.failure is not None:
            raise self.failure
        while not options.terminate:
            time.sleep(0.001)
        raise RuntimeError("Exiting due to terminate flag being set to true.")


def test_a_run_is_stopped_from_another_thread():
    session, stop = EndlessSession(), onnx.Stop()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(stop.run, session, {})
        assert session.began.wait(10.0)
        stop.request()
        with pytest.raises(onnx.StoppedError):
            run.result(10.0)


def test_a_run_that_fails_by_itself_was_not_stopped():
    with pytest.raises(InferenceError, match="no memory"):
        onnx.Stop().run(EndlessSession(RuntimeError("no memory")), {})


def test_nothing_runs_after_a_stop():
    session, stop = EndlessSession(), onnx.Stop()
    stop.request()
    with pytest.raises(onnx.StoppedError):
        stop.run(session, {})
    assert not session.began.is_set()
