"""Models as Triton calls them, and one that cannot serve in a server that the launcher has not started."""

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from fake_pb_utils import Request
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.runtime.repository import read_config_file
from parley.triton import backend
from parley.triton.server_flags import ServerFlags

REPOSITORY = Path(__file__).parents[3] / "model_repository"
REFUSED = "weights_not_found: kokoro has no weights on this server, whose log has the remedy"


def arguments(*, decoupled):
    config = {"model_transaction_policy": {"decoupled": decoupled}}
    return {
        "model_name": "kokoro",
        "model_config": json.dumps(config),
        "model_repository": "/kokoro",
        "model_version": "1",
    }


@pytest.fixture(autouse=True)
def log(monkeypatch):
    """Leaves the log to pytest."""
    monkeypatch.setattr(backend, "log_to_triton", lambda *_: None)


@pytest.fixture
def make(pb_utils, monkeypatch):
    """A model that ``load`` returns, or that it cannot load."""

    def make(load):
        module = ModuleType("some_models")
        module.load = load
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return backend.make(pb_utils, "some_models:load")()

    return make


class Served:
    def __init__(self, pb_utils, parameters):
        self.pb_utils = pb_utils
        self.parameters = parameters
        self.open = True

    def execute(self, requests):
        return [self.parameters.model for _ in requests]

    def close(self):
        self.open = False


def failing(error):
    def load(pb_utils, parameters):
        raise error

    return load


no_weights = failing(WeightsNotFoundError("/secret/models/kokoro does not exist"))


def test_model_with_weights_is_loaded_served_and_closed(make, pb_utils):
    loaded = []

    def load(*args):
        loaded.append(Served(*args))
        return loaded[0]

    model = make(load)
    batching = {"max_sequence_idle_microseconds": "60000000"}
    config = {"sequence_batching": batching, "parameters": {"threads": {"string_value": "3"}}}
    args = arguments(decoupled=False) | {"model_config": json.dumps(config), "model_instance_device_id": "2"}
    model.initialize(args)
    assert model.execute([1, 2]) == ["kokoro", "kokoro"]
    (served,) = loaded
    assert served.pb_utils is pb_utils
    assert served.parameters.integer("threads", 1) == 3
    assert (served.parameters.device_id, served.parameters.sequence_idle_s) == (2, 60.0)
    assert served.open
    model.finalize()
    assert not served.open


def test_model_without_weights_loads_and_refuses_requests(make, caplog):
    model = make(no_weights)
    model.initialize(arguments(decoupled=False))
    assert "every request is refused: /secret/models/kokoro does not exist" in caplog.text
    assert [response.error().message() for response in model.execute([Request(), Request()])] == [REFUSED] * 2
    model.finalize()


def test_a_decoupled_model_refuses_a_request_and_ends_it(make):
    model = make(no_weights)
    model.initialize(arguments(decoupled=True))
    request = Request()
    assert model.execute([request]) is None
    assert request.get_response_sender().sent == [("error", REFUSED), ("final",)]


def test_under_the_launcher_the_error_remains_one(make, monkeypatch):
    monkeypatch.setenv("PARLEY_LOADED_MODELS", "kokoro")
    with pytest.raises(WeightsNotFoundError, match="/secret"):
        make(no_weights).initialize(arguments(decoupled=False))


def test_model_for_which_the_gpu_has_no_memory_loads_and_refuses_requests(make, monkeypatch):
    monkeypatch.setenv("PARLEY_GPU_CLASS", "T4")
    config = {"parameters": {"memory_plan": {"string_value": "true"}}}
    args = arguments(decoupled=False) | {"model_name": "t3", "model_config": json.dumps(config)}
    model = make(Served)
    model.initialize(args)
    (response,) = model.execute([Request()])
    assert "a GPU of the class T4 has no memory for t3" in response.error().message()


@pytest.mark.parametrize(
    "error", [ImportError("no torch in /secret"), ModelLoadingError("no GPU"), OSError("x")]
)
def test_model_that_cannot_start_loads_and_refuses_requests(make, caplog, error):
    model = make(failing(error))
    model.initialize(arguments(decoupled=False))
    (response,) = model.execute([Request()])
    assert response.error().message() == (
        "model_loading_failed: kokoro cannot serve on this server, whose log has the reason"
    )
    assert str(error) in caplog.text


@pytest.mark.parametrize(
    ("model", "flags", "reason"),
    [
        ("kokoro", ServerFlags("tiny"), "kokoro is not part of the profile tiny"),
        ("kokoro", ServerFlags("open"), ""),
        ("kokoro", ServerFlags("gpu"), ""),
        ("kokoro", ServerFlags("tiny", ("kokoro",)), ""),
        ("kokoro", None, ""),
        ("parakeet_text", ServerFlags("tiny"), "part of the profile tiny only where --load-model names it"),
        ("parakeet_text", ServerFlags("tiny", ("parakeet_text",)), ""),
    ],
)
def test_model_that_the_profile_lacks_is_not_started(make, monkeypatch, model, flags, reason):
    monkeypatch.setattr(backend, "read_server_flags", lambda: flags)
    config = read_config_file(REPOSITORY / model / "config.pbtxt")
    parameters = {key: {"string_value": value.string_value} for key, value in config.parameters.items()}
    args = arguments(decoupled=False) | {
        "model_name": model,
        "model_repository": str(REPOSITORY / model),
        "model_config": json.dumps({"parameters": parameters}),
    }
    served = make(Served)
    served.initialize(args)
    (answer,) = served.execute([Request()])
    if reason:
        assert answer.error().message().startswith("not_in_profile: ")
        assert reason in answer.error().message()
    else:
        assert answer == model


def targets():
    """What each ``model.py`` calls to load its model, but that of ``voice_agent``."""
    for file in sorted(REPOSITORY.glob("*/1/model.py")):
        name = file.parents[1].name
        if name != "voice_agent":
            (made,) = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Assign))
            assert (made.targets[0].id, made.value.func.id) == ("TritonPythonModel", "make"), name
            yield name, made.value.args[1].value


@pytest.mark.parametrize(("model", "target"), list(targets()))
def test_every_model_file_names_a_loader_that_exists(model, target):
    module, _, name = target.partition(":")
    # Read and not imported: some need torch or vLLM.
    path = Path(importlib.util.find_spec(module).origin)
    defined = {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")}
    assert name in defined


def test_no_model_needs_a_gpu_to_be_loaded():
    kinds = {
        group.kind
        for path in (*REPOSITORY.glob("*/config.pbtxt"), *REPOSITORY.glob("*/configs/*.pbtxt"))
        for group in read_config_file(path).instance_group
    }
    assert ModelInstanceGroup.KIND_GPU not in kinds
