from pathlib import Path

import pytest
from simulate.cli import world_of

from parley.protocol import BargeInOptions, ToolRequest, TurnOptions
from parley_testing.scenario import (
    ExpectedCall,
    FillerWord,
    InnerSound,
    Pause,
    RecordingNotFoundError,
    ScenarioError,
    StartCue,
    ToolScript,
    make_table,
    parse_cue,
    parse_sentence,
)
from parley_testing.scenario_file import load_scenarios, parse_call, read_file
from parley_testing.sounds import SOUNDS
from parley_testing.voices import KOKORO


def test_words_and_what_is_between_them():
    sentence = parse_sentence("set [700] a [um][300] timer [cough] now", SOUNDS)
    assert sentence.text == "set a timer now"
    assert sentence.inserts == (
        (1, Pause(700)),
        (2, FillerWord("um")),
        (2, Pause(300)),
        (3, InnerSound("cough")),
    )
    assert sentence.pauses == (700, 300)


def test_a_filler_may_come_first():
    assert parse_sentence("[um] [400] hello", SOUNDS).inserts == ((0, FillerWord("um")), (0, Pause(400)))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "no words"),
        ("[um]", "no words"),
        ("[500] hello", "begins with a pause"),
        ("hello [500]", "ends with a pause"),
        ("hello [0] you", "1 to 10000"),
        ("hello [99999] you", "1 to 10000"),
        ("hello [wibble] you", "neither milliseconds"),
        ("hello [500 you", "not closed"),
    ],
)
def test_invalid_sentence_is_refused(written, why):
    with pytest.raises(ScenarioError, match=why):
        parse_sentence(written, SOUNDS)


def test_cues():
    assert parse_cue("agent+1500") == StartCue("agent", 1500)
    assert parse_cue("idle+0") == StartCue("idle", 0)
    for wrong in ("agent", "agent-5", "later+5", "agent+", "agent+1.5", ""):
        with pytest.raises(ScenarioError, match="is not"):
            parse_cue(wrong)


def request(name: str) -> ToolRequest:
    return ToolRequest(turn=1, call_id="c1", name=name, arguments={"city": "Paris"})


async def test_tools_answer_as_the_scenario_says():
    table = make_table(
        (
            ToolScript(name="get_weather"),
            ToolScript(name="get_time", output={"time": "9:00"}),
            ToolScript(name="set_timer", error="no bell"),
        )
    )
    assert (await table.answer(request("get_weather"))).output == {"temperature": 8, "sky": "foggy"}
    assert (await table.answer(request("get_time"))).output == {"time": "9:00"}
    failed = await table.answer(request("set_timer"))
    assert failed.is_error
    assert failed.output == {"error": "no bell"}


def test_model_gets_the_parameters_of_the_sample():
    tool = ToolScript(name="get_weather", delay_ms=5).definition
    assert tool.description
    assert set(tool.parameters["properties"]) == {"city", "day"}


HEAD = 'title = "A call"\n'


def load(folder: Path, text: str):
    path = folder / "call.toml"
    path.write_text(text)
    return read_file(path)[0]


def test_scenario_with_all_fields_is_read(tmp_path):
    (tmp_path / "hello.wav").write_bytes(b"")
    scenario = load(
        tmp_path,
        """
        title = "A call"
        tags = ["pauses"]
        tools = ["get_time"]

        [session]
        turn = { eagerness = "patient" }
        barge_in = { min_words = 2 }

        [caller]
        voice = "man-1"
        rate = 0.9
        background = { sound = "street", snr_db = 12 }

        [[tool]]
        name = "get_price"
        description = "Get a price."
        parameters = { type = "object", properties = { item = { type = "string" } } }
        output = { euro = 3 }
        delay_ms = 50

        [[exchange]]
        say = "What's the [600] weather in Paris"
        [exchange.expect]
        tools = ["get_weather(city='Paris')"]
        answer = ["foggy", ["cold", "8"]]
        heard = ["Paris"]

        [[exchange]]
        say = "stop"
        at = "agent+1500"
        voice = "woman-2"

        [[exchange]]
        backchannel = "mhm"
        at = "agent+2000"

        [[exchange]]
        sound = "cough"
        at = "caller+300"
        gain_db = -6

        [[exchange]]
        file = "hello.wav"
        words = "hello there"
        part = [100, 900]
        cuts = [[300, 500]]
        expect = { answered = "maybe" }

        [[exchange]]
        dtmf = "12#"

        [[exchange]]
        quiet_ms = 3000
        """,
    )
    assert scenario.start.turn == TurnOptions(eagerness="patient")
    assert scenario.start.barge_in == BargeInOptions(min_words=2)
    assert scenario.caller.background is not None
    assert scenario.caller.background.snr_db == 12
    assert [tool.name for tool in make_table(scenario.tools).definitions] == ["get_price", "get_time"]
    weather, stop, mhm, cough, hello, keys, quiet = scenario.exchanges
    assert weather.words == "what's the weather in paris"
    assert weather.pauses == (600,)
    assert weather.heard == (("Paris",),)
    assert weather.answer == (("foggy",), ("cold", "8"))
    assert (weather.voice, weather.rate) == ("man-1", 0.9)
    assert weather.answered is True
    assert not weather.interrupts
    assert stop.interrupts
    assert stop.voice == "woman-2"
    assert (mhm.answered, mhm.interrupts) == (False, False)
    assert (cough.answered, cough.gain_db, cough.cue.after) == (False, -6, "caller")
    assert (hello.answered, hello.cuts, hello.pauses) == ("maybe", ((300, 500),), (500,))
    assert hello.part == (100, 900)
    assert keys.is_turn
    assert not keys.is_spoken
    assert quiet.quiet_ms == 3000


def test_the_sample_tools_are_there_unless_others_are_named(tmp_path):
    scenario = load(tmp_path, HEAD + '[[exchange]]\nsay = "hello"\n')
    assert {tool.name for tool in scenario.tools} == {"get_weather", "get_time", "set_timer"}
    assert load(tmp_path, HEAD + 'tools = []\n[[exchange]]\nsay = "hello"\n').tools == ()


def test_with_an_echo_the_agent_speaks_at_the_microphones_rate(tmp_path):
    echo = "[caller]\necho = { delay_ms = 100 }\n[[exchange]]\nsay = 'hello'\n"
    assert load(tmp_path, HEAD + echo).start.output_sample_rate == 16_000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[exchange]]\nsay = "hello"\n', "title"),
        (HEAD, "exchange"),
        (HEAD + "exchange = []\n", "at least one"),
        (HEAD + '[[exchange]]\nsay = "a"\nsound = "cough"\n', "exchange 1: exactly one of .* not 2"),
        (HEAD + '[[exchange]]\nat = "idle+5"\n', "exactly one"),
        (HEAD + '[[exchange]]\nsay = "a"\nspeed = 3\n', "speed"),
        (HEAD + '[[exchange]]\nsay = "a"\nat = "agent+5"\n', "nothing comes before"),
        (HEAD + '[[exchange]]\nsay = "a"\nat = "soon"\n', "is not idle"),
        (HEAD + '[[exchange]]\nsound = "gong"\n', "no sound 'gong'; there are"),
        (HEAD + '[[exchange]]\nfile = "lost.wav"\n', "no such file"),
        (HEAD + '[[exchange]]\nsay = "a"\nwords = "a"\n', "belong to a file"),
        (HEAD + '[[exchange]]\nsay = "a"\npart = [0, 5]\n', "belong to a file"),
        (HEAD + '[[exchange]]\nfile = "a.wav"\npart = [5, 5]\n', "no part of a file"),
        (HEAD + '[[exchange]]\nsay = "a"\nexpect = { answer = [[]] }\n', "nothing that could be looked"),
        (HEAD + '[[exchange]]\nsay = "a"\nexpect = { answer = ["?"] }\n', "nothing that could be looked"),
        (HEAD + "[[exchange]]\nquiet_ms = 0\n", "quiet_ms"),
        (HEAD + '[[exchange]]\nsay = "a"\nbackground = { sound = "cough" }\n', "no background"),
        (HEAD + '[[exchange]]\nsound = "cough"\nexpect = { answer = ["yes"] }\n', "no turn"),
        (HEAD + '[[exchange]]\nsay = "a"\nexpect = { tools = ["get_time"] }\n', "is not a call"),
        (HEAD + '[session]\nspeed = 3\n[[exchange]]\nsay = "a"\n', "speed"),
        (HEAD + '[session]\nturn = { eagerness = "brisk" }\n[[exchange]]\nsay = "a"\n', "brisk"),
        (HEAD + '[session]\ntools = []\n[[exchange]]\nsay = "a"\n', "not in \\[session\\]"),
        (HEAD + 'tools = ["get_price"]\n[[exchange]]\nsay = "a"\n', "no tool 'get_price'"),
        (HEAD + '[[tool]]\nname = "get_price"\n[[exchange]]\nsay = "a"\n', "needs a description"),
        (HEAD + '[caller]\necho = { delay_ms = 10 }\n[[exchange]]\nsay = "a"\n', "at least 50 ms"),
        ("title = ", "call.toml"),
    ],
)
def test_mistake_in_a_scenario_is_reported_with_its_place(tmp_path, text, why):
    with pytest.raises(ScenarioError, match=why) as caught:
        load(tmp_path, text)
    assert "call.toml" in str(caught.value)


def test_a_recording_may_lie_where_the_weights_are(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path / "weights"))
    text = HEAD + '[[exchange]]\nfile = "models:recordings/a.wav"\n'
    with pytest.raises(ScenarioError, match=r"weights/recordings/a.wav: no such file; .*MODEL=recordings"):
        load(tmp_path, text)
    (tmp_path / "weights" / "recordings").mkdir(parents=True)
    file = tmp_path / "weights" / "recordings" / "a.wav"
    file.write_bytes(b"")
    assert load(tmp_path, text).exchanges[0].file == file.resolve()


def test_scenarios_whose_recordings_have_not_been_brought_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path / "weights"))
    folder = tmp_path / "scenarios"
    folder.mkdir()
    load(folder, HEAD + '[[exchange]]\nsay = "a"\n')
    (folder / "lost.toml").write_text(HEAD + '[[exchange]]\nfile = "models:recordings/a.wav"\n')
    left_out = []
    assert [one.name for one in load_scenarios([folder], left_out.append)] == ["call"]
    assert [type(error) for error in left_out] == [RecordingNotFoundError]
    for paths, on_left_out in (([folder], None), ([folder / "lost.toml"], left_out.append)):
        with pytest.raises(RecordingNotFoundError, match=r"lost.toml:2: exchange 1: .*a.wav: no such file"):
            load_scenarios(paths, on_left_out)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ScenarioError, match="No such file"):
        read_file(tmp_path / "lost.toml")[0]
    with pytest.raises(ScenarioError, match="no scenarios in"):
        load_scenarios([tmp_path])


def test_expected_calls():
    assert parse_call("set_timer(minutes=10, label='tea')") == ExpectedCall(
        "set_timer", {"minutes": 10, "label": "tea"}
    )
    assert parse_call("now()") == ExpectedCall("now", {})
    for wrong in ("now", "now(3)", "now(a=b)", "now(", "a.b(c=1)", "__import__('os')"):
        with pytest.raises(ScenarioError, match="is not a call"):
            parse_call(wrong)


def test_the_projects_own_scenarios():
    scenarios = load_scenarios([world_of("tiny").scenarios])
    assert len(scenarios) >= 20
    assert sum(len(one.exchanges) for one in scenarios) >= 200
    pauses = [pause for one in scenarios for exchange in one.exchanges for pause in exchange.pauses]
    assert min(pauses) <= 300
    assert max(pauses) >= 1_500


def test_the_scenarios_of_open_models(tmp_path, monkeypatch):
    (tmp_path / "test-recordings").mkdir()
    for name in ("two_cities.wav", "beckett.wav"):
        (tmp_path / "test-recordings" / name).write_bytes(b"")
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path))
    scenarios = load_scenarios([world_of("open").scenarios])
    exchanges = [exchange for one in scenarios for exchange in one.exchanges]
    assert len(exchanges) >= 100
    asked = [exchange for exchange in exchanges if exchange.answered is True]
    assert sum(bool(exchange.answer or exchange.tools) for exchange in asked) >= 80
    assert {exchange.kind for exchange in exchanges} == {
        "say", "file", "backchannel", "sound", "text", "quiet"
    }  # fmt: skip
    voices = {exchange.voice for exchange in exchanges}
    assert voices <= set(KOKORO.voices)
    assert len(voices) == len(KOKORO.voices)
