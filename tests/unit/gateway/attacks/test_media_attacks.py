"""Every file of the corpus against a gateway that listens, by each way in that takes files."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[2] / "client"))

from fake_models import serving_fake
from media import media_corpus

from parley.asr.messages import TranscribeReply
from parley_gateway.app import create_app
from parley_gateway.model_health import ModelReport
from parley_gateway.servers import Servers
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

CORPUS = {attack.name: attack for attack in media_corpus()}
# The three that once took gigabytes, and all others together (bytes).
MEMORY = 256_000_000


async def always_ready(channel, timeout_s):
    pass


@asynccontextmanager
async def listening():
    async with serving_fake() as models:
        models.transcript = TranscribeReply(text="hello", confidence=0.9, duration_ms=1_000)
        settings = load_settings(flags={"servers": {"addresses": [models.address]}, "listen": {"port": 0}})
        servers = Servers(settings.servers, probe=always_ready, ask_models=lambda *_: ModelReport([]))
        app = create_app(settings, servers=servers)
        async with running(settings, app=app) as one, httpx.AsyncClient(base_url=one.url, timeout=60) as http:
            yield one.gateway, models, http


def peak():
    """The most memory that this process has had since :func:`forget_peak` (bytes)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1_024 for line in status.splitlines() if line.startswith("VmHWM"))


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


async def openai(http, attack):
    files = {"file": (attack.filename, attack.body, attack.content_type)}
    answer = await http.post("/v1/audio/transcriptions", files=files, data={"model": "whisper-1"})
    return answer, answer.status_code == 200 or answer.json()["error"]["code"] == "invalid_file"


async def deepgram(http, attack):
    headers = {"content-type": attack.content_type}
    answer = await http.post("/v1/listen", content=attack.body, headers=headers)
    return answer, answer.status_code == 200 or answer.json()["err_code"] == "Bad Request"


@pytest.mark.parametrize("way", [openai, deepgram])
async def test_no_recording_takes_the_gateways_memory_or_stops_it(way):
    async with listening() as (gateway, models, http):
        await gateway.decoders.start()
        forget_peak()
        before = peak()
        wrong = []
        for attack in CORPUS.values():
            answer, is_stable = await way(http, attack)
            models.transcribed.clear()
            if answer.status_code not in attack.statuses or not is_stable:
                wrong.append((attack.name, answer.status_code, answer.text))
        assert wrong == []
        assert peak() - before < MEMORY
        assert gateway.spool.reserved == 0
        # The last one after all of them is served as the first.
        answer, _ = await way(http, CORPUS["wav"])
        assert answer.status_code == 200


def test_the_corpus_has_what_was_found_and_more():
    assert {
        "flac_of_4_hertz",
        "mp3_with_four_covers_of_256_megapixels",
        "mp4_that_claims_20_million_samples",
    } <= CORPUS.keys()
    assert len(CORPUS) >= 23
    assert all(set(attack.statuses) <= {200, 400} for attack in CORPUS.values())
