"""A voice that a caller makes through the gateway speaks for that caller, and ends when it is deleted."""

from __future__ import annotations

import httpx2

from chatterbox.test_voice_enrollment import as_file, speech
from parley_gateway.security.keys import new_key
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

PATH = "/v1/voices"
CONSENT = "I agree. Anna Smith, 2 May 2025"


async def test_a_voice_is_made_used_by_its_owner_alone_and_deleted(
    chatterbox_server, voices_folder, tmp_path
):
    keys = {name: new_key(name, ["speak", "voices"]) for name in ("anna", "ben")}
    (tmp_path / "keys.toml").write_text("\n".join(key.line for key in keys.values()) + "\n")
    settings = load_settings(
        flags={
            "listen": {"port": 0},
            "servers": {"addresses": [chatterbox_server.endpoints.grpc]},
            "security": {"keys_file": str(tmp_path / "keys.toml")},
            "stages": {"synthesizer": "chatterbox"},
        }
    )
    anna, ben = ({"Authorization": f"Bearer {key.secret}"} for key in keys.values())
    async with running(settings) as gateway, httpx2.AsyncClient(base_url=gateway.url, timeout=120) as client:

        async def ask(method, path, headers, **more):
            return await client.request(method, path, headers=headers, **more)

        recording = as_file(speech(9.0), kind="FLAC")
        fields = {"name": "Anna", "languages": "en"}
        refused = await ask("POST", PATH, anna, data=fields, files={"file": ("a.flac", recording)})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "consent_missing")
        short = as_file(speech(2.0))
        given = fields | {"consent": CONSENT}
        refused = await ask("POST", PATH, anna, data=given, files={"file": ("a.wav", short)})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "reference_too_short")

        made = await ask("POST", PATH, anna, data=given, files={"file": ("a.flac", recording)})
        assert made.status_code == 201, made.text
        voice = made.json()["id"]
        (kept,) = voices_folder.glob(f"{voice}.*")
        assert CONSENT.encode() in kept.read_bytes()

        body = {"model": "chatterbox", "input": "Hello there.", "voice": voice, "response_format": "pcm"}
        spoken = await ask("POST", "/v1/audio/speech", anna, json=body)
        assert spoken.status_code == 200
        assert len(spoken.content) > 2_000, "of any length, as the weights are random"
        refused = await ask("POST", "/v1/audio/speech", ben, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_voice")
        assert voice not in (await ask("GET", PATH, ben)).text
        assert (await ask("DELETE", f"{PATH}/{voice}", ben)).status_code == 400

        assert (await ask("DELETE", f"{PATH}/{voice}", anna)).status_code == 204
        assert list(voices_folder.glob(f"{voice}.*")) == []
