"""A file of tools that cannot be used is found before anything is started."""

from __future__ import annotations

import pytest

from parley.launcher.errors import ToolsFileError
from parley.launcher.options import TINY_PROFILE, ServerOptions
from parley.launcher.tools_file import check_tools_file

VARIABLE = "PARLEY_VOICE_AGENT_TOOLS_FILE"
GOOD = """
allowed_hosts = ["api.example.com"]

[[http]]
name = "look_up"
url = "https://api.example.com/words"
headers = { Authorization = "Bearer ${WORDS_KEY}" }
"""


@pytest.fixture
def options(repository, tmp_path):
    """Of a server with a ``voice_agent`` whose settings name ``tools.toml``."""
    folder = repository / "voice_agent" / "configs"
    folder.mkdir(parents=True)
    (folder / f"{TINY_PROFILE}.pbtxt").write_text(
        'name: "voice_agent"\nparameters { key: "tools_file" value { string_value: "tools.toml" } }\n'
    )
    return ServerOptions(model_repository=repository, environment={"WORDS_KEY": "abcd"})


def test_a_good_file_beside_the_repository(options, tmp_path):
    (tmp_path / "tools.toml").write_text(GOOD)
    check_tools_file(options, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[http]", "cannot be read"),
        (GOOD.replace("https", "http"), "tool 'look_up'"),
        (GOOD.replace("WORDS_KEY", "OTHER_KEY"), "OTHER_KEY is not set"),
        (None, "No such file"),
    ],
)
def test_a_bad_one_is_told_in_one_line(options, tmp_path, text, words):
    if text is not None:
        (tmp_path / "tools.toml").write_text(text)
    with pytest.raises(ToolsFileError, match=words) as caught:
        check_tools_file(options, {})
    assert "\n" not in str(caught.value)


def test_the_environment_names_another_one(options, tmp_path):
    (tmp_path / "other.toml").write_text("nonsense")
    with pytest.raises(ToolsFileError, match=r"other\.toml"):
        check_tools_file(options, {VARIABLE: str(tmp_path / "other.toml")})


def test_nobody_needs_it_without_the_agent(options, repository):
    check_tools_file(ServerOptions(model_repository=repository, load_models=("echo",)), {})
