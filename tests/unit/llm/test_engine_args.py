"""The engine arguments of the model repository, read by vLLM itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = Path(__file__).parents[3] / "model_repository" / "qwen3" / "1"

# In a process of its own: importing vLLM changes the interpreter (warnings, threads, logging).
SCRIPT = """
import json, sys
from pathlib import Path
from parley.llm.stub_environment import prepare_environment
from parley.errors import ModelLoadingError
folder, weights = Path(sys.argv[1]), Path(sys.argv[2])
prepare_environment(engine_in_process=True, threads=1, cache_dir=folder / "cache")
from parley.llm.engine import EngineRequest
from parley.llm.vllm_types import TextTranslation, read_engine_args
def message(path):
    try:
        read_engine_args(path, weights, asynchronous=False)
    except ModelLoadingError as error:
        return str(error)
gpu = read_engine_args(Path(sys.argv[3]) / "model.json", weights, asynchronous=True)
cpu = read_engine_args(Path(sys.argv[3]) / "model.cpu.json", weights, asynchronous=False)
class Refusing:
    model_config = type("Config", (), {"max_model_len": 8})
    def add_request(self, *_):
        from vllm.exceptions import VLLMValidationError
        raise VLLMValidationError("the prompt cannot be empty")
def refusal():
    from vllm.v1.engine.llm_engine import LLMEngine
    from parley.llm.vllm_engine import VllmEngine
    LLMEngine.from_engine_args = lambda args: Refusing()
    try:
        VllmEngine(cpu, TextTranslation()).add(EngineRequest("r", [], 5))
    except ValueError as error:
        return str(error)
drawn = TextTranslation().sampling(EngineRequest("r", [1], 5, 0.5, 0.9, 3))
print(json.dumps({
    "gpu": [type(gpu).__name__, gpu.model, gpu.max_model_len, gpu.enable_prefix_caching],
    "cpu": [type(cpu).__name__, cpu.model, cpu.max_num_seqs, cpu.block_size],
    "unknown": message(folder / "unknown.json"),
    "broken": message(folder / "broken.json"),
    "missing": message(folder / "missing.json"),
    "refused": refusal(),
    "sampling": [drawn.temperature, drawn.top_p, drawn.max_tokens, drawn.seed, drawn.output_kind.name],
}))
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    pytest.importorskip("tokenizers")  # installed with vLLM
    folder = tmp_path_factory.mktemp("args")
    (folder / "weights").mkdir()
    (folder / "unknown.json").write_text('{"max_model_length": 5}')
    (folder / "broken.json").write_text("{")
    command = [sys.executable, "-c", SCRIPT, str(folder), str(folder / "weights"), str(VERSION)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1]), folder


def test_both_profiles_are_valid(read):
    seen, folder = read
    assert seen["gpu"] == ["AsyncEngineArgs", str(folder / "weights"), 8192, True]
    assert seen["cpu"] == ["EngineArgs", str(folder / "weights"), 16, 32]


def test_what_vllm_refuses_is_the_requests_fault(read):
    seen, _ = read
    assert seen["refused"] == "the prompt cannot be empty"


def test_mistakes_are_named(read):
    seen, folder = read
    assert "max_model_length" in seen["unknown"]
    assert str(folder / "broken.json") in seen["broken"]
    assert str(folder / "missing.json") in seen["missing"]


def test_sampling(read):
    assert read[0]["sampling"] == [0.5, 0.9, 5, 3, "DELTA"]
