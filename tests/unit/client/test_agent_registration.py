"""The file of an agent while its functions are served."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tomllib

import pytest

from parley_client.agent_registration import MARK, Registration, remove_left, to_toml
from parley_client.errors import ClientError

FIELDS = {"instructions": "You sell tea."}


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": 'Say "hello",\nthen wait.\t\x00\x7f ü 🍵 \\'},
        {"a": True, "b": -3, "c": 0.5, "d": [], "e": ["x", 1]},
        {"tools": {"mcp": [{"name": "x", "tools": ["a"]}], "private_hosts": ["127.0.0.1"]}},
        {"odd key.": {"": 1}},
        {},
    ],
)
def test_plain_values_written_as_toml_are_read_back(fields):
    assert tomllib.loads(to_toml(fields)) == fields


def test_value_that_toml_lacks_is_refused():
    with pytest.raises(ClientError, match="the type NoneType"):
        to_toml({"a": [None]})


def test_registration_writes_and_removes_a_private_file(tmp_path):
    folder = tmp_path / "new" / "agents"
    with Registration(folder, "tea") as place:
        place.write(FIELDS)
        assert tomllib.loads(place.file.read_text()) == FIELDS
        assert stat.S_IMODE(place.file.stat().st_mode) == 0o600
        assert list(folder.glob("*.toml")) == [place.file]
        place.write({"instructions": "Closed."})
        assert "Closed" in place.file.read_text()
    assert list(folder.iterdir()) == []


def test_registration_removes_the_file_when_its_body_fails(tmp_path):
    def serve():
        with Registration(tmp_path, "tea") as place:
            place.write(FIELDS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve()
    assert list(tmp_path.iterdir()) == []


def test_registration_never_replaces_or_removes_a_file_of_the_operator(tmp_path):
    own = tmp_path / "tea.toml"
    own.write_text('instructions = "Mine."\n')
    with (
        pytest.raises(ClientError, match=r"tea\.toml was not written by `parley run`"),
        Registration(tmp_path, "tea"),
    ):
        pass
    assert list(tmp_path.iterdir()) == [own]
    own.unlink()
    with Registration(tmp_path, "tea") as place:
        place.write(FIELDS)
        own.write_text('instructions = "Mine."\n')
    assert own.read_text() == 'instructions = "Mine."\n'


def test_second_program_with_the_same_agent_is_refused(tmp_path):
    with Registration(tmp_path, "tea") as place:
        place.write(FIELDS)
        with (
            pytest.raises(ClientError, match="`parley run` serves this agent already"),
            Registration(tmp_path, "tea"),
        ):
            pass
        assert place.file.exists()
        with Registration(tmp_path, "coffee"):
            pass


def test_file_of_a_killed_program_is_replaced(tmp_path):
    code = (
        "import os, pathlib\nfrom parley_client.agent_registration import Registration\n"
        f"place = Registration(pathlib.Path({str(tmp_path)!r}), 'tea')\n"
        "place.__enter__().write({'instructions': 'old'})\nos.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == -9
    assert "old" in (tmp_path / "tea.toml").read_text()
    with Registration(tmp_path, "tea") as place:
        place.write(FIELDS)
        assert place.file.read_text() == MARK + to_toml(FIELDS)
    assert list(tmp_path.iterdir()) == []


def test_file_is_utf8_in_any_locale(tmp_path):
    code = (
        "import pathlib, sys\nfrom parley_client.agent_registration import Registration\n"
        f"with Registration(pathlib.Path({str(tmp_path)!r}), 'tea') as place:\n"
        "    place.write({'greeting': 'Caf\\xe9'})\n    sys.stdout.buffer.write(place.file.read_bytes())\n"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code]
    written = subprocess.run(command, env=os.environ | locale, timeout=60, check=True, capture_output=True)
    assert tomllib.loads(written.stdout.decode()) == {"greeting": "Café"}


def test_remove_left_leaves_files_that_are_served_or_the_operators(tmp_path):
    (tmp_path / "own.toml").write_text('instructions = "Mine."\n')
    (tmp_path / "killed.toml").write_text(MARK)
    with Registration(tmp_path, "served") as place:
        place.write(FIELDS)
        remove_left(tmp_path)
        assert sorted(file.name for file in tmp_path.iterdir()) == [".served.lock", "own.toml", "served.toml"]


def test_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ClientError, match="cannot be written to"), Registration(tmp_path / "file", "tea"):
        pass
