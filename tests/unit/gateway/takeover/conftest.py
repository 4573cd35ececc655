"""Gateways that share a store of sessions, and lines to them that tests cut."""

import base64
import secrets

import pytest
from gateways import Gateways, MemoryStore

from parley_gateway.security.keys import new_key


@pytest.fixture
def keys_file(tmp_path):
    file = tmp_path / "takeover.keys"
    file.write_bytes(b"# the first encrypts\n" + base64.b64encode(secrets.token_bytes(32)) + b"\n")
    return file


@pytest.fixture
def keys(tmp_path):
    """Two API keys, and the settings of gateways that know them."""
    made = [new_key(name, ["agent"]) for name in ("one", "other")]
    file = tmp_path / "keys.toml"
    file.write_text("".join(f"{key.line}\n" for key in made))
    return [key.secret for key in made], {"keys_file": str(file)}


@pytest.fixture
def store():
    return {"memory": MemoryStore()}


@pytest.fixture
async def gateways(store, keys_file):
    """Starts gateways that share a store."""
    made = Gateways(keys_file, **store)
    yield made
    await made.stop()
