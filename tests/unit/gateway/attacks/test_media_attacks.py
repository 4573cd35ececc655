"""Every file of the corpus against a gateway that listens, by each way in that takes files."""

from pathlib import Path

import pytest
from media import media_corpus
from stage_gateway import serving

from parley.asr.messages import TranscribeReply

CORPUS = {attack.name: attack for attack in media_corpus()}
# Of three files that once took gigabytes, and of all others together (bytes).
MEMORY = 256_000_000


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
    async with serving(timeout_s=60) as one:
        one.models.transcript = TranscribeReply(text="hello", confidence=0.9, duration_ms=1_000)
        await one.gateway.decoders.start()
        forget_peak()
        before = peak()
        wrong = []
        for attack in CORPUS.values():
            answer, is_stable = await way(one.http, attack)
            one.models.transcribed.clear()
            if answer.status_code not in attack.statuses or not is_stable:
                wrong.append((attack.name, answer.status_code, answer.text))
        assert wrong == []
        assert peak() - before < MEMORY
        assert one.gateway.spool.reserved == 0
        # The last one after all of them is served as the first.
        answer, _ = await way(one.http, CORPUS["wav"])
        assert answer.status_code == 200


def test_the_corpus_has_what_was_found_and_more():
    assert {
        "flac_of_4_hertz",
        "mp3_with_four_covers_of_256_megapixels",
        "mp4_that_claims_20_million_samples",
    } <= CORPUS.keys()
    assert len(CORPUS) >= 23
    assert all(set(attack.statuses) <= {200, 400} for attack in CORPUS.values())
