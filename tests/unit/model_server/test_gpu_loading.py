"""The order in which processes load models on a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from parley.errors import ModelLoadingError
from parley.runtime.gpu_loading import loading_on_gpu

HOLDER = """
import sys
from pathlib import Path
from parley.runtime.gpu_loading import loading_on_gpu
with loading_on_gpu(alone=sys.argv[2] == "alone", folder=Path(sys.argv[1])):
    print("loading", flush=True)
    sys.stdin.read()
print("loaded", flush=True)
"""


@pytest.fixture
def start(tmp_path):
    processes = []

    def start(kind):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "loading\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.parametrize(("held", "wanted"), [("alone", True), ("alone", False), ("together", True)])
def test_a_model_that_measures_and_any_other_exclude_each_other(start, tmp_path, held, wanted):
    start(held)
    with (
        pytest.raises(ModelLoadingError, match="other models have been loading"),
        loading_on_gpu(alone=wanted, folder=tmp_path, timeout_s=0.3),
    ):
        pytest.fail("both load")


def test_models_that_measure_nothing_load_together(start, tmp_path):
    start("together")
    with loading_on_gpu(alone=False, folder=tmp_path, timeout_s=0):
        start("together")


def test_the_next_one_loads_when_a_model_has_loaded(start, tmp_path):
    process = start("alone")
    process.stdin.close()
    assert process.stdout.readline() == "loaded\n"
    with loading_on_gpu(alone=True, folder=tmp_path, timeout_s=0):
        pass


def test_a_process_that_is_killed_blocks_nothing(start, tmp_path):
    process = start("alone")
    process.send_signal(signal.SIGKILL)
    process.wait()
    with loading_on_gpu(alone=True, folder=tmp_path, timeout_s=0):
        pass


def test_a_child_that_was_forked_while_loading_blocks_nothing(tmp_path):
    """As the engine's own process is."""
    with loading_on_gpu(alone=True, folder=tmp_path):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            os.close(write)
            os.read(read, 1)  # until the parent closes its end
            os._exit(0)
    try:
        with loading_on_gpu(alone=True, folder=tmp_path, timeout_s=0):
            pass
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


def test_a_failure_while_loading_frees_the_lock(tmp_path):
    with pytest.raises(RuntimeError, match="broken"), loading_on_gpu(alone=True, folder=tmp_path):
        raise RuntimeError("broken")
    with loading_on_gpu(alone=True, folder=tmp_path, timeout_s=0):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with (
        pytest.raises(ModelLoadingError, match=r"the lock for loading on the GPU, .*absent"),
        loading_on_gpu(alone=True, folder=tmp_path / "absent"),
    ):
        pass
