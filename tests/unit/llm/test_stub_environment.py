import locale
import multiprocessing
import sys

import pytest

from parley.llm.startup import prepare_environment


@pytest.fixture
def interpreter(monkeypatch):
    before = locale.setlocale(locale.LC_ALL)
    python = sys.executable
    yield monkeypatch
    locale.setlocale(locale.LC_ALL, before)
    multiprocessing.set_executable(python)


def prepare(tmp_path, environment, **options):
    prepare_environment(
        **{
            "engine_in_process": True,
            "threads": 1,
            "cache_dir": tmp_path,
            "environment": environment,
            **options,
        }
    )
    return environment


def test_settings_before_the_import(interpreter, tmp_path):
    environment = prepare(tmp_path, {})
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_CACHE_ROOT"] == str(tmp_path)
    assert environment["VLLM_XGRAMMAR_CACHE_MB"] == "128"
    assert locale.setlocale(locale.LC_CTYPE) == "C.UTF-8"


def test_the_operators_settings_stay(interpreter, tmp_path):
    given = {"OMP_NUM_THREADS": "8", "VLLM_CACHE_ROOT": "/cache", "VLLM_LOGGING_LEVEL": "INFO"}
    environment = prepare(tmp_path, dict(given), threads=2, engine_in_process=False)
    assert given.items() <= environment.items()
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"


def test_python_gets_its_name_back(interpreter, tmp_path):
    python = sys.executable
    interpreter.setattr(sys, "executable", "/opt/backends/python/triton_python_backend_stub")
    prepare(tmp_path, {"PATH": ""})
    assert sys.executable.startswith(sys.prefix)
    assert "python" in sys.executable.rsplit("/", 1)[1]
    interpreter.setattr(sys, "executable", python)
