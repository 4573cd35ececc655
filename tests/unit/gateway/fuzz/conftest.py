"""One gateway for all fuzzing."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
sys.path += [
    str(HERE),
    str(HERE.parents[1] / "client"),
    str(HERE.parent / "core"),
    str(HERE.parent / "twilio"),
]

settings.register_profile(
    "gateway",
    deadline=None,
    derandomize="PARLEY_FUZZ_MESSAGES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="package")
def fuzzed(tmp_path_factory):
    from fuzzed_gateway import FuzzedGateway

    with FuzzedGateway(tmp_path_factory.mktemp("fuzz")) as gateway:
        yield gateway
