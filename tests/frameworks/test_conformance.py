"""``parley conform`` against Parley and against another open server; docs/conformance.md has the outcomes."""

import json
import os
import re
import socket
import subprocess
from contextlib import contextmanager

import pytest
from conftest import PYTHON, ROOT, open_gateway, running, wait_for

QUESTION = ROOT / "tests/data/conversation/02-weather.wav"
AUTH = "that of the account"
PUBLIC_URL = "https://voice.example.com"
OTHER = "speech-to-speech 1.1.0"
MARKS = {"passed": "✓", "refused": "refused", "failed": "✗"}


def conform(folder, protocol, url, *options):
    """The outcomes, and the exit status."""
    report, page = folder / f"{protocol}.json", folder / f"{protocol}.html"
    command = ["-m", "parley_client", "conform", "--protocol", protocol, "--url", url, *options]
    files = ["--json", str(report), "--html", str(page), str(QUESTION)]
    environment = os.environ | {"PARLEY_KEY": AUTH if protocol == "twilio" else ""}
    done = subprocess.run(
        [PYTHON, *command, *files], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert report.exists(), done.stdout + done.stderr
    outcomes = json.loads(report.read_text())["checks"]
    for outcome in outcomes:
        assert outcome["name"] in page.read_text()
    print(done.stdout)
    return outcomes, done.returncode


def documented(protocol, server):
    """What the table of docs/conformance.md says of a server: title and mark of each check, in order."""
    page = (ROOT / "docs/conformance.md").read_text()
    _, found, section = page.partition(f"## {protocol}\n")
    assert found, f"docs/conformance.md has no section {protocol}"
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.partition("\n## ")[0].splitlines()
        if re.match(r"\| \S", line)
    ]
    column = rows[0].index(server)
    return [(row[0], row[column]) for row in rows[1:]]


def table(outcomes):
    return [(outcome["title"], MARKS[outcome["result"]]) for outcome in outcomes]


@pytest.fixture(scope="module")
def checked_gateway(triton, tmp_path_factory):
    """The address of a gateway that takes Twilio's calls, too."""
    folder = tmp_path_factory.mktemp("checked")
    (folder / "token").write_text(AUTH)
    settings = {
        "PARLEY_GATEWAY_TWILIO_AUTH_TOKEN_FILE": str(folder / "token"),
        "PARLEY_GATEWAY_LISTEN_PUBLIC_URL": PUBLIC_URL,
        "PARLEY_GATEWAY_SECURITY_INSECURE_ALLOW_ANONYMOUS": "true",
    }
    with open_gateway(triton, folder, **settings) as (url, _):
        yield url


@pytest.mark.parametrize(
    ("protocol", "path", "options"),
    [
        ("openai-realtime", "", []),
        ("deepgram", "", []),
        ("twilio", "/v1/twilio/voice", ["--public-url", PUBLIC_URL]),
        ("sessions", "", []),
    ],
)
def test_parley(checked_gateway, tmp_path, protocol, path, options):
    outcomes, status = conform(tmp_path, protocol, f"{checked_gateway}{path}", *options)
    assert table(outcomes) == documented(protocol, "Parley")
    assert status == any(outcome["result"] != "passed" for outcome in outcomes)


@contextmanager
def other_server(base_url, log):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = str(unused.getsockname()[1])
    program = str(ROOT / "tests/frameworks/other_server.py")
    packages = str(ROOT / ".venv-frameworks/apart")
    with running([program, packages, port, base_url], log, HF_HUB_OFFLINE="1") as process:
        wait_for(process, log, lambda: "Uvicorn running" in log.read_text())
        yield f"http://127.0.0.1:{port}"


def test_another_server(gateway, tmp_path):
    with other_server(f"{gateway}/v1", tmp_path / "log") as url:
        outcomes, status = conform(tmp_path, "openai-realtime", url, "--within", "8", "--pause", "0.3")
    assert table(outcomes) == documented("openai-realtime", OTHER)
    assert status == 1
