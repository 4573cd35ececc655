"""The README's first command, as it is typed."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from contextlib import closing

import pytest

from parley.launcher.options import ROOT

MOST_LINES = 25
"""Besides the conversation."""
LIMIT_S = 240


def is_free(port):
    with closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return listener.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.timeout(LIMIT_S + 30)
def test_make_demo_holds_its_conversation_on_the_documented_port_in_few_lines(tmp_path):
    usual = is_free(8001)
    recording = tmp_path / "call.wav"
    ended = subprocess.run(
        ["make", "demo", "PROFILE=tiny", f"ARGS=--no-stay --out {recording}"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = ended.stdout.splitlines()
    talk = [line for line in lines if re.match(r" +\d+\.\d\ds ", line)]
    assert ended.returncode == 0, ended.stdout
    assert len(lines) - len(talk) <= MOST_LINES, ended.stdout
    assert any("get_weather(" in line for line in talk)
    assert any("interrupted" in line for line in talk)
    assert recording.stat().st_size > 16_000
    port = re.search(r"Ready after .* at 127\.0\.0\.1:(\d+)\.", ended.stdout)[1]
    assert (port == "8001") == usual
