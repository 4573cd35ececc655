"""``/v1/calls``: recorded calls, which only the key that held them and administrators can read and delete."""

import asyncio
import io
import json
import shutil
import threading
from datetime import timedelta

import msgspec
import pytest
from call_infos import NOW, info
from fake_agent import polite
from listening_gateway import until

from parley import protocol
from parley.calls.folder import AUDIO, EVENTS, CallFolder
from parley_gateway.apis import recorded_calls
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.keys import new_key
from parley_gateway.security.principal import Principal
from parley_gateway.serving import check_exposure
from parley_gateway.settings import load_settings

PATH = "/v1/calls"
EVENT_LINES = [
    {"at_ms": 0, "event": {"type": "response_done", "response_id": "r1", "text": "Good evening."}},
    {"at_ms": 900, "event": {"type": "transcript", "utterance": 1, "text": "A table, please."}},
    {
        "at_ms": 950,
        "event": {"type": "tool_run", "name": "find", "arguments": {"n": 2}, "output": {"ok": True}},
    },
    {"at_ms": 1_000, "event": {"type": "interrupted", "response_id": "r2", "spoken_text": "At eight"}},
    {"at_ms": 1_050, "event": {"type": "interrupted", "response_id": "r3", "spoken_text": ""}},
    {"at_ms": 1_100, "event": {"type": "metrics", "turn": 1, "e2e_ms": 640.4}},
]
SOUND = bytes(range(256)) * 2_048
KEYS = {
    "anna": new_key("anna", ["agent", "calls"]),
    "ben": new_key("ben", ["agent", "calls"]),
    "clinic": new_key("clinic", ["agent", "calls"], agents=["clinic"]),
    "page": new_key("page", ["agent"]),
    "boss": new_key("boss", ["admin"]),
}
HEADERS = {name: {"Authorization": f"Bearer {key.secret}"} for name, key in KEYS.items()}


def owner_of(who):
    return Principal(id=KEYS[who].line.split(" ")[0], scopes=frozenset()).call_owner


class Recorded:
    """A folder of calls."""

    def __init__(self, path):
        self.folder = CallFolder(path / "calls")

    def add(self, who="", *, hours=0, agent="restaurant", sound=SOUND, lines=EVENT_LINES, **fields):
        owner = owner_of(who) if who else ""
        begun = self.folder.begin(info(NOW + timedelta(hours=hours), agent, owner=owner, **fields))
        files = self.folder.path / begun.id
        (files / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
        if sound is not None:
            (files / AUDIO).write_bytes(sound)
        self.folder.finish(msgspec.structs.replace(begun, ended=True, duration_ms=1_200, turns=1))
        return begun.id


@pytest.fixture
def recorded(tmp_path):
    return Recorded(tmp_path)


@pytest.fixture
async def guarded(gateway, recorded, tmp_path):
    """A gateway with these keys, before an agent that writes down how its calls begin."""
    keys = tmp_path / "keys.toml"
    keys.write_text("\n".join(key.line for key in KEYS.values()) + "\n")
    started = []

    async def noting(stream):
        started.append(stream)
        await polite(stream)

    one = await gateway(
        noting, calls={"folder": str(recorded.folder.path)}, security={"keys_file": str(keys)}
    )
    one.started = started
    return one


async def ids(one, who, **options):
    answer = await one.http.get(PATH, headers=HEADERS[who], params=options)
    assert answer.status_code == 200, answer.text
    return [call["id"] for call in answer.json()["calls"]]


def code_of(answer):
    return answer.status_code, answer.json()["error"]["code"]


async def test_list_has_own_calls_and_an_administrator_gets_all(guarded, recorded):
    anna, ben = recorded.add("anna"), recorded.add("ben", hours=1)
    telephone = recorded.add(hours=2)
    assert await ids(guarded, "anna") == [anna]
    assert await ids(guarded, "ben") == [ben]
    assert await ids(guarded, "boss") == [telephone, ben, anna]
    assert "owner" not in (await guarded.http.get(PATH, headers=HEADERS["boss"])).text


class Store:
    """In place of a bucket: another folder."""

    def __init__(self, path):
        self.path = path

    def upload(self, folder):
        shutil.copytree(folder, self.path / folder.name)

    def download(self, entry, folder, name):
        shutil.copy(self.path / entry / name, folder)

    def open(self, entry, name):
        return StoredFile((self.path / entry / name).read_bytes())

    def names(self, entry):
        return [*(self.path / entry).glob("*")]


class StoredFile(io.BytesIO):
    """Its size is known."""

    @property
    def size(self):
        return len(self.getbuffer())


@pytest.fixture
def stored(recorded, tmp_path, monkeypatch):
    store = recorded.folder.store = Store(tmp_path / "bucket")
    monkeypatch.setattr(recorded_calls, "open_calls", lambda path: CallFolder(path, store))


async def test_call_is_read_whose_files_are_in_an_object_store(stored, guarded, recorded):
    call = recorded.add("anna")
    recorded.folder.upload_finished()
    assert not (recorded.folder.path / call).exists()
    read = await guarded.http.get(f"{PATH}/{call}", headers=HEADERS["anna"])
    assert [line["text"] for line in read.json()["lines"]][:1] == ["agent: Good evening."]
    audio = await guarded.http.get(f"{PATH}/{call}/audio", headers=HEADERS["anna"])
    assert audio.content == SOUND
    assert code_of(await guarded.http.get(f"{PATH}/{call}", headers=HEADERS["ben"]))[0] == 404


@pytest.mark.parametrize("path", ["", "/audio"])
async def test_call_whose_files_are_with_another_server_is_not_said_to_be_none(
    stored, guarded, recorded, path
):
    call = recorded.add("anna")
    shutil.rmtree(recorded.folder.path / call)
    answer = await guarded.http.get(f"{PATH}/{call}{path}", headers=HEADERS["anna"])
    assert code_of(answer) == (404, "call_not_found")
    assert "cannot be read here, or not yet" in answer.text


async def test_list_does_not_wait_for_files_and_callers_who_leave_free_their_places(
    gateway, recorded, monkeypatch
):
    call, goes_on = recorded.add(), threading.Event()

    def hang(*_):
        assert goes_on.wait(30)

    monkeypatch.setattr(recorded_calls.RecordedCalls, "_read", hang)
    one = await gateway(calls={"folder": str(recorded.folder.path)})
    places = one.gateway.metrics.stages.labels("calls")._value
    asking = [asyncio.create_task(one.http.get(f"{PATH}/{call}")) for _ in range(6)]
    try:
        await until(lambda: places.get() == len(asking))
        assert len((await one.http.get(PATH)).json()["calls"]) == 1
        for task in asking:
            task.cancel()
        await until(lambda: places.get() == 0)
    finally:
        goes_on.set()
        await asyncio.wait(asking)


async def test_file_is_closed_in_a_thread_of_files(stored, guarded, recorded, monkeypatch):
    call, threads = recorded.add("anna"), []
    recorded.folder.upload_finished()
    monkeypatch.setattr(StoredFile, "close", lambda _: threads.append(threading.current_thread().name))
    await guarded.http.get(f"{PATH}/{call}/audio", headers=HEADERS["anna"])
    await until(lambda: threads)
    assert threads[0].startswith("files of calls")


async def test_gateway_does_not_start_with_a_store_that_is_none(gateway, recorded, monkeypatch):
    monkeypatch.setenv("PARLEY_VOICE_AGENT_CALLS_STORE", "ftp://here")
    with pytest.raises(GatewaySettingsError, match="s3://BUCKET/PREFIX"):
        await gateway(polite, calls={"folder": str(recorded.folder.path)})


async def test_gateway_does_not_start_with_a_shared_list_without_a_store(gateway, recorded, monkeypatch):
    monkeypatch.setenv("PARLEY_VOICE_AGENT_CALLS_LIST", "postgresql://parley@db/calls")
    with pytest.raises(GatewaySettingsError, match="calls_list needs calls_store"):
        await gateway(polite, calls={"folder": str(recorded.folder.path)})


async def test_owner_of_a_call_is_that_of_its_key_whatever_the_client_sends(guarded):
    refused = await guarded.http.post(
        "/v1/sessions", json={"owner": owner_of("ben")}, headers=HEADERS["anna"]
    )
    assert code_of(refused) == (400, "invalid_message")
    principal = Principal(id=KEYS["anna"].line.split(" ")[0], scopes=frozenset({"agent"}))
    start = protocol.Start(owner=owner_of("ben"))
    async with guarded.gateway.calls.open(start, principal=principal, api="test"):
        pass
    (stream,) = guarded.started
    assert protocol.decode_start(stream.seen[0].message).owner == owner_of("anna")


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "/audio"), ("DELETE", "")])
async def test_call_of_another_key_is_answered_like_one_that_does_not_exist(guarded, recorded, method, path):
    call = recorded.add("anna")
    foreign = await guarded.http.request(method, f"{PATH}/{call}{path}", headers=HEADERS["ben"])
    unknown = await guarded.http.request(
        method, f"{PATH}/20260504-120000-0123456789abcdef{path}", headers=HEADERS["ben"]
    )
    assert code_of(foreign) == (404, "call_not_found")
    assert foreign.content == unknown.content
    assert str(recorded.folder.path) not in foreign.text
    assert await ids(guarded, "anna") == [call]


@pytest.mark.parametrize("name", ["..", "%2e%2e", "calls.sqlite3", "..%2fcalls.sqlite3", "x" * 300, "a%00b"])
async def test_name_of_a_file_is_no_id(guarded, recorded, name):
    recorded.add("anna")
    for path in (f"{PATH}/{name}", f"{PATH}/{name}/audio"):
        answer = await guarded.http.get(path, headers=HEADERS["boss"])
        assert answer.status_code == 404


async def test_key_of_some_agents_sees_calls_of_no_others(guarded, recorded):
    call = recorded.add("clinic")
    allowed = recorded.add("clinic", agent="clinic", hours=1)
    assert await ids(guarded, "clinic") == [allowed]
    answer = await guarded.http.get(f"{PATH}/{call}", headers=HEADERS["clinic"])
    assert code_of(answer) == (404, "call_not_found")


async def test_key_and_token_without_the_scope_are_refused(guarded, recorded):
    recorded.add("anna")
    assert code_of(await guarded.http.get(PATH, headers=HEADERS["page"])) == (403, "forbidden")
    assert code_of(await guarded.http.get(PATH)) == (401, "unauthorized")
    issued = await guarded.http.post("/v1/tokens", headers=HEADERS["anna"])
    browser = {"Authorization": f"Bearer {issued.json()['token']}"}
    assert code_of(await guarded.http.get(PATH, headers=browser)) == (403, "forbidden")
    listed = await guarded.http.get("/v1/agents", headers=browser)
    assert listed.json()["calls"] is False
    assert (await guarded.http.get("/v1/agents", headers=HEADERS["anna"])).json()["calls"] is True


async def test_pages_of_the_list_have_every_call_once(guarded, recorded):
    calls = [recorded.add("anna", hours=hours // 2) for hours in range(5)]
    shown, before = [], ""
    for _ in range(3):
        answer = await guarded.http.get(PATH, headers=HEADERS["anna"], params={"limit": 2, "before": before})
        shown += [call["id"] for call in answer.json()["calls"]]
        before = answer.json()["next"]
    assert before is None
    assert sorted(shown) == sorted(calls)
    assert [name[:15] for name in shown] == sorted((name[:15] for name in calls), reverse=True)
    assert sorted(await ids(guarded, "anna", before="2026-05-04T13:00")) == sorted(calls[:2])
    assert await ids(guarded, "anna", agent="clinic") == []


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": 201}, {"limit": "many"}, {"before": "x'--"}, {"agent": "a" * 200}]
)
async def test_options_that_cannot_be_used_are_refused(guarded, options):
    answer = await guarded.http.get(PATH, headers=HEADERS["anna"], params=options)
    assert code_of(answer) == (400, "invalid_message")


async def test_call_has_words_of_both_sides_tools_and_figures(guarded, recorded):
    call = recorded.add("anna", collected={"name": "Ann"})
    answer = await guarded.http.get(f"{PATH}/{call}", headers=HEADERS["anna"])
    shown = answer.json()
    assert (shown["call"]["id"], shown["call"]["collected"], shown["call"]["turns"]) == (
        call,
        {"name": "Ann"},
        1,
    )
    assert [(line["kind"], line.get("words")) for line in shown["lines"]] == [
        ("agent", "Good evening."),
        ("user", "A table, please."),
        ("tool", None),
        ("agent", "At eight"),
    ]
    tool, cut = shown["lines"][2:]
    assert (tool["tool"], tool["arguments"], tool["output"]) == ("find", {"n": 2}, {"ok": True})
    assert cut["is_interrupted"]
    assert (shown["median_answer_ms"], shown["is_cut"]) == (640, False)


async def test_events_beyond_the_limit_are_left_out(guarded, recorded, monkeypatch):
    monkeypatch.setattr("parley_gateway.apis.recorded_calls.MAX_EVENTS", 100)
    call = recorded.add("anna")
    shown = (await guarded.http.get(f"{PATH}/{call}", headers=HEADERS["anna"])).json()
    assert shown["is_cut"]
    assert [line["words"] for line in shown["lines"]] == ["Good evening.", "A table, please."]


async def test_audio_is_the_file(guarded, recorded):
    call = recorded.add("anna")
    answer = await guarded.http.get(f"{PATH}/{call}/audio", headers=HEADERS["anna"])
    assert (answer.status_code, answer.content) == (200, SOUND)
    assert (answer.headers["content-type"], answer.headers["cache-control"]) == ("audio/wav", "no-store")


@pytest.mark.parametrize(
    ("wanted", "begin", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=1000-1999", 1_000, 2_000),
        ("bytes=300000-", 300_000, len(SOUND)),
        ("bytes=-100", len(SOUND) - 100, len(SOUND)),
        ("bytes=500000-99999999", 500_000, len(SOUND)),
    ],
)
async def test_range_of_the_audio_is_sent(guarded, recorded, wanted, begin, end):
    call = recorded.add("anna")
    answer = await guarded.http.get(f"{PATH}/{call}/audio", headers=HEADERS["anna"] | {"Range": wanted})
    assert (answer.status_code, answer.content) == (206, SOUND[begin:end])
    assert answer.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(SOUND)}"


@pytest.mark.parametrize("wanted", ["", "lines=0-1", "bytes=-", "bytes=5-2", "bytes=0-1,3-4", "bytes=x-y"])
async def test_what_is_no_single_range_gets_the_whole_file(guarded, recorded, wanted):
    call = recorded.add("anna")
    answer = await guarded.http.get(f"{PATH}/{call}/audio", headers=HEADERS["anna"] | {"Range": wanted})
    assert (answer.status_code, len(answer.content)) == (200, len(SOUND))


@pytest.mark.parametrize("wanted", [f"bytes={len(SOUND)}-", "bytes=-0"])
async def test_range_behind_the_end_is_refused(guarded, recorded, wanted):
    call = recorded.add("anna")
    answer = await guarded.http.get(f"{PATH}/{call}/audio", headers=HEADERS["anna"] | {"Range": wanted})
    assert code_of(answer) == (416, "range_not_satisfiable")
    assert answer.headers["content-range"] == f"bytes */{len(SOUND)}"


async def test_audio_that_was_not_kept_is_not_found(guarded, recorded):
    call = recorded.add("anna", sound=None)
    answer = await guarded.http.get(f"{PATH}/{call}/audio", headers=HEADERS["anna"])
    assert code_of(answer) == (404, "not_found")


async def test_deleted_call_is_gone_and_in_the_audit_log(guarded, recorded, caplog):
    call, other = recorded.add("anna"), recorded.add("anna", hours=1)
    with caplog.at_level("INFO", "parley.audit"):
        answer = await guarded.http.delete(f"{PATH}/{call}", headers=HEADERS["anna"])
    assert answer.status_code == 204
    assert await ids(guarded, "anna") == [other]
    assert not (recorded.folder.path / call).exists()
    (line,) = [
        json.loads(record.getMessage())
        for record in caplog.records
        if "call_deleted" in record.msg % record.args
    ]
    assert (line["who"], line["call"]) == (KEYS["anna"].line.split(" ")[0], call)


async def test_folder_that_cannot_be_read_is_a_failure_that_may_pass(guarded, recorded):
    recorded.add("anna")
    (recorded.folder.path / "calls.sqlite3").write_bytes(b"no list" * 1_000)
    answer = await guarded.http.get(PATH, headers=HEADERS["anna"])
    assert code_of(answer) == (503, "calls_unavailable")
    assert answer.json()["error"]["retryable"]
    assert str(recorded.folder.path) not in answer.text


async def test_gateway_of_this_machine_without_keys_shows_all_calls(gateway, recorded):
    calls = [recorded.add("anna"), recorded.add(hours=1)]
    one = await gateway(calls={"folder": str(recorded.folder.path)})
    listed = await one.http.get(PATH)
    assert [call["id"] for call in listed.json()["calls"]] == calls[::-1]


async def test_gateway_without_a_folder_has_no_recorded_calls(gateway):
    one = await gateway()
    assert code_of(await one.http.get(PATH)) == (404, "not_found")
    assert (await one.http.get("/v1/agents")).json()["calls"] is False


def test_recorded_calls_are_not_shown_to_everybody():
    security = {"insecure_allow_anonymous": True}
    flags = {"listen": {"host": ""}, "security": security, "calls": {"folder": "calls"}}
    with pytest.raises(GatewaySettingsError, match=r"calls\.folder"):
        check_exposure(load_settings(flags=flags), authenticated=False)
