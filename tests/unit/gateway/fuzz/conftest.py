"""One gateway for all fuzzing."""

import os

import pytest
from fuzzed_gateway import FuzzedGateway
from hypothesis import HealthCheck, settings

settings.register_profile(
    "gateway",
    deadline=None,
    derandomize="PARLEY_FUZZ_MESSAGES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="package")
def fuzzed(tmp_path_factory):
    with FuzzedGateway(tmp_path_factory.mktemp("fuzz")) as gateway:
        yield gateway
