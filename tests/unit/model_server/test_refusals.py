"""A model that cannot serve in a server that the launcher has not started."""

import json
from pathlib import Path

import pytest
from fake_pb_utils import Request
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.runtime.parameters import Parameters
from parley.runtime.repository import read_config_file
from parley.triton import refusals
from parley.triton.refusals import loads_or_refuses
from parley.triton.server_flags import ServerFlags

REPOSITORY = Path(__file__).parents[3] / "model_repository"
REFUSED = "weights_not_found: kokoro has no weights on this server, whose log has the remedy"


def arguments(*, decoupled):
    config = {"model_transaction_policy": {"decoupled": decoupled}}
    return {"model_name": "kokoro", "model_config": json.dumps(config)}


@pytest.fixture(autouse=True)
def log(monkeypatch):
    """Leaves the log to pytest."""
    monkeypatch.setattr(refusals, "log_to_triton", lambda *_: None)


@pytest.fixture
def make(pb_utils):
    """A model whose weights are there, or are not."""

    def make(*, weights):
        @loads_or_refuses(pb_utils)
        class TritonPythonModel:
            def initialize(self, args):
                if not weights:
                    raise WeightsNotFoundError("/secret/models/kokoro does not exist")
                self.loaded = args["model_name"]

            def execute(self, requests):
                return [self.loaded for _ in requests]

            def finalize(self):
                self.loaded = ""

        return TritonPythonModel()

    return make


def test_with_weights_nothing_changes(make):
    model = make(weights=True)
    model.initialize(arguments(decoupled=False))
    assert model.execute([1, 2]) == ["kokoro", "kokoro"]
    model.finalize()
    assert model.loaded == ""


def test_without_weights_the_model_loads_says_so_and_refuses_requests(make, caplog):
    model = make(weights=False)
    model.initialize(arguments(decoupled=False))
    assert "every request is refused: /secret/models/kokoro does not exist" in caplog.text
    assert [response.error().message() for response in model.execute([Request(), Request()])] == [REFUSED] * 2
    model.finalize()


def test_a_decoupled_model_refuses_a_request_and_ends_it(make):
    model = make(weights=False)
    model.initialize(arguments(decoupled=True))
    request = Request()
    assert model.execute([request]) is None
    assert request.get_response_sender().sent == [("error", REFUSED), ("final",)]


def test_under_the_launcher_the_error_remains_one(make, monkeypatch):
    monkeypatch.setenv("PARLEY_LOADED_MODELS", "kokoro")
    with pytest.raises(WeightsNotFoundError, match="/secret"):
        make(weights=False).initialize(arguments(decoupled=False))


def test_a_model_for_which_the_gpu_has_no_memory_loads_and_refuses_requests_too(pb_utils):
    @loads_or_refuses(pb_utils)
    class TritonPythonModel:
        def initialize(self, args):
            Parameters.from_args(args, environment={"PARLEY_GPU_CLASS": "T4"})

        def execute(self, requests):
            raise AssertionError

    config = {"parameters": {"memory_plan": {"string_value": "true"}}}
    args = {"model_name": "t3", "model_config": json.dumps(config)}
    model = TritonPythonModel()
    model.initialize({**args, "model_repository": "/t3", "model_version": "1"})
    (response,) = model.execute([Request()])
    assert "a GPU of the class T4 has no memory for t3" in response.error().message()


@pytest.mark.parametrize(
    "error", [ImportError("no torch in /secret"), ModelLoadingError("no GPU"), OSError("x")]
)
def test_a_model_that_cannot_start_loads_and_refuses_requests(pb_utils, caplog, error):
    @loads_or_refuses(pb_utils)
    class TritonPythonModel:
        def initialize(self, args):
            raise error

        def execute(self, requests):
            raise AssertionError

    model = TritonPythonModel()
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
def test_a_model_that_the_profile_lacks_is_not_started(pb_utils, monkeypatch, model, flags, reason):
    started = []

    @loads_or_refuses(pb_utils)
    class TritonPythonModel:
        def initialize(self, args):
            started.append(args["model_name"])

        def execute(self, requests):
            return ["answer" for _ in requests]

    monkeypatch.setattr(refusals, "read_server_flags", lambda: flags)
    config = read_config_file(REPOSITORY / model / "config.pbtxt")
    parameters = {key: {"string_value": value.string_value} for key, value in config.parameters.items()}
    args = {"model_name": model, "model_repository": str(REPOSITORY / model)}
    served = TritonPythonModel()
    served.initialize(args | {"model_config": json.dumps({"parameters": parameters})})
    (answer,) = served.execute([Request()])
    if reason:
        assert answer.error().message().startswith("not_in_profile: ")
        assert reason in answer.error().message()
        assert started == []
    else:
        assert answer == "answer"
        assert started == [model]


def test_every_model_but_the_agent_loads_though_it_cannot_serve():
    files = sorted(REPOSITORY.glob("*/1/model.py"))
    assert files
    plain = [file for file in files if "@loads_or_refuses(pb_utils)\nclass" not in file.read_text()]
    assert [file.parents[1].name for file in plain] == ["voice_agent"]


def test_a_model_imports_what_may_be_absent_when_it_is_loaded():
    for file in REPOSITORY.glob("*/1/model.py"):
        for line in file.read_text().splitlines():
            if line.startswith("from parley.") and file.parents[1].name != "voice_agent":
                assert line.startswith(("from parley.runtime.parameters", "from parley.triton."))


def test_no_model_needs_a_gpu_to_be_loaded():
    kinds = {
        group.kind
        for path in (*REPOSITORY.glob("*/config.pbtxt"), *REPOSITORY.glob("*/configs/*.pbtxt"))
        for group in read_config_file(path).instance_group
    }
    assert ModelInstanceGroup.KIND_GPU not in kinds
