"""What the calls of an agent share is opened, or refused with the field that is wrong."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from parley.agent.config import AgentConfig
from parley.agent.defined_agents import AgentOpener, agent_settings
from parley.agents.reader import AgentFileError, read_agent
from parley.engines.base import RemoteChat
from parley.engines.openai_chat import OpenAiChatModel
from parley.errors import UnsupportedVoiceError
from parley.protocol import Tool
from parley.runtime.parameters import LOADED_MODELS_VARIABLE, Parameters
from parley.tools.base import ToolOutcome
from parley.tools.toolbox import Toolbox
from parley.tts.voice_routing import find_route


class Voices:
    """A synthesizer that has two voices in two languages."""

    voices = ("low", "high")
    languages = ("en", "de")

    def check_known(self, voice, language):
        return self.voices is not None and find_route([("fake", self)], voice, language).certain

    async def check_voice(self, voice):
        if voice != "high":
            raise UnsupportedVoiceError(f"there is no voice {voice!r}")


class ServerTools:
    """The server's own tool."""

    names = frozenset({"get_time"})
    tools = (Tool(name="get_time"),)
    called = 0
    closed = False

    def timeout_s(self, name):
        return 7.0

    async def call(self, name, arguments, *, traceparent="", on_progress=None):
        self.called += 1
        return ToolOutcome({"at": "20:00"})

    async def close(self):
        self.closed = True


TOOL = """[tools]
allowed_hosts = ["api.example.com"]
[[tools.http]]
name = "find_table"
url = "https://api.example.com/tables"
"""


def opener(folder, config=None, server_tools=None, **environment) -> AgentOpener:
    parameters = Parameters(
        "voice_agent", {}, model_dir=folder / "models" / "voice_agent", environment=environment
    )
    return AgentOpener(
        Voices(),
        server_tools or ServerTools(),
        config or AgentConfig(),
        parameters,
        client=None,
        on_fallback=print,
        llm_timeout_s=20.0,
    )


OWN_ENDING = """[ending]
end_call = true
[tools]
allowed_hosts = ["api.example.com"]
[[tools.http]]
name = "end_call"
url = "https://api.example.com/end"
"""


def define(folder, text: str):
    path = folder / "restaurant.toml"
    path.write_text(f'instructions = "x"\n{text}')
    return read_agent(path)


STEPS = """
[[steps]]
name = "greet"
tools = ["find_table", "end_call"]
[[steps.next]]
to = "book"
when = "the user wants a table"
[[steps]]
name = "book"
voice = "high"
"""
BOOKING = STEPS.replace('"find_table", "end_call"', "")


async def test_a_stored_voice_that_is_missing_is_an_error_of_its_step(tmp_path, monkeypatch):
    monkeypatch.setattr(Voices, "voices", None)
    text = BOOKING.replace('name = "greet"', 'name = "greet"\nvoice = "high"')
    await opener(tmp_path).open(define(tmp_path, text))
    file = define(tmp_path, text.replace('name = "book"\nvoice = "high"', 'name = "book"\nvoice = "hgih"'))
    with pytest.raises(AgentFileError, match=r"there is no voice 'hgih'") as refused:
        await opener(tmp_path).open(file)
    assert ":12:" in str(refused.value)
    await opener(tmp_path).open(file, only_checks=True)  # the synthesizer is not asked


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (STEPS + TOOL, 5, "steps[0].tools: no tool 'end_call'"),
        (STEPS.replace("find_table", "get_time"), 5, "steps[0].tools: no tool 'get_time'"),
        (BOOKING.replace('to = "book', 'to = "bok'), 7, "no other step 'bok' (did you mean book?)"),
        (BOOKING.replace("to = ", "too = "), 7, "unknown field 'too' (did you mean to?)"),
        (BOOKING.replace("when = ", "collected = "), 8, "Expected `array`, got `str`"),
        (BOOKING.replace("high", "hig"), 11, "no voice 'hig'; possible are low, high (did you mean"),
        (f'{BOOKING}[[steps]]\nname = "alone"', 12, "no way leads to the step 'alone'"),
        (
            '[[decisions]]\nname = "a"\nquestion = "b"\nat = ["end"]\nends = true\nanswer = "yess"',
            7,
            "decisions[0].answer: the question has no answer 'yess' (did you mean yes?)",
        ),
        ('[[collect]]\nname = "room"\nkind = "choice"', 2, "collect[0].values: a choice needs them"),
        ('[[collect]]\nname = "room"\nkind = "rooms"', 4, "Invalid enum value 'rooms'"),
        ('[[collect]]\nname = "a"\nkind = "name"\ncheck = "luhn"', 5, "a name has none"),
        ('\nvoice = "deep"', 3, "no voice 'deep'"),
        ('\nlanguage = "xx"', 3, "language 'xx' is not spoken"),
        ('\n\ngreeting = "…"', 4, "greeting has no words"),
        ("[silence]\nprompts = []", 3, "silence.prompts has 0 entries"),
        ("[vad]\nmin_speech_ms = 3\nthreshold = 2.0", 4, "threshold"),
        ("[barge_in]\nmin_words = 99", 3, "barge_in.min_words is 99"),
        ("\nphrase_weight = nan", 3, "phrase_weight is nan; it must be 0 to 10"),
        ("\nphrase_weight = inf", 3, "phrase_weight is inf"),
        ("\nphrase_weight = 10.5", 3, "phrase_weight is 10.5"),
        ("[sampling]\ntemperature = 9.0", 3, "temperature"),
        (
            '[telephone]\nnumbers = ["+493012345678"]\n[[ending.transfers]]\nname = "desk"',
            4,
            "'desk' needs a number in `to`",
        ),
        (OWN_ENDING, 2, "the server has a tool 'end_call' of its own"),
        ('\nknowledge = ["docs/*.md"]', 3, "no file matches 'docs/*.md'"),
        ('knowledge = ["/etc/../x.md"]', 2, "must not be empty or have '..'"),
        ('[model]\nname = "gpt"', 3, "no engine 'gpt'; there are qwen3"),
        ('[model]\nname = "openai_chat"', 3, "needs model.url"),
        ('[model]\nurl = "ftp://host"\nmodel = "m"', 3, "no URL of the form https://host/v1"),
        ('[model]\nurl = "http:///v1"\nmodel = "m"', 3, "no URL of the form https://host/v1"),
        ('[model]\nurl = "http://a b/v1"\nmodel = "m"', 3, "no URL of the form https://host/v1"),
        ('[model]\nurl = "http://a/\\u0000v1"\nmodel = "m"', 3, "no URL of the form https://host/v1"),
        ('[model]\nurl = "http://[a"\nmodel = "m"', 3, "Invalid IPv6 URL"),
        ('[model]\nurl = "https://host:99999/v1"\nmodel = "m"', 3, "Port out of range"),
        ('[model]\nurl = "https://host:x/v1"\nmodel = "m"', 3, "Port could not be cast"),
        ('[model]\nurl = "https://host/v1"', 3, "model.model must name"),
        ('[model]\nname = "qwen3"\nurl = "https://host/v1"', 4, "it is one of them"),
        ('[model]\nurl = "http://h"\nmodel = "m"\nkey_file = "no"', 5, "no cannot be read: No such file"),
        (TOOL.replace("https", "ftp"), 4, "tool 'find_table': 'ftp://api.example.com/tables' is no url"),
        (f'{TOOL}headers = {{ X-Key = "${{KEY}}" }}', 4, "environment variable KEY is not set"),
        (f'{TOOL}[[tools.http]]\nname = "find_table"\nurl = "https://api.example.com/"', 7, "two tools of"),
        ('[[tools.mcp]]\nname = "m"\ntools = ["a"]', 2, "MCP server 'm' must have either a url or a command"),
        (f"server_tools = true\n{TOOL.replace('find_table', 'get_time')}", 5, "the server has a tool of"),
    ],
)
async def test_definition_that_no_session_could_have_names_its_field(tmp_path, text, line, words):
    with pytest.raises(AgentFileError) as refused:
        await opener(tmp_path).open(define(tmp_path, text))
    assert f"restaurant.toml:{line}: " in str(refused.value)
    assert words in str(refused.value)


async def test_instructions_that_leave_no_room_for_a_conversation_are_refused(tmp_path):
    file = define(tmp_path, "")
    file = replace(file, definition=type(file.definition)(instructions="word " * 10_000))
    with pytest.raises(AgentFileError, match=r"toml:1: the system prompt takes about \d+ tokens"):
        await opener(tmp_path).open(file)


async def test_larger_window_of_its_own_model_takes_longer_instructions(tmp_path):
    file = define(tmp_path, '[model]\nurl = "https://host/v1"\nmodel = "m"\ncontext_tokens = 131072')
    text = "word " * 10_000
    file = replace(file, definition=type(file.definition)(instructions=text, model=file.definition.model))
    agent = await opener(tmp_path).open(file)
    await agent.close_when_unused()


async def test_model_that_is_not_loaded_is_refused(tmp_path):
    config = AgentConfig(llm=("openai_chat",))
    with pytest.raises(AgentFileError, match=r"toml:3: qwen3 cannot be used: it is not loaded"):
        await opener(tmp_path, config, **{LOADED_MODELS_VARIABLE: "piper"}).open(
            define(tmp_path, '[model]\nname = "qwen3"')
        )
    found = await opener(tmp_path, config, **{LOADED_MODELS_VARIABLE: "qwen3"}).open(
        define(tmp_path, '[model]\nname = "qwen3"')
    )
    assert found.model.names == (("qwen3", "qwen3"),)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ('fallback = [{ name = "qwen3" }]', ["openai_chat", "qwen3"]),  # behind the server's own
        ('name = "qwen3"\nfallback = [{ url = "http://h/v1", model = "b" }]', ["qwen3", "b"]),
        (
            'url = "http://h"\nmodel = "a"\nfallback = [{ url = "http://i", model = "a" }, {name="qwen3"}]',
            ["a", "a", "qwen3"],
        ),
    ],
)
async def test_model_of_an_agent_has_others_behind_it(tmp_path, model, names):
    remote = RemoteChat("http://own/v1", "own")
    config = AgentConfig(llm=("openai_chat",), remote_chat=remote)
    agent = await opener(tmp_path, config, **{LOADED_MODELS_VARIABLE: "qwen3"}).open(
        define(tmp_path, f"[model]\n{model}")
    )
    assert [name for _, name in agent.model.names] == names
    assert agent.model.chat.model == names[0]
    settings = agent_settings(agent.file.definition, agent.model, config)
    assert [name for _, name in settings.chat_models] == names
    await agent.close_when_unused()


async def test_fallback_that_is_the_servers_own_model_is_asked_once(tmp_path):
    agent = await opener(tmp_path).open(define(tmp_path, '[model]\nfallback = [{ name = "qwen3" }]'))
    assert agent.model.names == (("qwen3", "qwen3"),)


@pytest.mark.parametrize(
    ("fallback", "words"),
    [
        ('{ model = "b" }', "a fallback needs a name, or a url"),
        ('{ name = "openai_chat" }', "openai_chat needs model.fallback"),
        ('{ url = "ftp://h", model = "b" }', "no URL of the form"),
        ('{ name = "qwen" }', "no engine 'qwen'"),
    ],
)
async def test_wrong_fallback_is_refused_with_its_line(tmp_path, fallback, words):
    file = define(tmp_path, f"[model]\nfallback = [{fallback}]")
    with pytest.raises(AgentFileError, match=rf"restaurant.toml:3: .*{words}"):
        await opener(tmp_path).open(file)


@pytest.mark.parametrize(
    ("more", "names"), [("", {"find_table"}), ("server_tools = true\n", {"find_table", "get_time"})]
)
async def test_agent_has_its_own_tools_and_the_servers_only_where_it_asks_for_them(tmp_path, more, names):
    agent = await opener(tmp_path).open(define(tmp_path, f"{more}{TOOL}"))
    assert set(agent.tools.names) == names
    assert {tool.name for tool in agent.tools.tools} == names
    await agent.close_when_unused()


async def test_calls_reach_the_owner_of_each_tool_and_the_servers_stay_open(tmp_path):
    servers = ServerTools()
    agent = await opener(tmp_path, server_tools=servers).open(
        define(tmp_path, f"server_tools = true\n{TOOL}")
    )
    assert agent.tools.timeout_s("get_time") == 7.0
    assert agent.tools.timeout_s("find_table") == 5.0
    assert (await agent.tools.call("get_time", {})).output == {"at": "20:00"}
    assert (await agent.tools.call("nothing", {})).is_error
    await agent.close_when_unused()
    assert (servers.called, servers.closed) == (1, False)


async def test_agent_without_tools_has_none_of_the_servers(tmp_path):
    assert (await opener(tmp_path).open(define(tmp_path, ""))).tools is None


async def test_remote_model_of_an_agent_is_closed_with_it(tmp_path):
    (tmp_path / "key").write_text("secret\n")
    text = '[model]\nurl = "https://host/v1"\nmodel = "large"\nkey_file = "key"'
    agent = await opener(tmp_path).open(define(tmp_path, text))
    assert isinstance(agent.model.chat, OpenAiChatModel)
    assert agent.model.names == (("openai_chat", "large"),)
    await agent.close_when_unused()
    assert agent.model.chat._client.is_closed


async def test_parts_of_an_agent_that_cannot_be_opened_are_all_closed(tmp_path, monkeypatch, caplog):
    closed = []

    async def close(part):
        closed.append(type(part).__name__)
        raise RuntimeError("broken")

    monkeypatch.setattr(OpenAiChatModel, "close", close)
    monkeypatch.setattr(Toolbox, "close", close)
    text = f'knowledge = ["nothing.md"]\n[model]\nurl = "https://host/v1"\nmodel = "large"\n{TOOL}'
    with pytest.raises(AgentFileError, match=r"no file matches 'nothing\.md'"):
        await opener(tmp_path).open(define(tmp_path, text))
    assert closed == ["OpenAiChatModel", "Toolbox"]
    assert caplog.text.count("a part of the agent restaurant could not be closed") == 2


async def test_documents_of_an_agent_are_searched_until_it_is_closed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "faq.md").write_text("# Opening hours\nFrom 9 to 5.")
    file = define(tmp_path, 'knowledge = ["*.md"]')
    agent = await opener(tmp_path).open(file)
    (found,) = await agent.knowledge.search("what are your opening hours")
    assert (found.file, found.heading) == ("faq.md", "Opening hours")
    await agent.close_when_unused()
    assert await agent.knowledge.search("opening hours") == []


async def test_check_of_documents_makes_no_index(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "faq.md").write_text("text")
    file = define(tmp_path, 'knowledge = ["*.md"]')
    agent = await opener(tmp_path).open(file, only_checks=True)
    assert agent.knowledge is None
    (tmp_path / "faq.md").write_text("")
    with pytest.raises(AgentFileError, match=r"restaurant\.toml:2: faq\.md has no text"):
        await opener(tmp_path).open(file, only_checks=True)
    assert not (tmp_path / "cache").exists()


WEBHOOK = """[tools]
allowed_hosts = ["crm.example.com"]
[[webhooks]]
url = "https://crm.example.com/parley"
events = ["call.ended"]
secret_file = "restaurant.secret"
"""


async def test_webhooks_are_opened_with_their_key(tmp_path):
    (tmp_path / "restaurant.secret").write_text("0123456789abcdef01234567\n")
    agent = await opener(tmp_path).open(define(tmp_path, WEBHOOK))
    assert agent.webhooks is not None
    assert not agent.webhooks.want_summary
    await agent.close_when_unused()


@pytest.mark.parametrize(
    ("change", "line", "problem"),
    [
        (("https://crm", "http://crm"), 4, "http is possible for private_hosts only"),
        (("com/", "com:99999/"), 4, r"webhooks\[0\]: the url is wrong: Port out of range"),
        (("https://crm", "https://other"), 4, "stands neither in allowed_hosts nor in private_hosts"),
        (("restaurant.secret", "none.secret"), 7, "cannot be read: No such file"),
        (("restaurant.secret", "weak.secret"), 4, "a key has at least 24 bytes"),
    ],
)
async def test_webhook_that_cannot_be_used_is_refused(tmp_path, change, line, problem):
    (tmp_path / "restaurant.secret").write_text("0123456789abcdef01234567")
    (tmp_path / "weak.secret").write_text("hunter2")
    with pytest.raises(AgentFileError, match=problem) as refused:
        await opener(tmp_path).open(define(tmp_path, WEBHOOK.replace(*change)))
    assert f"restaurant.toml:{line}:" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("/dev/zero", "it is no regular file"),
        ("pipe.secret", "it is no regular file"),
        (".", "Is a directory"),
        ("long.secret", "it has more than 65536 bytes"),
    ],
)
async def test_secret_in_a_device_a_pipe_or_a_long_file_is_refused(tmp_path, name, problem):
    os.mkfifo(tmp_path / "pipe.secret")
    (tmp_path / "long.secret").write_text("x" * 65_537)
    model = f'[model]\nurl = "https://host/v1"\nmodel = "m"\nkey_file = "{name}"'
    for text in (WEBHOOK.replace("restaurant.secret", name), model):
        with pytest.raises(AgentFileError, match=f"_file .*cannot be read: {problem}"):
            await opener(tmp_path).open(define(tmp_path, text))


async def test_secret_behind_links_is_read(tmp_path):
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "restaurant.secret").write_text("0123456789abcdef01234567\n")
    (tmp_path / "..data").symlink_to("..2026")  # as Kubernetes mounts secrets
    (tmp_path / "restaurant.secret").symlink_to("..data/restaurant.secret")
    agent = await opener(tmp_path).open(define(tmp_path, WEBHOOK))
    await agent.close_when_unused()


async def test_consent_that_cannot_be_spoken_is_refused(tmp_path):
    with pytest.raises(AgentFileError):
        await opener(tmp_path).open(define(tmp_path, 'record = true\nrecording.consent = "…"\n'))
