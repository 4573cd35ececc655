"""What a model reads from the command line of its server."""

import os
from pathlib import Path

import pytest

from parley.triton import server_flags
from parley.triton.server_flags import ServerFlags, parse_flags, read_server_flags


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ServerFlags()),
        (["--model-repository=/r", "--model-config-name=tiny"], ServerFlags(profile="tiny")),
        (["--model-config-name", "open", "--grpc-port", "9001"], ServerFlags("open", (), "127.0.0.1:9001")),
        (["--grpc-port=1", "--grpc-port=2"], ServerFlags(grpc_url="127.0.0.1:2")),
        (["--grpc-address=0.0.0.0"], ServerFlags()),
        (["--grpc-address=10.0.0.7"], ServerFlags(grpc_url="10.0.0.7:8001")),
        (["--grpc-address=[::]", "--grpc-port=7"], ServerFlags(grpc_url="[::1]:7")),
        (["--load-model=a", "--load-model", "b"], ServerFlags(models=("a", "b"))),
        (["--allow-grpc=false"], ServerFlags(has_grpc=False)),
        (["--allow-grpc", "0"], ServerFlags(has_grpc=False)),
        (["--allow-grpc=true", "--grpc-use-ssl=true"], ServerFlags(has_grpc_tls=True)),
        (["--grpc-use-ssl=false"], ServerFlags()),
        (["--grpc-use-ssl", "--log-verbose=1"], ServerFlags(has_grpc_tls=True)),
        (["--grpc-port"], ServerFlags()),
    ],
)
def test_flags_are_read_in_both_forms(arguments, expected):
    assert parse_flags(arguments) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"/opt/tritonserver/bin/tritonserver\0--grpc-port=9\0", ServerFlags(grpc_url="127.0.0.1:9")),
        (b"tritonserver\0", ServerFlags()),
        (b"python3\0serve.py\0--grpc-port=9\0", None),
        (b"", None),
        (None, None),
    ],
)
def test_server_flags_of_the_parent_process_are_read(monkeypatch, tmp_path, content, expected):
    class Proc(type(tmp_path)):
        def read_bytes(self):
            assert self == Path(f"/proc/{os.getppid()}/cmdline")
            if content is None:
                raise ProcessLookupError
            return content

    monkeypatch.setattr(server_flags, "Path", Proc)
    assert read_server_flags() == expected
