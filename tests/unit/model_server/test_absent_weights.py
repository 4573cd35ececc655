"""A model without weights in a server that the launcher has not started."""

import json
from pathlib import Path

import pytest
from fake_pb_utils import Request

from parley.errors import WeightsNotFoundError
from parley.runtime.parameters import Parameters
from parley.triton.absent_weights import loads_without_weights

REPOSITORY = Path(__file__).parents[3] / "model_repository"
REFUSED = "weights_not_found: kokoro has no weights on this server, whose log has the remedy"


def arguments(*, decoupled):
    config = {"model_transaction_policy": {"decoupled": decoupled}}
    return {"model_name": "kokoro", "model_config": json.dumps(config)}


@pytest.fixture
def make(pb_utils):
    """A model whose weights are there, or are not."""

    def make(*, weights):
        @loads_without_weights(pb_utils)
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
    @loads_without_weights(pb_utils)
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


def test_every_model_with_weights_of_its_own_can_load_without_them():
    folders = [path.parents[1] for path in REPOSITORY.glob("*/1/model.py")]
    named = [folder for folder in folders if 'key: "weights"' in (folder / "config.pbtxt").read_text()]
    assert named
    for folder in named:
        assert (
            "@loads_without_weights(pb_utils)\nclass TritonPythonModel:"
            in (folder / "1/model.py").read_text()
        )
