"""Recordings of people, and the lines, noises and rooms in which they are heard.

``build/checkpoints.toml`` names the packages that they come from, with checksums and licences.
"""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
import pyroomacoustics
import soundfile
import soxr
from numpy.typing import NDArray

from harness.recordings import RATE, RecordingError, load_recordings
from harness.stats import spoken_words
from parley.launcher.options import ROOT
from parley_testing.line import Line

Wave: TypeAlias = NDArray[np.float32]
"""16 kHz mono, full scale is 1: ``[n]``."""
Change: TypeAlias = Callable[[Wave, int], Wave]
"""What a condition does to a wave; the number is a seed."""

CLEAN = "clean"
_FOLDER = ROOT / "models" / "people"
_READERS = ROOT / "perf" / "stages" / "utterances.json"
_AROUND = np.zeros(RATE * 800 // 1000, np.float32)
"""Before and after what is said."""
_LINE_RATE = 8_000
_LOSS = 0.02
_AMR_BITS = 12_200
_FULL_SCALE = 32_767
_FRAME = RATE // 50
_PAUSE = 1e-3
"""Frames of less than this share of the loudest one's power are no speech."""
_NOISES = {
    "office": ("office.ogg",),
    "crowd": ("crowd.ogg",),
    "city": ("city.ogg",),
    "keyboard": ("keyboard.ogg",),
    "music": ("music.ogg", "asterisk-music.deb"),
}
_ROOM_M, _FADING_S = (6.0, 5.0, 2.7), 0.5
"""A room, and how long its echoes take to fade by 60 dB."""
_MOUTH_M, _MICROPHONE_M = (4.6, 2.9, 1.6), (1.2, 2.4, 0.8)
_NOTES = re.compile(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>")
_CORRECTED = {
    "#": " pound ",
    "*": " star ",
    "exclaimation": "exclamation",
    "fourtieth": "fortieth",
    "represenatives": "representatives",
    "umute": "unmute",
    "Un-indentified or witheld": "Unidentified or withheld",
    "thru": "through",
}
"""In the list of Asterisk's prompts: signs that are read out, and words that are misspelled."""


@dataclass(frozen=True)
class Clip:
    """One recording of one person."""

    name: str
    """``SOURCE/FILE``."""
    speaker: str
    text: str
    samples: Wave
    condition: str = ""
    """Empty: as it was recorded. In a condition there are 0.8 s before and after what is said."""

    @property
    def source(self) -> str:
        """The package that it is from."""
        return self.name.partition("/")[0]


def load_people(count: int | None = None) -> list[Clip]:
    """All recordings, or ``count`` of each source, evenly spread over it.

    Raises:
        RecordingError: they are not there.
    """
    found: list[Clip] = []
    try:
        for read in (_asterisk, _pocketsphinx, _pyannote, _klettres, _readers):
            found += spread(list(read()), count)
    except OSError as error:
        raise RecordingError(f'{error}: `make fetch MODEL="people test-recordings"` brings them') from error
    return found


def load_folder(folder: Path) -> list[Clip]:
    """Recordings ``SPEAKER/FILE`` of a folder, by name.

    Raises:
        RecordingError: there are none, or one cannot be read.
    """
    try:
        found = [
            Clip(str(path.relative_to(folder)), path.parent.name, "", _read(path.read_bytes()))
            for path in sorted(folder.glob("*/*"))
        ]
    except (OSError, soundfile.SoundFileError) as error:
        raise RecordingError(f"{folder}: {error}") from error
    if not found:
        raise RecordingError(f"{folder} has no recordings SPEAKER/FILE")
    return found


def spread(clips: Sequence[Clip], count: int | None) -> list[Clip]:
    """So many of them, from all over the list; all where it has fewer, or without a count."""
    most = min(count or len(clips), len(clips))
    return [clips[number * len(clips) // most] for number in range(most)]


def _asterisk() -> Iterator[Clip]:
    """The prompts of a telephone exchange: words, letters, and sentences."""
    ((_, packed),) = _unpack("asterisk-texts.deb", ".txt.gz")
    rows = (line.partition(":") for line in gzip.decompress(packed).decode().splitlines())
    texts = {name: text for name, _, text in rows}
    for path, data in _unpack("asterisk-prompts.deb", ".g722"):
        name = path.partition("Allison/")[2].removesuffix(".g722")
        text = _NOTES.sub("", texts[name])
        for written, spoken in _CORRECTED.items():
            text = text.replace(written, spoken)
        if spoken_words(text):
            yield Clip(f"asterisk/{name}", "Allison Smith", text.strip(), _decode("g722", data))


def _pocketsphinx() -> Iterator[Clip]:
    """A chapter of a novel, and playing cards."""
    files = dict(_unpack("pocketsphinx.deb", ""))
    for folder, name in (("librivox", "transcription"), ("cards", "cards.transcription")):
        place = f"./usr/share/pocketsphinx/test/data/{folder}"
        for line in files[f"{place}/{name}"].decode().splitlines():
            text, _, key = line.rstrip(" )").rpartition("(")
            data = files[f"{place}/{key}.wav"]
            yield Clip(f"pocketsphinx/{folder}-{key}", folder, _NOTES.sub("", text).strip(), _read(data))


def _pyannote() -> Iterator[Clip]:
    """What each of two people who meet on the telephone says before the other does."""
    wave = _read((_FOLDER / "sample.wav").read_bytes())
    rows = [line.split(maxsplit=5) for line in (_FOLDER / "sample.stm").read_text().splitlines()]
    for number, (speaker, run) in enumerate(groupby(rows, lambda row: row[2])):
        lines = list(run)
        begin, end = (int(float(at) * RATE) for at in (lines[0][3], lines[-1][4]))
        yield Clip(f"pyannote/{number}", speaker, " ".join(line[5] for line in lines), wave[begin:end])


def _klettres() -> Iterator[Clip]:
    """The letters of the alphabet, by an American and a British voice."""
    for path, data in _unpack("klettres.deb", ".ogg"):
        language, folder, file = path.split("/")[-3:]
        if folder == "alpha" and language in ("en", "en_GB"):
            yield Clip(f"klettres/{language}-{file}", f"klettres {language}", file[0].upper(), _read(data))


def _readers() -> Iterator[Clip]:
    """Two people who read literature."""
    for number, one in enumerate(load_recordings(_READERS)):
        samples = one.samples.astype(np.float32) / (_FULL_SCALE + 1)
        yield Clip(f"moonshine/{number}-{one.name}", one.name, one.text, samples)


def _unpack(name: str, ending: str) -> Iterator[tuple[str, bytes]]:
    """The files of a Debian package whose names have this ending."""
    path = _FOLDER / name
    path.stat()  # its error names the file
    packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        for info in files:
            if info.isreg() and info.name.endswith(ending) and (stream := files.extractfile(info)):
                yield info.name, stream.read()


def _read(data: bytes) -> Wave:
    """What an audio file has."""
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    return np.asarray(soxr.resample(samples.mean(axis=1), rate, RATE), np.float32)


def _decode(codec: str, data: bytes) -> Wave:
    """What a codec's bare bytes at 16 kHz have."""
    decoder: Any = av.CodecContext.create(codec, "r")
    decoder.layout, decoder.sample_rate = "mono", RATE
    pieces = [frame.to_ndarray()[0] for packet in (av.Packet(data), None) for frame in decoder.decode(packet)]
    return np.concatenate(pieces).astype(np.float32) / (_FULL_SCALE + 1)


def conditions() -> Mapping[str, Change]:
    """All conditions, by name."""
    return {
        CLEAN: lambda wave, _: wave,
        "telephone": lambda wave, seed: _send(wave, Line(telephone=True, loss=_LOSS, seed=seed)),
        "office 10 dB": _noisy("office", 10),
        **{f"crowd {snr} dB": _noisy("crowd", snr) for snr in (20, 10, 5)},
        "far": far,
        "mobile": lambda wave, seed: _send(_amr(wave), Line(loss=_LOSS, seed=seed)),
        **{f"{noise} 10 dB": _noisy(noise, 10) for noise in ("city", "keyboard", "music")},
    }


def hear_in(clip: Clip, condition: str, change: Change) -> Clip:
    """A recording in a condition, each time the same."""
    wave = np.concatenate([_AROUND, clip.samples, _AROUND])
    changed = np.clip(change(wave, zlib.crc32(clip.name.encode())), -1, 1)
    return replace(clip, samples=changed.astype(np.float32), condition=condition)


def _noisy(noise: str, snr_db: int) -> Change:
    def change(wave: Wave, seed: int) -> Wave:
        return add_noise(wave, np.roll(_noise(noise), -seed % RATE * RATE // _FRAME), snr_db)

    return change


def add_noise(wave: Wave, noise: Wave, snr_db: float) -> Wave:
    """Noise as long as the speech, which is so much louder in speech."""
    power = (wave[: len(wave) // _FRAME * _FRAME].reshape(-1, _FRAME) ** 2).mean(axis=1)
    spoken = power[power >= _PAUSE * power.max()].mean()
    wanted = np.resize(noise, len(wave))
    gain = np.sqrt(spoken / (wanted**2).mean() / 10 ** (snr_db / 10))
    return np.asarray(wave + gain * wanted, np.float32)


def crowd() -> Wave:
    """A crowd that talks."""
    return _noise("crowd")


@cache
def _noise(name: str) -> Wave:
    def parts(file: str) -> Iterable[bytes]:
        is_package = file.endswith(".deb")
        return (data for _, data in _unpack(file, ".wav")) if is_package else [(_FOLDER / file).read_bytes()]

    return np.concatenate([_read(data) for file in _NOISES[name] for data in parts(file)])


def far(wave: Wave, _seed: int = 0) -> Wave:
    """From the other end of a room, as loud as from near."""
    length = len(wave) + len(_echoes())
    heard = np.fft.irfft(np.fft.rfft(wave, length) * np.fft.rfft(_echoes(), length), length)[: len(wave)]
    return np.asarray(heard * np.sqrt((wave**2).sum() / max((heard**2).sum(), 1e-9)), np.float32)


@cache
def _echoes() -> Wave:
    absorption, order = pyroomacoustics.inverse_sabine(_FADING_S, _ROOM_M)
    room = pyroomacoustics.ShoeBox(
        _ROOM_M, fs=RATE, materials=pyroomacoustics.Material(absorption), max_order=order
    )
    room.add_source(_MOUTH_M)
    room.add_microphone(_MICROPHONE_M)
    room.compute_rir()
    return np.asarray(room.rir[0][0], np.float32)


def _send(wave: Wave, line: Line) -> Wave:
    """What arrives of a wave, some milliseconds late."""
    arrived = line.send(np.rint(np.clip(wave, -1, 1) * _FULL_SCALE).astype(np.int16))
    return np.asarray(arrived / (_FULL_SCALE + 1), np.float32)


def _amr(wave: Wave) -> Wave:
    """As a mobile phone's AMR carries it."""
    encoder: Any = av.CodecContext.create("libopencore_amrnb", "w")
    encoder.layout, encoder.format, encoder.sample_rate = "mono", "s16", _LINE_RATE
    encoder.bit_rate = _AMR_BITS
    decoder: Any = av.CodecContext.create("amrnb", "r")
    decoder.layout, decoder.sample_rate = "mono", _LINE_RATE
    narrow = np.rint(np.clip(soxr.resample(wave, RATE, _LINE_RATE), -1, 1) * _FULL_SCALE).astype(np.int16)
    heard = []
    size = _LINE_RATE // 50
    for at in range(0, len(narrow) - size + 1, size):
        frame = av.AudioFrame.from_ndarray(narrow[None, at : at + size], format="s16", layout="mono")
        frame.sample_rate = _LINE_RATE
        for packet in encoder.encode(frame):
            heard += [out.to_ndarray()[0] for out in decoder.decode(packet)]
    wide = soxr.resample(np.concatenate(heard), _LINE_RATE, RATE)
    return np.asarray(np.resize(wide, len(wave)), np.float32)
