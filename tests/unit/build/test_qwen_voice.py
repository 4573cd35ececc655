"""Dialogues for the language model, how they are packed, and the adapter that is trained on them."""

import json
import re
import tomllib

import pytest

pytest.importorskip("gguf")
import jsonschema
import torch
from pass_rates import AGENTS
from small_gguf import HIDDEN, LAYERS, write_gguf
from torch.nn import functional
from transformers import AutoTokenizer

import train_qwen_voice
from export import main as export
from parley.chat import ChatMessage
from parley.llm.python_calls.format import CallStream
from parley.llm.python_calls.functions import as_functions
from parley.llm.replies import ParsedCall, TextPiece
from qwen_gguf.source import Source
from qwen_voice import adapter
from qwen_voice.adapter import load_base
from qwen_voice.agents import load_agents
from qwen_voice.dialogues import Dialogues
from qwen_voice.library import assistant, load_talk, load_tools
from qwen_voice.packing import Packer
from qwen_voice.slots import fill, words

SYSTEM = "Be brief."


@pytest.fixture(scope="module")
def tools():
    return load_tools()


@pytest.fixture(scope="module")
def talk():
    return load_talk()


@pytest.fixture(scope="module")
def agents():
    return load_agents()


@pytest.fixture(scope="module")
def sessions(tools, talk, agents):
    drawn = Dialogues(tools, talk, agents, SYSTEM, seed=3)
    return [drawn.session(8) for _ in range(300)]


def messages(sessions, role):
    return [
        message
        for session in sessions
        for conversation in session.conversations
        for message in conversation
        if message.role == role
    ]


def test_names_of_tools_are_many_and_unique(tools):
    names = [name for kind in tools for name in kind.names]
    assert len(tools) >= 60
    assert len(names) == len(set(names))


def test_none_of_the_tools_is_in_a_set_that_measures_what_was_not_trained(tools, talk):
    from eval_open_llm import load

    names = {name for kind in tools for name in kind.names}
    for measured in ("unseen", "held_out"):
        cases = load(measured)
        assert len(cases) == 120
        assert not names & {tool.name for case in cases for tool in case.tools}
        said = {case.said for case in cases}
        assert not said & {request.text for kind in tools for request in kind.calls}
        assert not said & {text for kind in tools for text, _ in kind.near}
        # Greetings are the same everywhere.
        asked = {text for text, _ in (*talk.open, *talk.fixed)}
        assert not {text for text in said & asked if len(text.split()) > 4}


def phrases(texts, words=8):
    """All runs of so many words."""
    split = [re.findall(r"[a-z0-9']+", text.lower()) for text in texts]
    return {tuple(one[i : i + words]) for one in split for i in range(len(one) - words + 1)}


def test_nothing_of_the_examples_was_trained(talk, tools, agents):
    """Their pass rates are those of agents that the model has not seen."""
    code = "\n".join(path.read_text() for path in AGENTS)
    defined = set(re.findall(r"@tool\ndef (\w+)", code))
    asked = [
        exchange["say"]
        for path in AGENTS
        for scenario in tomllib.loads(path.with_suffix(".tests.toml").read_text())["scenario"]
        for exchange in scenario["exchange"]
    ]
    assert len(defined) >= 7
    assert len(asked) >= 30
    assert not defined & {tool.name for kind in agents.kinds for tool in kind.tools}
    assert not defined & {name for kind in tools for name in kind.names}
    flows = "\n".join(flow for kind in agents.kinds for flow in kind.flows).splitlines()
    said = {line.removeprefix("> ") for line in flows if line.startswith(">")}
    said |= {pair[0] for pair in (*talk.open, *talk.fixed, *(p for one in talk.personas for p in one.pairs))}
    said |= {request.text for kind in tools for request in kind.calls}
    said |= {line[0] for turns in (agents.thanks, *agents.endings.values()) for line in turns}
    assert {line for line in said & set(asked) if len(line.split()) > 1} == set()
    prompts = [text for kind in agents.kinds for text in kind.instructions]
    prompts += [persona.prompt for persona in talk.personas]
    written = re.findall(r"instructions=\((.*?)\n    \)", code, re.DOTALL)
    assert len(written) == 3
    ours = phrases(re.sub(r'"\s*"', "", text) for text in written)
    assert ours & phrases(prompts) == set()


def test_every_call_is_complete_and_fits_its_tool(sessions):
    calls = 0
    for session in sessions:
        schemas = {tool.name: tool.parameters for tool in session.tools}
        for message in messages([session], "assistant"):
            for call in message.tool_calls:
                calls += 1
                schema = schemas[call.name]
                jsonschema.validate(call.arguments, schema)
                assert call.arguments.keys() <= schema["properties"].keys()
                assert set(schema["required"]) <= call.arguments.keys()
    assert calls > 500


def test_every_call_of_an_agent_follows_what_it_knows(agents):
    """Figures of an answer were said, returned, or are in the instructions."""
    import random

    def said(text):
        return ChatMessage(role="user", content=text)

    def figures(text):
        of_day = {int(hour) % 12 for hour in re.findall(r"(\d\d):\d\d", text)}
        return set(map(int, re.findall(r"\d+", text))) | of_day | ({12} if 0 in of_day else set())

    r = random.Random(5)
    assert len(agents.kinds) >= 8
    for kind in agents.kinds:
        assert 10 <= len(kind.flows) <= 24
        assert all(60 <= len(text.split()) <= 120 for text in kind.instructions)
        tools = [*kind.tools, *agents.ending_tools(r)]
        for _ in range(60):
            known = min(kind.instructions, key=len)
            for message in agents.conversation(kind, tools, said, r):
                if message.role == "assistant":
                    assert figures(message.content) <= figures(known), message.content
                known += f" {message.content} {[call.arguments for call in message.tool_calls]}"


def test_templates_are_filled_completely(sessions):
    for role in ("user", "assistant", "tool"):
        texts = [message.content for message in messages(sessions, role)]
        assert texts
        assert not [text for text in texts if re.search(r"\{\w+\}", text)]
    results = [message.content for message in messages(sessions, "tool") if message.content[0] in "{["]
    assert all(isinstance(json.loads(result), dict | list) for result in results)


def test_learned_answers_are_readable_by_the_parser(sessions):
    packer_sees = 0
    for session in sessions[:60]:
        functions = {function.name: function for function in as_functions(session.tools)}
        for message in messages([session], "assistant"):
            if not session.tools:
                continue
            packer_sees += 1
            if message.tool_calls:
                (call,) = message.tool_calls
                stream = CallStream(functions)
                tool = next(one for one in functions.values() if one.tool.name == call.name)
                read = stream.feed(tool.call(call.arguments)) + stream.finish()
                assert [piece for piece in read if isinstance(piece, ParsedCall)] == [
                    ParsedCall(call.name, call.arguments)
                ]
            else:
                stream = CallStream(functions)
                read = (
                    stream.feed(f"say({json.dumps(message.content, ensure_ascii=False)})") + stream.finish()
                )
                assert (
                    "".join(piece.text for piece in read if isinstance(piece, TextPiece)) == message.content
                )
    assert packer_sees > 300


def test_the_same_seed_draws_the_same(tools, talk, agents):
    first, second, third = (Dialogues(tools, talk, agents, SYSTEM, seed=seed) for seed in (1, 1, 2))
    assert [first.session(3).system for _ in range(20)] == [second.session(3).system for _ in range(20)]
    assert first.session(3).conversations != third.session(3).conversations


@pytest.mark.parametrize("text", ["", " yes", "*Yes*", 'He said "no".', "One\ntwo", "{room} is on"])
def test_unsayable_text_is_refused(text):
    with pytest.raises(ValueError, match="cannot be said"):
        assistant(text)


@pytest.mark.parametrize(
    ("number", "spoken"),
    [(7, "seven"), (25, "twenty five"), (21.5, "twenty one and a half"), (110, "one hundred ten")],
)
def test_numbers_as_words(number, spoken):
    assert words(number) == spoken


def test_times_of_day_mean_what_is_said():
    import random

    r = random.Random(1)
    known = {
        "3 pm": "15:00",
        "noon": "12:00",
        "midnight": "00:00",
        "12 am": "00:00",
        "half past nine in the morning": "09:30",
        "quarter to one in the afternoon": "12:45",
        "quarter past twelve in the afternoon": "12:15",
    }
    seen = {value.spoken: value.meant for value in (fill("time24", r) for _ in range(20_000))}
    assert {spoken: seen[spoken] for spoken in known} == known


@pytest.fixture
def small(tmp_path):
    source = tmp_path / "published" / "small-q8_0.gguf"
    source.parent.mkdir()
    write_gguf(source)
    assert export(["qwen", str(source), str(tmp_path / "tokens")]) == 0
    return source, tmp_path / "tokens"


@pytest.fixture
def packer(small):
    return Packer(AutoTokenizer.from_pretrained(small[1]))


def test_a_packed_conversation_is_computed_as_if_it_were_alone(small, packer, sessions):
    model = load_base(Source(small[0]), small[1]).float()
    session = next(one for one in sessions if one.tools and len(one.conversations[1]) >= 3)
    both = type(session)(session.system, session.tools, session.conversations[:2])
    alone = type(session)(session.system, session.tools, session.conversations[1:2])
    packed, single = packer.pack(both, 100_000), packer.pack(alone, 100_000)

    def hidden(row):
        with torch.no_grad():
            return model.model(row.ids, attention_mask=row.seen, position_ids=row.positions)[0][0]

    learned = int(single.learned.sum())
    assert learned > 0
    end = hidden(packed)[packed.learned][-learned:]
    torch.testing.assert_close(end, hidden(single)[single.learned], rtol=1e-3, atol=1e-3)
    # And what was said in the other conversation changes nothing.
    own = packed.seen[0, 0, -1]
    assert int((~own).sum()) > 0
    changed = packed.ids.clone()
    changed[0, ~own] = 5
    other = type(packed)(changed, packed.positions, packed.seen, packed.learned)
    torch.testing.assert_close(hidden(other)[own], hidden(packed)[own], rtol=1e-3, atol=1e-3)


def test_only_what_the_assistant_says_is_learned(packer, sessions):
    tokenizer = packer._tokenizer
    session = next(one for one in sessions if one.tools and any(m.tool_calls for m in one.conversations[0]))
    one = type(session)(session.system, session.tools, session.conversations[:1])
    row = packer.pack(one, 100_000)
    learned = tokenizer.decode(row.ids[0][row.learned].tolist(), skip_special_tokens=False)
    rendered = packer._rendered(one, one.conversations[0])
    assert learned == "".join(
        f"{message['content']}<|im_end|>" for message in rendered if message["role"] == "assistant"
    )


def test_the_rows_are_what_the_chat_template_writes(packer, sessions):
    for session in sessions[:10]:
        packer.check(session)
    packer._tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with pytest.raises(ValueError, match="otherwise"):
        packer.check(sessions[0])


def test_a_trained_adapter_is_what_the_converter_merges(small, tmp_path):
    source, tokens = small
    model = load_base(Source(source), tokens).float()
    adapters = adapter.adapt(model, 1, rank=4, alpha=8)
    assert set(adapters) == {
        name
        for name, _ in model.named_modules()
        if name.startswith("model.layers.1.") and name.endswith("_proj")
    }
    trained = {id(one) for one in adapter.parameters(adapters)}
    assert {id(one) for one in model.parameters() if one.requires_grad} == trained
    for one in adapters.values():
        torch.nn.init.normal_(one.up, std=0.2)
    adapter.save(adapters, tmp_path / "adapter", "small", range(1, LAYERS))
    target = tmp_path / "merged"
    assert export(["qwen", str(source), str(target), "--adapter", str(tmp_path / "adapter")]) == 0
    from safetensors.torch import load_file

    merged = load_file(target / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj"
    matrix = merged[f"{name}.weight"].float() * merged[f"{name}.weight_scale"]
    x = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    bias = merged[f"{name}.bias"].float()
    served, learned = functional.linear(x, matrix, bias), adapters[name](x)
    assert functional.cosine_similarity(served, learned).min() > 0.999


def test_training_lowers_the_loss_and_leaves_an_adapter(small, tmp_path, monkeypatch, capsys):
    source, tokens = small
    out = tmp_path / "adapter"
    usual = ["--source", str(source), "--tokenizer", str(tokens), "--rate", "0.02"]
    usual += ["--threads", str(torch.get_num_threads()), "--base", "small"]
    usual += ["--checked", "2", "--rows", "1", "--tokens", "400", "--first-layer", "0"]
    assert train_qwen_voice.main([*usual, "--out", str(out), "--steps", "12"]) == 0
    printed = capsys.readouterr().out
    before = float(re.search(r"loss before: ([\d.]+)", printed)[1])
    after = float(re.search(r"loss of other dialogues ([\d.]+)", printed)[1])
    assert after < before
    assert {path.name for path in out.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert export(["qwen", str(source), str(tmp_path / "merged"), "--adapter", str(out)]) == 0
    # One that goes on with it begins where it ended.
    further = [*usual, "--out", str(tmp_path / "further"), "--steps", "1"]
    assert train_qwen_voice.main([*further, "--begin", str(out)]) == 0
    begun = float(re.search(r"loss before: ([\d.]+)", capsys.readouterr().out)[1])
    assert begun == pytest.approx(after, abs=0.01)
    monkeypatch.setattr(train_qwen_voice, "RANK", 4)
    assert train_qwen_voice.main([*further, "--begin", str(out)]) == 1
    assert "of this shape" in capsys.readouterr().err


def test_a_tokenizer_of_another_model_is_refused(small, tmp_path, capsys):
    source, _ = small
    other = tmp_path / "whole"
    assert export(["qwen", str(source), str(other), "--vocabulary", "whole"]) == 0
    assert train_qwen_voice.main(["--source", str(source), "--tokenizer", str(other), "--steps", "1"]) == 1
    assert "another vocabulary" in capsys.readouterr().err


def test_a_course_of_minutes_follows_the_time_and_not_the_steps():
    course = train_qwen_voice.Course(steps=10, minutes=2)
    assert [course.done(1_000, elapsed) for elapsed in (0, 60, 120, 500)] == [0, 0.5, 1, 1]
    assert train_qwen_voice.Course(steps=10).done(5, 1_000) == 0.5
    rates = [train_qwen_voice.rate(1.0, 100, done) for done in (0, 0.5, 1)]
    assert rates == pytest.approx([1, 0.5, 0.05])


@pytest.mark.parametrize("wrong", [("--steps", "0"), ("--rows", "0"), ("--minutes", "-1")])
def test_a_course_that_would_not_end_is_refused(wrong, capsys):
    assert train_qwen_voice.main([*wrong]) == 1
    assert "at least 1" in capsys.readouterr().err
