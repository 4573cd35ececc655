"""Files of agents: what they define, and what is said about wrong ones."""

from __future__ import annotations

import msgspec
import pytest

from parley.agents import toml_lines
from parley.agents.definition import SHARED_FIELDS, AgentDefinition
from parley.agents.reader import MAX_FILE, AgentFileError, read_agent
from parley.agents.toml_lines import find_line
from parley.protocol import SilenceOptions, Start, TurnOptions, VadOptions
from parley.turns.settings import choose_settings

RESTAURANT = '''# A restaurant.
instructions = """
You take bookings.
voice = "not a key"
"""
greeting = "Bella Vista, good evening."
voice = "high"
language = "de"
phrases = [
    "Bella Vista",  # the name
    "Tiramisu",
]
turn.eagerness = "patient"

[silence]
prompt_after_ms = 8000

[page]
title = "Bella Vista"
colour = "#0a7d5a"

[telephone]
numbers = ["+493012345678"]
'''


@pytest.fixture
def write(tmp_path):
    folder = tmp_path / "agents"
    folder.mkdir()

    def write(text: str | bytes, name: str = "restaurant"):
        path = folder / f"{name}.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_file_has_the_options_of_its_sessions(write):
    file = read_agent(write(RESTAURANT))
    start = file.definition.complete(Start(agent="restaurant"))
    assert file.name == "restaurant"
    assert start == Start(
        agent="restaurant",
        system_prompt='You take bookings.\nvoice = "not a key"\n',
        greeting="Bella Vista, good evening.",
        voice="high",
        language="de",
        phrases=["Bella Vista", "Tiramisu"],
        turn=TurnOptions(eagerness="patient"),
        silence=SilenceOptions(prompt_after_ms=8000),
    )
    summary = file.definition.summary("restaurant")
    assert (summary.name, summary.title, summary.colour) == ("restaurant", "Bella Vista", "#0a7d5a")
    assert (summary.language, summary.voice, summary.numbers) == ("de", "high", ["+493012345678"])


def test_numbers_of_turns_do_not_count_where_every_pause_ends_one(write):
    agent = (
        "instructions = 'Talk.'\nturn.eagerness = 'patient'\nturn.limit_ms = 4000\nturn.one_caller = true\n"
    )
    given = Start(vad=VadOptions(silence_ms=300), turn=TurnOptions(eagerness="off"))
    turn = read_agent(write(agent)).definition.complete(given).turn
    assert choose_settings(turn, "normal") is None
    assert turn.one_caller


def test_options_of_the_client_win_part_by_part(write):
    given = Start(
        system_prompt="You are brief.",
        greeting="",
        turn=TurnOptions(detection="manual"),
        silence=SilenceOptions(hang_up_after_ms=60_000),
    )
    start = read_agent(write(RESTAURANT)).definition.complete(given)
    assert (start.system_prompt, start.greeting) == ("You are brief.", "")
    assert start.turn == TurnOptions(eagerness="patient", detection="manual")
    assert start.silence == SilenceOptions(prompt_after_ms=8000, hang_up_after_ms=60_000)
    assert start.voice == "high"


def test_fields_have_the_types_and_defaults_of_start():
    defined = {field.name: field for field in msgspec.structs.fields(AgentDefinition)}
    options = {field.name: field for field in msgspec.structs.fields(Start)}
    assert {"greeting", "voice", "turn", "sampling"} <= set(SHARED_FIELDS)
    for name in SHARED_FIELDS:
        assert defined[name].type == options[name].type
        assert defined[name].default == options[name].default


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('greeting = "x"', 1, "missing required field `instructions`"),
        ('instructions = "x"\n\nvoise = "y"', 3, "unknown field 'voise' (did you mean voice?)"),
        (
            'instructions = "x"\n[turn]\n# why\negerness = "off"',
            4,
            "unknown field 'egerness' (did you mean ea",
        ),
        ('instructions = "x"\n"a.b[0]" = 1', 2, "unknown field 'a.b[0]'"),
        ('instructions = "x"\nvoice = 5', 2, "voice: Expected `str | null`, got `int`"),
        ('instructions = "x"\nturn = { eagerness = "slow" }', 2, "(allowed: eager, normal, off, patient"),
        (
            'instructions = "x"\n[silence]\nprompts = [\n  "a",\n  5,\n]',
            3,
            "silence.prompts[1]: Expected `str`",
        ),
        ('instructions = "x"\n[telephone]\nnumbers = ["030123"]', 3, "telephone.numbers[0]: Expected `str`"),
        (
            'instructions = "x"\n[[ending.transfers]]\nname = "desk"\nto = "0800 123"',
            4,
            "ending.transfers[0].to: ",
        ),
        ('instructions = "x"\n[page]\n\ncolour = "green"', 4, "page.colour: "),
        ('instructions = "x"\nmodel.context_tokens = ' + "9" * 27, 2, "Expected `int` <= 16777216"),
        ('instructions = "x"\nvoice = \n', 2, "Invalid value"),
        ('instructions = "x"\nvoice = "y"\nvoice = "z"\n', 3, "Cannot overwrite a value"),
        ('instructions = "x"\nphrases = [', 2, "(at end of document)"),
        (b'instructions = "x"\nvoice = "\xff"', 2, "not UTF-8"),
        ('instructions = "x"\nphrase_weight = ' + "9" * 5_000, 1, "a number is too long"),
        ('instructions = "x"\nphrases = ' + "[" * 5_000 + "]" * 5_000, 1, "nested too deep"),
        ('instructions = "x"\nphrases = ' + "{a=" * 5_000 + "1" + "}" * 5_000, 1, "nested too deep"),
        ('instructions = "' + "x" * MAX_FILE + '"', 1, f"more than {MAX_FILE} bytes"),
        ('instructions = """\n"""\n' + ".".join("a" * 5_000) + " = 1", 3, "a key has more than 32 parts"),
        ('instructions = "x"\n[[' + " . ".join(["'a'"] * 33) + "]]", 2, "a key has more than 32 parts"),
    ],
)
def test_wrong_file_names_line_and_nearest_name(write, text, line, words):
    with pytest.raises(AgentFileError) as refused:
        read_agent(write(text))
    assert str(refused.value).startswith(f"agents/restaurant.toml:{line}: ")
    assert words in str(refused.value)


def test_key_of_32_parts_with_dots_in_quotes_is_read(write):
    key = ".".join(['"a.b"'] * 32)
    with pytest.raises(AgentFileError, match=r"unknown field 'a\.b'"):
        read_agent(write(f'instructions = "x"\n{key} = 1'))


@pytest.mark.parametrize("text", ['"""' + '\n\\"""' * 500, '"' + '\\"' * 500, "'''" + "'\n" * 500])
def test_string_that_does_not_end_is_one_token(text):
    assert [match[0] for match in toml_lines._TOKEN.finditer(text)] == [text]
    assert toml_lines.find_long_key(f"a = {text}") is None


@pytest.mark.parametrize("name", ["Restaurant", "-a", "a b", "ä", "a" * 64])
def test_name_that_no_client_can_send_is_refused(write, name):
    with pytest.raises(AgentFileError, match=r"an agent's name has 1 to 63 of a-z 0-9 _ -"):
        read_agent(write(RESTAURANT, name))


def test_name_that_is_not_utf8_is_shown(write):
    with pytest.raises(AgentFileError, match=r"^agents/caf\\udce9\.toml:1: an agent's name has"):
        read_agent(write(RESTAURANT, "caf\udce9"))


def test_file_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(AgentFileError, match="cannot be read: No such file"):
        read_agent(tmp_path / "restaurant.toml")


TOML = """a.b = 1
"c.d" = '''
e = 2
''' # e = 3
[f]
g = { h = [
  1,
  { i = 2 } ] }
[[j]]
k = 1
[[ j ]]   # again
[j.l."m n"]
o = "a = [ # \\" "
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a",), 1),
        (("a", "b"), 1),
        (("c.d",), 2),
        (("e",), 1),
        (("f",), 5),
        (("f", "g"), 6),
        (("f", "g", "h", 1, "i"), 6),
        (("j", 0), 9),
        (("j", 0, "k"), 10),
        (("j", 1), 11),
        (("j", 1, "l", "m n", "o"), 13),
        (("j", 1, "nothing"), 11),
    ],
)
def test_line_of_a_value_is_that_of_its_key(path, line):
    assert find_line(TOML, path) == line
    assert find_line(TOML.replace("\n", "\r\n"), path) == line
