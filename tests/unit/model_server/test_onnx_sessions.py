"""With which options ONNX Runtime opens a network on a GPU, that it runs with them, and how a run is stopped.

There is no GPU here: a session with CUDA is one of the installed ONNX Runtime on the processor.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tts"))

from tiny_onnx import FLOAT, constant, model, node, value

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
        self.options = None

    def get_available_providers(self):
        return self.available

    def preload_dlls(self):
        self.calls.append("preload")

    def InferenceSession(self, graph, options, *, providers):  # noqa: N802 - its name
        self.calls.append(providers)
        self.options = options
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
        tmp_path / "encoder.onnx",
        Parameters("encoder", values, model_dir=tmp_path),
        device_id=1,
        takes_tensorrt=True,
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


SHAPES = '{"AUDIO": [[1, 80, 1], [8, 80, 400], [16, 80, 3000]], "LENGTH": [[1], [8], [16]]}'


def test_tensorrt_runs_before_cuda_with_the_shapes_that_are_named(monkeypatch, tmp_path):
    fake = FakeOnnxRuntime("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
    monkeypatch.setattr(onnx, "onnxruntime", fake)
    open_with(tmp_path, device="gpu", tensorrt_shapes=SHAPES, tensorrt_cache="/var/cache/engines")
    (name, options), (cuda, _), _ = fake.calls[1]
    assert (name, cuda) == ("TensorrtExecutionProvider", "CUDAExecutionProvider")
    assert options == {
        "device_id": "1",
        "trt_profile_min_shapes": "AUDIO:1x80x1,LENGTH:1",
        "trt_profile_opt_shapes": "AUDIO:8x80x400,LENGTH:8",
        "trt_profile_max_shapes": "AUDIO:16x80x3000,LENGTH:16",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/var/cache/engines",
    }


@pytest.mark.parametrize(
    ("available", "values", "problem"),
    [
        (["CUDAExecutionProvider"], {}, "has no TensorRT"),
        (["TensorrtExecutionProvider", "CUDAExecutionProvider"], {}, "TensorRT could not be started"),
        ([], {"device": "cpu"}, "needs device gpu"),
        ([], {"tensorrt_shapes": '{"AUDIO": [[1], [2]]}'}, "tensorrt_shapes: "),
        ([], {"tensorrt_shapes": '{"AUDIO": [[0], [2], [3]]}'}, "tensorrt_shapes: "),
    ],
)
def test_tensorrt_that_cannot_be_used_is_an_error(monkeypatch, tmp_path, available, values, problem):
    monkeypatch.setattr(onnx, "onnxruntime", FakeOnnxRuntime(*available, active=["CUDAExecutionProvider"]))
    with pytest.raises(ModelLoadingError, match=problem):
        open_with(tmp_path, **({"device": "gpu", "tensorrt_shapes": SHAPES} | values))


def test_threads_of_a_processor_do_not_spin(runtime, tmp_path):
    open_with(tmp_path, device="gpu", threads="3")
    options = runtime.options
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_the_driver_and_the_gpu_of_the_instance_are_checked_first(runtime, monkeypatch, tmp_path):
    checked = []
    monkeypatch.setattr(onnx, "check_gpus", lambda device: checked.append((device, list(runtime.calls))))
    open_with(tmp_path, device="gpu")
    assert checked == [(1, [])]


def test_the_installed_onnx_runtime_has_no_cuda(tmp_path):
    if "CUDAExecutionProvider" in onnx.onnxruntime.get_available_providers():
        pytest.skip("it has")
    with pytest.raises(ModelLoadingError, match=r"encoder\.onnx: this ONNX Runtime has no CUDA"):
        open_with(tmp_path, device="gpu")


class OnProcessor(FakeOnnxRuntime):
    """Says that it uses CUDA, and computes on the processor with the options that it is given."""

    installed = onnx.onnxruntime

    def InferenceSession(self, graph, options, *, providers):  # noqa: N802
        (_, cpu) = providers
        session = self.installed.InferenceSession(graph, options, providers=[cpu])
        return Session(session, self.active)


class Session:
    def __init__(self, session, providers):
        self._session = session
        self._providers = providers
        self.error = None

    def run(self, *args):
        if self.error:
            raise self.error
        return self._session.run(*args)

    def get_providers(self):
        return self._providers

    def get_inputs(self):
        return self._session.get_inputs()


DOUBLING = model(
    node("Mul", "in two", "doubled"),
    node("Add", "doubled two", "out"),
    constant("two", np.float32(2)),
    value(11, "in", FLOAT, "n"),
    value(12, "out", FLOAT, "n"),
)


@pytest.fixture
def on_processor(monkeypatch, tmp_path):
    monkeypatch.setattr(onnx, "onnxruntime", OnProcessor("CUDAExecutionProvider", "CPUExecutionProvider"))
    path = tmp_path / "doubling.onnx"
    path.write_bytes(DOUBLING)
    return path


@pytest.mark.parametrize("part", [b"", DOUBLING])
def test_a_session_on_a_gpu_computes_and_has_its_further_outputs(on_processor, part):
    session = onnx.open_session(on_processor, device="gpu", part=part, more_outputs=("doubled",))
    out, doubled = session.run(None, {"in": np.array([1, -3], np.float32)})
    assert (doubled.tolist(), out.tolist()) == ([2, -6], [4, -4])
    assert [one.name for one in session.get_inputs()] == ["in"]


def test_a_gpu_that_fails_again_and_again_ends_the_process(on_processor, monkeypatch):
    session = onnx.open_session(on_processor, device="gpu")
    reasons = []
    monkeypatch.setattr(session._errors, "_end", reasons.append)
    session._session.error = RuntimeError("CUDA failure 700: an illegal memory access was encountered")
    for _ in range(3):
        assert reasons == []
        with pytest.raises(RuntimeError, match="illegal memory access"):
            session.run(None, {})
    assert reasons[0].startswith("doubling.onnx: the device has failed 3 times in a row: CUDA failure 700")


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


def test_stopped_session_runs_nothing():
    session, stop = EndlessSession(), onnx.Stop()
    stop.request()
    with pytest.raises(onnx.StoppedError):
        stop.run(session, {})
    assert not session.began.is_set()
