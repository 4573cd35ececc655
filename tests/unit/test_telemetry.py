"""Nothing of ours lets a library write a device id into the home folder, or call its maker."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parley import TELEMETRY_OFF, turn_off_telemetry
from parley.launcher.command import Installation, build_environment
from parley.launcher.options import ServerOptions

ROOT = Path(__file__).resolve().parents[2]
IMPORT = re.compile(r"^(import|from) (onnxruntime|onnx_asr|nemo)\b(?!_)", re.MULTILINE)
OURS = re.compile(r"^(import|from) (parley|nemo_export|tiny)\b", re.MULTILINE)


def run_with_home(home, program):
    """Run a program as a stub of a plain ``tritonserver`` would: nothing is set for it.

    Not even what the test run itself was started with: ONNX Runtime keeps silent by itself where it
    finds ``CI``, ``GITHUB_ACTIONS`` and the like, and the tests would then show nothing.
    """
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"HOME": str(home), "PATH": os.defpath, "PYTHONPATH": f"{ROOT}/build:{ROOT}/build/training"},
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.parametrize(
    "first", ["import parley.runtime.onnx", "import parley_client", "import nemo_export", "import tiny"]
)
def test_onnx_runtime_leaves_nothing_in_the_home_folder(tmp_path, first):
    run_with_home(tmp_path, f"{first}\nimport onnxruntime")
    assert list(tmp_path.rglob("*")) == []


def test_without_us_it_would(tmp_path):
    """If this fails, ONNX Runtime has changed, and the tests here say nothing any more."""
    run_with_home(tmp_path, "import onnxruntime")
    assert list(tmp_path.rglob(".onnxruntime"))


def test_settings_of_the_operator_stay():
    environment = {"HF_HUB_DISABLE_TELEMETRY": "0"}
    turn_off_telemetry(environment)
    assert environment == {**TELEMETRY_OFF, "HF_HUB_DISABLE_TELEMETRY": "0"}


def test_models_are_started_without_telemetry(tmp_path):
    places = dict.fromkeys(("tritonserver", "python_backend", "stub", "libraries", "python_bin"), tmp_path)
    environment = build_environment(Installation(**places, libpython_dir=None), ServerOptions(), {})
    assert environment.items() >= TELEMETRY_OFF.items()


def test_every_program_imports_us_before_onnx_runtime():
    late = []
    for path in (*ROOT.glob("build/*.py"), *ROOT.glob("perf/*.py"), *ROOT.glob("tests/parity/*/conftest.py")):
        text = path.read_text()
        found, ours = IMPORT.search(text), OURS.search(text)
        if found and (ours is None or ours.start() > found.start()):
            late.append(str(path.relative_to(ROOT)))
    assert late == []
