"""``/v1/voices``: a caller's own voices, with consent, which no other caller can list, use or delete."""

import json

import pytest
from fake_models import Voice

from parley_gateway.security.keys import new_key

PATH = "/v1/voices"
SCOPES = ["agent", "speak", "voices"]
FIELDS = {"name": "Anna", "consent": "I agree. Anna Smith, 2 May 2025", "languages": "en"}


@pytest.fixture
async def gateway(start, tmp_path):
    """With keys of ``anna`` and ``ben``, and one without the scope; ``default`` came with the weights."""
    made = {name: new_key(name, SCOPES) for name in ("anna", "ben")}
    made["reader"] = new_key("reader", ["speak"])
    keys = tmp_path / "keys.toml"
    keys.write_text("\n".join(key.line for key in made.values()) + "\n")
    one = await start(
        security={"keys_file": str(keys)}, stages={"voices_per_key": 2, "synthesizer": "chatterbox"}
    )
    one.headers = {name: {"Authorization": f"Bearer {key.secret}"} for name, key in made.items()}
    one.models.add_voice("default", built_in=True)
    return one


async def enroll(gateway, who="anna", recording=b"RIFF....", **fields):
    given = {name: value for name, value in (FIELDS | fields).items() if value is not None}
    files = {} if recording is None else {"file": ("anna.wav", recording)}
    # Without a file httpx would send no form.
    parts = [(name, (None, value)) for name, value in given.items()] + list(files.items())
    return await gateway.http.post(PATH, files=parts, headers=gateway.headers[who])


def listed(answer):
    return {voice["id"]: voice["own"] for voice in answer.json()["voices"]}


async def test_voice_of_a_form_is_stored_with_the_consent(gateway):
    answer = await enroll(gateway)
    assert answer.status_code == 201
    voice = answer.json()
    assert (voice["name"], voice["own"], voice["languages"]) == ("Anna", True, ["en"])
    assert gateway.models.voices[voice["id"]].details.consent == FIELDS["consent"]
    assert gateway.models.recordings == [b"RIFF...."]
    again = await enroll(gateway)
    assert again.json()["id"] == voice["id"], "the same request makes the same voice"
    described = await gateway.http.get(f"{PATH}/{voice['id']}", headers=gateway.headers["anna"])
    assert described.json()["consent"] == FIELDS["consent"]


async def test_voice_of_another_key_is_neither_listed_nor_described_nor_deleted(gateway):
    voice = (await enroll(gateway)).json()["id"]
    mine = await gateway.http.get(PATH, headers=gateway.headers["anna"])
    assert listed(mine) == {"default": False, voice: True}
    assert "consent" not in mine.text
    assert listed(await gateway.http.get(PATH, headers=gateway.headers["ben"])) == {"default": False}
    for method in ("GET", "DELETE"):
        answer = await gateway.http.request(method, f"{PATH}/{voice}", headers=gateway.headers["ben"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_voice")
    assert voice in gateway.models.voices


async def test_delete_of_own_voice_succeeds_and_of_shared_voice_is_refused(gateway):
    voice = (await enroll(gateway)).json()["id"]
    shared = await gateway.http.delete(f"{PATH}/default", headers=gateway.headers["anna"])
    assert (shared.status_code, shared.json()["error"]["code"]) == (403, "not_permitted")
    assert (await gateway.http.delete(f"{PATH}/{voice}", headers=gateway.headers["anna"])).status_code == 204
    assert set(gateway.models.voices) == {"default"}


@pytest.mark.parametrize(
    ("fields", "recording", "code"),
    [
        ({"consent": None}, b"RIFF", "consent_missing"),
        ({"consent": "  "}, b"RIFF", "consent_missing"),
        ({"name": None}, b"RIFF", "invalid_message"),
        ({"name": "a" * 101}, b"RIFF", "invalid_message"),
        ({"voice_id": "default"}, b"RIFF", "invalid_message"),
        ({}, None, "invalid_message"),
    ],
)
async def test_incomplete_form_is_refused(gateway, fields, recording, code):
    answer = await enroll(gateway, recording=recording, **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert set(gateway.models.voices) == {"default"}


async def test_recording_above_sixteen_mebibytes_is_refused(gateway):
    answer = await enroll(gateway, recording=bytes((16 << 20) + (129 << 10)))
    assert answer.status_code == 413
    assert gateway.models.recordings == []


async def test_voices_of_a_key_above_its_limit_are_refused(gateway):
    for number in range(2):
        assert (await enroll(gateway, name=f"Voice {number}")).status_code == 201
    answer = await enroll(gateway, name="One more")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_many_voices")
    assert (await enroll(gateway, name="Voice 1")).status_code == 201, "it is there already"
    assert (await enroll(gateway, who="ben")).status_code == 201


@pytest.mark.parametrize(
    ("method", "path"), [("POST", PATH), ("GET", PATH), ("GET", f"{PATH}/a"), ("DELETE", f"{PATH}/a")]
)
async def test_key_without_the_scope_voices_is_refused(gateway, method, path):
    answer = await gateway.http.request(method, path, headers=gateway.headers["reader"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert (await gateway.http.request(method, path)).status_code == 401


async def test_speech_with_the_voice_of_another_key_is_refused(gateway):
    speaker = Voice(gateway.models)
    voice = (await enroll(gateway)).json()["id"]
    body = {"model": "chatterbox", "input": "Hello.", "voice": voice, "response_format": "pcm"}

    async def openai(who):
        return await gateway.http.post("/v1/audio/speech", json=body, headers=gateway.headers[who])

    async def deepgram(who):
        headers = gateway.headers[who]
        return await gateway.http.post(f"/v1/speak?model={voice}", json={"text": "Hello."}, headers=headers)

    for speak in (openai, deepgram):
        assert (await speak("ben")).status_code == 400
    assert speaker.spoken == []
    assert (await openai("anna")).status_code == 200
    names = (await gateway.http.get("/v1/audio/voices", headers=gateway.headers["ben"])).json()["data"]
    assert [one["id"] for one in names] == ["default"]


async def test_session_with_the_voice_of_another_key_is_refused(gateway):
    voice = (await enroll(gateway)).json()["id"]
    for name in (voice, f"chatterbox/{voice}"):
        answer = await gateway.http.post("/v1/sessions", json={"voice": name}, headers=gateway.headers["ben"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_voice")
        assert json.loads(answer.text)["error"]["message"] == f"there is no voice {name!r}"
