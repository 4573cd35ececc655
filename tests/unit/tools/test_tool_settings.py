"""The file of tools, addresses and templates."""

from __future__ import annotations

import json

import pytest

from parley.errors import ModelLoadingError
from parley.tools.http import UrlTemplate
from parley.tools.settings import expand_headers, read_settings
from parley.tools.toolbox import Toolbox, open_toolbox

TOML = """
allowed_hosts = ["api.example.com"]
private_hosts = ["localhost"]

[[http]]
name = "get_weather"
description = "The weather of a city."
url = "https://api.example.com/v1/{city}?days={days}"
headers = { Authorization = "Bearer ${WEATHER_KEY}" }
timeout_ms = 3000

[http.parameters]
type = "object"
required = ["city"]
properties.city = { type = "string" }
properties.days = { type = "integer", minimum = 1 }

[[mcp]]
name = "crm"
url = "http://localhost:9000/mcp"
tools = ["find"]
prefix = "crm_"
"""
HTTP = {"name": "t", "url": "https://api.example.com/"}
MCP = {"name": "m", "tools": ["t"], "command": ["program"]}


def test_a_file_is_read(tmp_path):
    file = tmp_path / "tools.toml"
    file.write_text(TOML)
    settings = read_settings(file)
    assert settings.http[0].parameters["properties"]["days"] == {"type": "integer", "minimum": 1}
    assert settings.mcp[0].tools == ["find"]
    same = tmp_path / "tools.json"
    same.write_text(json.dumps({"allowed_hosts": ["api.example.com"], "http": [HTTP]}))
    assert read_settings(same).http[0].name == "t"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"http": [HTTP, HTTP]}, "two tools of the name 't'"),
        ({"http": [HTTP], "mcp": [MCP]}, "two tools of the name 't'"),
        ({"http": [{**HTTP, "name": "not a name"}]}, "tool name"),
        ({"http": [{**HTTP, "url": "https://other.example.com/"}]}, "stands neither in allowed_hosts"),
        ({"http": [{**HTTP, "url": "http://api.example.com/"}]}, "private_hosts only"),
        ({"http": [{**HTTP, "url": "https://me:pw@api.example.com/"}]}, "user name"),
        ({"http": [{**HTTP, "url": "https://{host}/"}]}, "path and the query"),
        ({"http": [{**HTTP, "url": "file:///etc/passwd"}]}, "no url"),
        ({"http": [{**HTTP, "url": "https://api.example.com:0/"}]}, "no url"),
        ({"http": [{**HTTP, "url": "https://api.example.com:99999/"}]}, "'t': the url is wrong: Port out"),
        ({"http": [{**HTTP, "url": "https://api.example.com:x/"}]}, "tool 't': the url is wrong: Port could"),
        ({"http": [{**HTTP, "url": "https://[a"}]}, "tool 't': the url is wrong: Invalid IPv6"),
        ({"mcp": [{**MCP, "command": [], "url": "https://api.example.com:99999/"}]}, "'m': the url is wrong"),
        ({"http": [{**HTTP, "timeout_ms": 0}]}, "timeout_ms"),
        ({"http": [{**HTTP, "timeout_ms": 300_000}]}, "timeout_ms must be 1 to 120000"),
        ({"http": [{**HTTP, "mode": "background", "timeout_ms": 10**7}]}, "timeout_ms must be 1 to 3600000"),
        ({"http": [{**HTTP, "mode": "async"}]}, "Invalid enum value 'async'"),
        ({"mcp": [{**MCP, "background": ["u"]}]}, "background names 'u', which is not one of its tools"),
        ({"mcp": [{**MCP, "options": {"u": {}}}]}, "options names 'u', which is not one of its tools"),
        ({"mcp": [{**MCP, "background_timeout_ms": 0}]}, "background_timeout_ms must be"),
        ({"http": [{**HTTP, "max_bytes": 10**9}]}, "max_bytes"),
        ({"http": [{**HTTP, "parameters": {"type": "array"}}]}, "type object"),
        ({"http": [{**HTTP, "headers": {"Authorization": "Bearer abc"}}]}, "environment variable"),
        ({"http": [{**HTTP, "headers": {"X-Api-Key": "abc"}}]}, "environment variable"),
        ({"http": [{**HTTP, "headers": {"Bad Name": "abc"}}]}, "none that can be sent"),
        ({"http": [{**HTTP, "headers": {"A": "b\r\nC: d"}}]}, "none that can be sent"),
        ({"http": [{**HTTP, "surprise": 1}]}, "surprise"),
        ({"mcp": [{**MCP, "url": "https://api.example.com/"}]}, "either a url or a command"),
        ({"mcp": [{**MCP, "command": []}]}, "either a url or a command"),
        ({"mcp": [{**MCP, "headers": {"A": "b"}}]}, "with a url"),
        ({"mcp": [{"name": "m", "command": ["x"]}]}, "tools"),
        ({"http": [{**HTTP, "name": f"t{n}"} for n in range(200)]}, "at most 128"),
    ],
)
def test_invalid_settings_are_reported_at_the_start(tmp_path, changes, said):
    file = tmp_path / "tools.json"
    file.write_text(json.dumps({"allowed_hosts": ["api.example.com"], **changes}))
    with pytest.raises(ModelLoadingError, match=said):
        read_settings(file)


def test_an_http_tool_in_the_background_has_more_time(tmp_path):
    file = tmp_path / "tools.json"
    entries = [HTTP, {**HTTP, "name": "u", "mode": "background", "announce": False}]
    file.write_text(json.dumps({"allowed_hosts": ["api.example.com"], "http": entries}))
    box = Toolbox(read_settings(file), {})
    assert [(tool.mode, tool.announce) for tool in box.tools] == [("blocking", True), ("background", False)]
    assert [box.timeout_s(name) for name in ("t", "u")] == [5, 300]


@pytest.mark.parametrize("content", [b"\xff", b"a =", b"[[http]]\nname = 5"])
def test_a_file_that_is_none_is_refused(tmp_path, content):
    file = tmp_path / "tools.toml"
    with pytest.raises(ModelLoadingError):
        read_settings(file)
    file.write_bytes(content)
    with pytest.raises(ModelLoadingError):
        read_settings(file)


def test_the_value_of_a_header_is_not_repeated(tmp_path):
    file = tmp_path / "tools.json"
    entry = {**HTTP, "headers": {"Authorization": "Bearer hunter2"}}
    file.write_text(json.dumps({"allowed_hosts": ["api.example.com"], "http": [entry]}))
    with pytest.raises(ModelLoadingError) as raised:
        read_settings(file)
    assert "hunter2" not in str(raised.value)


def test_headers_take_their_values_from_the_environment():
    headers = {"Authorization": "Bearer ${KEY}", "Accept": "text/plain"}
    expanded, secrets = expand_headers(headers, {"KEY": "abc\n"}, "tool")
    assert expanded == {"Authorization": "Bearer abc", "Accept": "text/plain"}
    assert secrets == {"abc"}
    for environment in ({}, {"KEY": ""}, {"KEY": "a\r\nX: b"}):
        with pytest.raises(ModelLoadingError, match="KEY"):
            expand_headers(headers, environment, "tool")


@pytest.mark.parametrize(
    ("url", "parameters", "said"),
    [
        ("https://h/{a}", {}, "must be described"),
        ("https://h/{a}", {"properties": {"a": {"type": "object"}}, "required": ["a"]}, "must be described"),
        ("https://h/{a}", {"properties": {"a": {"type": ["string"]}}}, "must be described"),
        ("https://h/{a}", {"properties": {"a": {"type": "string"}}}, "must be required"),
        ("https://h/{a b}", {}, "brace"),
        ("https://h/?{a}=1", {}, "brace"),
        ("https://h/?x={", {}, "brace"),
        ("https://h/?x=1", {"properties": {"x": {"type": "string"}}}, "fixed part"),
    ],
)
def test_templates_must_suit_the_schema(url, parameters, said):
    with pytest.raises(ValueError, match=said):
        UrlTemplate(url, parameters)


async def test_a_toolbox_needs_its_variables(tmp_path):
    file = tmp_path / "tools.toml"
    file.write_text(TOML)
    with pytest.raises(ModelLoadingError, match="WEATHER_KEY is not set"):
        await open_toolbox(file, {})
