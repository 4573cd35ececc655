"""The engine arguments of the model repository, read by vLLM itself."""

import json
import locale
import multiprocessing
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from parley.errors import ModelLoadingError
from parley.llm import startup
from parley.llm.startup import prepare_environment
from parley.runtime.parameters import Parameters

ROOT = Path(__file__).parents[3]
VERSION = ROOT / "model_repository" / "qwen3" / "1"

# In a process of its own: importing vLLM changes the interpreter (warnings, threads, logging).
SCRIPT = """
import json, sys
from pathlib import Path
from parley.llm.startup import prepare_environment
from parley.errors import ModelLoadingError
folder, weights = Path(sys.argv[1]), Path(sys.argv[2])
prepare_environment(engine_in_process=True, threads=1, cache_dir=Path(sys.argv[5]))
from parley.llm.engine import EngineRequest
from parley.llm.startup import cache_arguments
from parley.llm.vllm_types import TextTranslation, read_engine_args
from parley.runtime.parameters import Parameters
def message(path):
    try:
        read_engine_args(path, weights, asynchronous=False)
    except ModelLoadingError as error:
        return str(error)
gpu = read_engine_args(Path(sys.argv[3]) / "model.json", weights, asynchronous=True)
tiny = read_engine_args(Path(sys.argv[3]) / "model.tiny.json", weights, asynchronous=False)
small = read_engine_args(Path(sys.argv[3]) / "model.open.json", weights, asynchronous=False)
def planned(**values):
    own = cache_arguments(Parameters("qwen3", values, environment={}))
    args = read_engine_args(Path(sys.argv[3]) / "model.json", weights, asynchronous=True, fixed=own)
    return [args.kv_cache_memory_bytes, args.gpu_memory_utilization]
class Refusing:
    model_config = type("Config", (), {"max_model_len": 8})
    def has_unfinished_requests(self):
        return False
    def add_request(self, *_, **__):
        from vllm.exceptions import VLLMValidationError
        raise VLLMValidationError("the prompt cannot be empty")
def refusal():
    from vllm.v1.engine.llm_engine import LLMEngine
    from parley.llm.inprocess import VllmEngine
    LLMEngine.from_engine_args = lambda args, stat_loggers: Refusing()
    try:
        VllmEngine(tiny, TextTranslation()).add(EngineRequest("r", [], 5))
    except ValueError as error:
        return str(error)
drawn = TextTranslation().sampling(EngineRequest("r", [1], 5, 0.5, 0.9, 3))
request = EngineRequest("r", [1], 5, structural_tag="{}", skip_special_tokens=False)
guided = TextTranslation().sampling(request)
scored = TextTranslation().sampling(EngineRequest("r", [1, 2, 3], 5, scored=(7, 8), scored_at=(2,)))
def built(args):
    args.model = sys.argv[4]
    args.hf_overrides = {"max_position_embeddings": 40960}  # as Qwen3-4B's
    config = args.create_engine_config()
    scheduler, cache = config.scheduler_config, config.cache_config
    return {
        "policy": scheduler.policy,
        "chunked": scheduler.enable_chunked_prefill,
        "long": scheduler.long_prefill_token_threshold,
        "sequences": scheduler.max_num_seqs,
        "prefix": cache.enable_prefix_caching,
        "length": config.model_config.max_model_len,
        "grammars": config.structured_outputs_config.backend,
    }
print(json.dumps({
    "gpu": [type(gpu).__name__, gpu.model, gpu.max_model_len, gpu.enable_prefix_caching],
    "tiny": [type(tiny).__name__, tiny.model, tiny.max_num_seqs, tiny.block_size],
    "unknown": message(folder / "unknown.json"),
    "broken": message(folder / "broken.json"),
    "missing": message(folder / "missing.json"),
    "refused": refusal(),
    "planned": [planned(kv_cache_gib="2.5"), planned()],
    "built": {"gpu": built(gpu), "tiny": built(tiny), "open": built(small)},
    "guided": [guided.structured_outputs.structural_tag, guided.skip_special_tokens],
    "free": [drawn.structured_outputs, drawn.skip_special_tokens],
    "scored": [scored.prompt_logprobs, scored.logprob_token_ids, scored.extra_args["parley_scored"],
               scored.skip_reading_prefix_cache, drawn.prompt_logprobs, drawn.extra_args],
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
    # What vLLM finds out about a model, in a process of its own, is kept for the next run.
    cache = ROOT / ".cache" / "vllm"
    paths = [folder, folder / "weights", VERSION, ROOT / "models" / "tiny-qwen3", cache]
    command = [sys.executable, "-c", SCRIPT, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1]), folder


def test_both_profiles_are_valid(read):
    seen, folder = read
    assert seen["gpu"] == ["AsyncEngineArgs", str(folder / "weights"), 8192, True]
    assert seen["tiny"] == ["EngineArgs", str(folder / "weights"), 16, 32]


def test_vllm_makes_of_each_profile_what_is_meant(read):
    """With the small model's weights: those of the GPU profile are not needed to know."""
    built = read[0]["built"]
    common = {"policy": "priority", "prefix": True, "grammars": "xgrammar"}
    gpu = {"chunked": True, "long": 1024, "sequences": 64, "length": 8192}
    assert built["gpu"] == {**common, **gpu}
    assert built["tiny"] == {**common, "chunked": False, "long": 0, "sequences": 16, "length": 40960}
    assert built["open"] == {**common, "chunked": True, "long": 0, "sequences": 16, "length": 5632}


def test_refusal_of_vllm_is_an_invalid_request(read):
    seen, _ = read
    assert seen["refused"] == "the prompt cannot be empty"


def test_a_memory_plan_fixes_the_cache_of_the_profile_for_gpus(read):
    fixed, measured = read[0]["planned"]
    assert fixed == [5 << 29, 0.02]
    assert measured == [None, 0.4]


def test_mistakes_are_named(read):
    seen, folder = read
    assert "max_model_length" in seen["unknown"]
    assert str(folder / "broken.json") in seen["broken"]
    assert str(folder / "missing.json") in seen["missing"]


def test_sampling(read):
    assert read[0]["sampling"] == [0.5, 0.9, 5, 3, "DELTA"]
    assert read[0]["free"] == [None, True]
    assert read[0]["guided"] == ["{}", False]
    assert read[0]["scored"] == [2, None, [[2], [7, 8]], False, None, None]


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
    assert environment["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_CACHE_ROOT"] == str(tmp_path)
    assert environment["VLLM_XGRAMMAR_CACHE_MB"] == "128"
    assert environment["VLLM_ENGINE_READY_TIMEOUT_S"] == "900"
    assert environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "64"
    assert "TORCHDYNAMO_DISABLE" not in environment
    assert locale.setlocale(locale.LC_CTYPE) == "C.UTF-8"


def test_the_operators_settings_stay(interpreter, tmp_path):
    given = {
        "OMP_NUM_THREADS": "8",
        "VLLM_CACHE_ROOT": "/cache",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_ENGINE_READY_TIMEOUT_S": "60",
    }
    environment = prepare(tmp_path, dict(given), threads=2, engine_in_process=False)
    assert given.items() <= environment.items()
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert "VLLM_USE_V2_MODEL_RUNNER" not in environment


@pytest.mark.parametrize(
    ("engine", "arguments", "compiles"),
    [
        ("inprocess", '{"enforce_eager": true}', False),
        ("inprocess", "{}", True),
        ("inprocess", "[", True),
        ("async", '{"enforce_eager": true}', True),
    ],
)
def test_an_eager_engine_on_a_cpu_compiles_nothing(monkeypatch, tmp_path, engine, arguments, compiles):
    """Compiling takes g++, and seconds at each start."""
    (tmp_path / "model.json").write_text(arguments)
    read = []

    def prepare_only(**options):
        read.append(options["compiles"])
        raise ModelLoadingError

    monkeypatch.setattr(startup, "prepare_environment", prepare_only)
    parameters = Parameters("qwen3", {"engine": engine}, model_dir=tmp_path, environment={})
    (tmp_path / "1").symlink_to(tmp_path)
    with pytest.raises(ModelLoadingError):
        startup.start_engine(parameters, tmp_path, object)
    assert read == [compiles]


def test_without_compiling_torch_is_kept_from_it(interpreter, tmp_path):
    assert prepare(tmp_path, {}, compiles=False)["TORCHDYNAMO_DISABLE"] == "1"


def test_python_gets_its_name_back(interpreter, tmp_path):
    python = sys.executable
    interpreter.setattr(sys, "executable", "/opt/backends/python/triton_python_backend_stub")
    prepare(tmp_path, {"PATH": ""})
    assert sys.executable.startswith(sys.prefix)
    assert "python" in sys.executable.rsplit("/", 1)[1]
    interpreter.setattr(sys, "executable", python)


@pytest.mark.parametrize(("cache_bytes", "alone"), [(None, True), (1 << 30, False)])
def test_an_engine_that_measures_the_gpu_loads_alone(monkeypatch, tmp_path, cache_bytes, alone):
    """With the size of its cache it measures nothing."""
    happened = []

    @contextmanager
    def loading(*, alone):
        happened.append(alone)
        yield
        happened.append("loaded")

    def engine(*_, **__):
        happened.append("engine")
        return SimpleNamespace(max_model_len=1_024)

    for name in ("prepare_environment", "check_vllm", "check_torch", "check_gpus"):
        monkeypatch.setattr(startup, name, lambda *_, **__: None)
    monkeypatch.setattr(startup, "loading_on_gpu", loading)
    arguments = SimpleNamespace(kv_cache_memory_bytes=cache_bytes, block_size=None)
    types = SimpleNamespace(read_engine_args=lambda *_, **__: arguments)
    monkeypatch.setitem(sys.modules, "parley.llm.vllm_types", types)
    monkeypatch.setitem(sys.modules, "parley.llm.async_llm", SimpleNamespace(AsyncEngine=engine))
    started = startup.start_engine(
        Parameters("qwen3", {"engine": "async"}, model_dir=tmp_path, environment={}), tmp_path, object
    )
    assert happened == [alone, "engine", "loaded"]
    assert started.max_model_len == 1_024
