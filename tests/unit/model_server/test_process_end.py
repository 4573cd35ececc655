import subprocess
import sys

import pytest

from parley.runtime.onnx import WatchedSession
from parley.runtime.process_end import DeviceErrors

PROGRAM = """
import atexit
from parley.runtime.process_end import skip_interpreter_end

class Slow:
    def __del__(self):
        print("taken apart")

skip_interpreter_end()
atexit.register(print, "registered later")
slow = Slow()
print("buffered", end="")
"""


def test_process_ends_after_registered_exits_and_before_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "bufferedregistered later\n"
    assert done.stderr == ""


FAILED = """
import logging, threading, time
from parley.runtime.process_end import end_failed_process

logging.basicConfig(format="%(levelname)s %(message)s")
answered = threading.Event()
end_failed_process("the engine has died", idle=answered.is_set)
end_failed_process("again", idle=answered.is_set)
time.sleep(0.4)
print("answered", end="")
answered.set()
time.sleep(60)
"""


@pytest.mark.parametrize("program", [FAILED, FAILED.replace("answered.set()", "")])
def test_a_process_without_an_engine_ends_when_all_is_answered_or_soon(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == "answered"
    assert done.stderr == (
        "CRITICAL the engine has died; this process ends, so that the model is loaded again\n"
    )


class Session:
    def __init__(self):
        self.failure = None

    def run(self, names, feed):
        if self.failure:
            raise RuntimeError(self.failure)
        return [names, feed]

    def get_inputs(self):
        return ["x"]


ILLEGAL = "CUDA failure 700: an illegal memory access was encountered ; GPU=0"


@pytest.mark.parametrize(
    ("failure", "times", "ends"),
    [
        (ILLEGAL, 3, 1),
        (ILLEGAL, 9, 1),
        (ILLEGAL, 2, 0),
        ("CUDNN failure 4000: CUDNN_STATUS_INTERNAL_ERROR", 3, 1),
        ("CUDA error: device-side assert triggered", 3, 1),
        ("CUDA failure 2: out of memory", 9, 0),
        ("CUDA error: out of memory", 9, 0),
        ("INVALID_ARGUMENT: got 3 dimensions", 9, 0),
    ],
)
def test_a_device_that_is_lost_ends_the_process(failure, times, ends):
    reasons, session = [], Session()
    watched = WatchedSession(session, DeviceErrors("encoder.onnx", reasons.append))
    session.failure = failure
    for _ in range(times):
        with pytest.raises(RuntimeError):
            watched.run(None, {})
    assert [reason.startswith("encoder.onnx: ") for reason in reasons] == [True] * ends


def test_a_device_that_works_in_between_is_not_lost():
    reasons, session = [], Session()
    watched = WatchedSession(session, DeviceErrors("encoder.onnx", reasons.append))
    for _ in range(5):
        session.failure = ILLEGAL
        for _ in range(2):
            with pytest.raises(RuntimeError):
                watched.run(None, {})
        session.failure = None
        assert watched.run(["y"], {"x": 1}) == [["y"], {"x": 1}]
    assert reasons == []
    assert watched.get_inputs() == ["x"]
