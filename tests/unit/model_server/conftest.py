from types import SimpleNamespace

import fake_pb_utils
import pytest


@pytest.fixture
def model():
    return fake_pb_utils.Model()


@pytest.fixture
def pb_utils(model):
    names = {name: getattr(fake_pb_utils, name) for name in dir(fake_pb_utils) if not name.startswith("_")}
    return SimpleNamespace(**names, InferenceRequest=fake_pb_utils.make_request_class(model))
