"""Where the log of parley_torch goes."""

import logging
from importlib import import_module

import fake_pb_utils
import pytest

from parley.launcher.options import ROOT
from parley.triton.observability import log_to_triton

SOURCE = ROOT / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in sorted((SOURCE / "parley_torch").rglob("*.py"))
    if "_log = " in path.read_text()
]


@pytest.fixture
def project_logger():
    logger = logging.getLogger("parley")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.usefixtures("project_logger")
def test_log_of_a_module_is_in_that_of_triton(module, monkeypatch):
    seen = []
    monkeypatch.setattr(fake_pb_utils.Logger, "log_warn", seen.append)
    log_to_triton(fake_pb_utils, "s3gen", environment={})
    import_module(module)._log.warning("a graph is missing")
    assert seen == ["s3gen: a graph is missing"]
