"""Hostile recordings (bombs, false headers) and valid ones that resemble them."""

from __future__ import annotations

import base64
import io
import random
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import av
import numpy as np


@dataclass(frozen=True)
class MediaAttack:
    """One file, and which answers are right."""

    name: str
    filename: str
    content_type: str
    body: bytes
    statuses: tuple[int, ...] = (400,)
    """200: an honest recording, or one whose audio is all right."""


def media_corpus() -> list[MediaAttack]:
    """All of them; the three first once took gigabytes each."""
    return [
        *_flac_files(),
        *_mp3_files(),
        *_mp4_files(),
        *_wav_files(),
        *_ogg_files(),
        *_matroska_files(),
        *_other_files(),
    ]


def _wav_attack(name: str, body: bytes, *statuses: int) -> MediaAttack:
    return MediaAttack(name, "a.wav", "audio/wav", body, statuses or (400,))


def encoded(
    container: str,
    codec: str,
    *,
    rate: int = 48_000,
    seconds: float = 0.5,
    video: bool = False,
    **options: str,
) -> bytes:
    """An honest file with a tone."""
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options) as written:
        stream = written.add_stream(codec, rate=rate, layout="mono")
        picture = written.add_stream("mpeg4", rate=25) if video else None
        if picture is not None:
            picture.width, picture.height, picture.pix_fmt = 64, 64, "yuv420p"
            for _ in range(10):
                image = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
                written.mux(picture.encode(image))
            written.mux(picture.encode(None))
        tone = 8_000 * np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)
        frame = av.AudioFrame.from_ndarray(tone.astype(np.int16).reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=stream.codec_context.format, layout="mono", rate=rate)
        for converted in resampler.resample(frame):
            written.mux(stream.encode(converted))
        written.mux(stream.encode(None))
    return file.getvalue()


# --- FLAC


def _flac_files() -> Iterable[MediaAttack]:
    def attack(name: str, body: bytes, *statuses: int) -> MediaAttack:
        return MediaAttack(name, "a.flac", "audio/flac", body, statuses or (400,))

    yield attack("flac_of_4_hertz", flac(4))
    yield attack("flac_of_655350_hertz", flac(655_350))
    yield attack("flac_of_1_hertz_and_8_channels", flac(1, channels=8))
    yield attack("flac_of_20_hours_of_silence", flac(8_000, frames=8_790))
    yield attack("flac_that_claims_20_hours", flac(8_000, total=8_000 * 72_000))
    yield attack("flac_with_a_cover_of_256_megapixels", flac(16_000, frames=2, cover=gif()), 200)
    yield attack(
        "flac_whose_cover_claims_4_gigabytes", flac(16_000, cover=gif(), cover_claims=0xFFFFFFFF), 200, 400
    )
    yield attack("flac_cut", flac(16_000, frames=3)[:60], 200, 400)


def flac(
    rate: int,
    *,
    channels: int = 1,
    frames: int = 1,
    total: int = 0,
    cover: bytes = b"",
    cover_claims: int | None = None,
) -> bytes:
    """Silence; a frame has 65,535 samples in 13 bytes."""
    fields = (rate << 44) | ((channels - 1) << 41) | (15 << 36) | total
    info = struct.pack(">HH", 65_535, 65_535) + bytes(6) + fields.to_bytes(8, "big") + bytes(16)
    blocks = [(0, info)]
    if cover:
        claims = len(cover) if cover_claims is None else cover_claims
        mime = b"image/gif"
        picture = struct.pack(">II", 3, len(mime)) + mime + struct.pack(">I", 0)
        blocks.append((6, picture + struct.pack(">IIIII", 16_000, 16_000, 24, 0, claims) + cover))
    head = b"fLaC"
    for number, (kind, block) in enumerate(blocks):
        last = 0x80 if number == len(blocks) - 1 else 0
        head += bytes([last | kind]) + len(block).to_bytes(3, "big") + block
    return head + b"".join(_flac_frame(number, channels) for number in range(frames))


def _flac_frame(number: int, channels: int) -> bytes:
    head = b"\xff\xf8\x70" + bytes([(channels - 1) << 4 | 0x08]) + chr(number).encode() + b"\xff\xfe"
    head += bytes([_crc(head, 8, 0x07)])
    frame = head + bytes(3 * channels)
    return frame + _crc(frame, 16, 0x8005).to_bytes(2, "big")


def _crc(data: bytes, bits: int, polynomial: int) -> int:
    value, top, mask = 0, 1 << (bits - 1), (1 << bits) - 1
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = ((value << 1) ^ polynomial if value & top else value << 1) & mask
    return value


def gif(width: int = 16_000, height: int = 16_000) -> bytes:
    """A picture that is small until it is decoded."""
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    image = b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0)
    return screen + image + b"\x02\x02\x44\x01\x00\x3b"


# --- MP3


def _mp3_files() -> Iterable[MediaAttack]:
    def attack(name: str, body: bytes, *statuses: int) -> MediaAttack:
        return MediaAttack(name, "a.mp3", "audio/mpeg", body, statuses or (400,))

    frames = (b"\xff\xfb\x90\x64" + bytes(413)) * 40
    covers = id3([gif()] * 4)
    yield attack("mp3_with_four_covers_of_256_megapixels", covers + frames, 200)
    yield attack("mp3_with_covers_and_no_audio", covers)
    yield attack(
        "mp3_with_an_svg_cover", id3([b"<svg><image href='file:///etc/passwd'/></svg>"]) + frames, 200
    )
    yield attack("mp3_with_1000_covers", id3([gif()] * 1_000) + frames, 200, 400)
    # An id3 tag that claims 256 MiB; then only its claim.
    yield attack("mp3_whose_tag_claims_256_megabytes", b"ID3\x03\x00\x00\x7f\x7f\x7f\x7f" + frames, 400, 200)
    yield attack(
        "mp3_whose_cover_claims_256_megabytes",
        b"ID3\x03\0\0\0\0\x01\0APIC\x0f\xff\xff\xff\0\0" + frames,
        400,
        200,
    )
    yield attack("mp3_of_noise", b"\xff\xfb" + random.Random(1).randbytes(200_000), 400, 200)
    yield attack("mp3_tag_of_a_playlist", b"ID3\x03\0\0\0\0\0\0#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")


def id3(covers: list[bytes]) -> bytes:
    """A tag with pictures."""
    frames = b""
    for cover in covers:
        content = b"\x00image/gif\x00\x03\x00" + cover
        frames += b"APIC" + struct.pack(">I", len(content)) + bytes(2) + content
    size = len(frames)
    parts = bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x03\x00\x00" + parts + frames


# --- MP4


def _mp4_files() -> Iterable[MediaAttack]:
    def attack(name: str, body: bytes, *statuses: int) -> MediaAttack:
        return MediaAttack(name, "a.m4a", "audio/mp4", body, statuses or (400,))

    yield attack("mp4_that_claims_20_million_samples", mp4(samples=20_000_000) + bytes(8_000))
    yield attack("mp4_that_claims_4_billion_samples", mp4(samples=0xFFFFFFFF))
    yield attack("mp4_with_40000_edits", mp4(samples=1_000, edits=40_000), 400, 200)
    yield attack("mp4_of_a_file_elsewhere", mp4(samples=10, reference=b"file:///etc/passwd\0"), 400, 200)
    yield attack("mp4_of_an_address", mp4(samples=10, reference=b"http://127.0.0.1:9/a\0"), 400, 200)
    yield attack("mp4_of_0_hertz", mp4(samples=10, rate=0), 400, 200)
    yield attack("mp4_of_255_channels", mp4(samples=10, channels=255), 400, 200)
    nested = b""
    for _ in range(10_000):
        nested = box(b"moov", nested)
    yield attack("mp4_of_10000_nested_boxes", _FTYP + nested)
    moof = box(
        b"moof",
        box(
            b"traf", box(b"tfhd", struct.pack(">II", 0, 1)) + box(b"trun", struct.pack(">II", 0, 0xFFFFFFFF))
        ),
    )
    yield attack("mp4_of_fragments_that_claim_4_billion_samples", mp4(samples=0) + moof * 50)
    yield attack(
        "mp4_with_a_cover_that_claims_2_gigabytes",
        mp4(samples=10)
        + box(
            b"udta",
            box(
                b"meta",
                bytes(4) + box(b"ilst", box(b"covr", struct.pack(">I4sII", 0x7FFFFFFF, b"data", 13, 0))),
            ),
        ),
        400,
        200,
    )
    yield attack("mp4_whose_index_is_at_its_end", encoded("mp4", "aac"), 200)
    yield attack("mp4_in_fragments", encoded("mp4", "aac", movflags="frag_keyframe+empty_moov"), 200)
    yield attack("mp4_with_video", encoded("mp4", "aac", video=True), 200)
    yield attack("mp4_cut", encoded("mp4", "aac")[:1_000])


_FTYP = struct.pack(">I4s4sI4s", 20, b"ftyp", b"M4A ", 0, b"M4A ")


def box(kind: bytes, content: bytes) -> bytes:
    """A box of MP4."""
    return struct.pack(">I", 8 + len(content)) + kind + content


def mp4(
    *, samples: int, rate: int = 16_000, channels: int = 1, edits: int = 0, reference: bytes = b""
) -> bytes:
    """An index with claims, before no audio."""
    esds = bytes.fromhex("0000000003190000000411401500000000000000000000000005021408060102")
    entry = bytes(6) + struct.pack(">H", 1) + bytes(8)
    entry += struct.pack(">HHHHI", channels, 16, 0, 0, (rate & 0xFFFF) << 16) + box(b"esds", esds)
    stsd = struct.pack(">II", 0, 1) + box(b"mp4a", entry)
    drefs = (
        box(b"url ", struct.pack(">I", 0) + reference) if reference else box(b"url ", struct.pack(">I", 1))
    )
    stbl = box(b"stsd", stsd)
    stbl += box(b"stts", struct.pack(">IIII", 0, 1, samples, 2))
    stbl += box(b"stsc", struct.pack(">IIIII", 0, 1, 1, samples, 1))
    stbl += box(b"stsz", struct.pack(">III", 0, 1, samples))
    stbl += box(b"stco", struct.pack(">III", 0, 1, 500))
    minf = box(b"smhd", bytes(8)) + box(b"dinf", box(b"dref", struct.pack(">II", 0, 1) + drefs))
    mdhd = struct.pack(">IIIIIHH", 0, 0, 0, rate or 1, 0xFFFFFFF, 0, 0)
    hdlr = struct.pack(">II4s", 0, 0, b"soun") + bytes(13)
    mdia = box(b"mdhd", mdhd) + box(b"hdlr", hdlr) + box(b"minf", minf + box(b"stbl", stbl))
    trak = box(b"tkhd", struct.pack(">IIIII", 1, 0, 0, 1, 0) + bytes(64))
    if edits:
        listed = struct.pack(">IIHH", 1_000_000, 0, 1, 0) * edits
        trak += box(b"edts", box(b"elst", struct.pack(">II", 0, edits) + listed))
    trak += box(b"mdia", mdia)
    mvhd = struct.pack(">IIIII", 0, 0, 0, 1_000, 0) + bytes(80)
    mvex = box(b"mvex", box(b"trex", struct.pack(">IIIIII", 0, 1, 1, 1_024, 1, 0)))
    return _FTYP + box(b"moov", box(b"mvhd", mvhd) + box(b"trak", trak) + mvex)


# --- WAV


def _wav_files() -> Iterable[MediaAttack]:
    tone = bytes(32_000)
    yield _wav_attack("wav", wav(tone), 200)
    yield _wav_attack("wav_of_0_hertz", wav(tone, rate=0))
    yield _wav_attack("wav_of_4_hertz", wav(tone, rate=4))
    yield _wav_attack("wav_of_4_billion_hertz", wav(tone, rate=0xFFFFFFFF))
    yield _wav_attack("wav_of_0_channels", wav(tone, channels=0))
    yield _wav_attack("wav_of_255_channels", wav(tone, channels=255))
    yield _wav_attack("wav_of_65535_channels", wav(tone, channels=65_535))
    yield _wav_attack("wav_that_claims_4_gigabytes", wav(tone, claims=0xFFFFFFFF), 200)
    yield _wav_attack("wav_that_claims_2_gigabytes", wav(tone, claims=0x7FFFFFF0), 200)
    yield _wav_attack("wav_of_192000_hertz", wav(tone, rate=192_000), 200)
    ds64 = struct.pack("<QQQI", 1 << 62, 1 << 62, 1 << 62, 0)
    rf64 = b"RF64\xff\xff\xff\xffWAVEds64" + struct.pack("<I", len(ds64)) + ds64
    yield _wav_attack("rf64_that_claims_exabytes", rf64 + wav(tone, claims=0xFFFFFFFF)[12:], 200, 400)
    listing = b"LIST" + struct.pack("<I", 0xFFFFFFFE) + b"INFO"
    yield _wav_attack("wav_whose_list_claims_4_gigabytes", wav(b"")[:12] + listing, 400)
    yield _wav_attack("wav_of_100000_chunks", wav(b"")[:12] + (b"junk" + bytes(4)) * 100_000)
    yield _wav_attack("wav_of_adpcm", wav(tone, tag=0x11))
    yield _wav_attack("wav_of_wma", wav(tone, tag=0x161))
    yield _wav_attack("wav_of_20_hours", wav(bytes(12_000_000), tag=7, bits=8, rate=8_000), 400)
    yield _wav_attack("wav_cut_in_its_header", wav(tone)[:30])
    yield _wav_attack("wav_of_nothing", wav(b""))


def wav(
    data: bytes,
    *,
    rate: int = 16_000,
    channels: int = 1,
    bits: int = 16,
    tag: int = 1,
    claims: int | None = None,
) -> bytes:
    """A WAV file with any header."""
    align = channels * bits // 8 & 0xFFFF
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * align & 0xFFFFFFFF, align, bits)
    size = len(data) if claims is None else claims
    head = b"RIFF" + struct.pack("<I", size & 0xFFFFFFFF) + b"WAVEfmt " + struct.pack("<I", len(form)) + form
    return head + b"data" + struct.pack("<I", size) + data


# --- Ogg


def _ogg_files() -> Iterable[MediaAttack]:
    def attack(name: str, body: bytes, *statuses: int) -> MediaAttack:
        return MediaAttack(name, "a.ogg", "audio/ogg", body, statuses or (400,))

    head = b"OpusHead\x01\x01" + struct.pack("<HIhB", 0, 48_000, 0, 0)
    tags = b"OpusTags" + struct.pack("<II", 0, 0)
    silence = [b"\x1b\x02"] * 60_000  # 120 ms each
    yield attack("opus_of_2_hours_of_silence", ogg([head, tags, *silence]))
    yield attack("opus_of_255_channels", ogg([head[:9] + b"\xff" + head[10:], tags, *silence[:10]]))
    yield attack("opus_of_0_channels", ogg([head[:9] + b"\x00" + head[10:], tags, *silence[:10]]))
    many = b"OpusTags" + struct.pack("<II", 0, 0xFFFFFFFF)
    yield attack("opus_that_claims_4_billion_tags", ogg([head, many, *silence[:10]]), 200, 400)
    picture = (
        struct.pack(">II", 3, 9) + b"image/gif" + struct.pack(">IIIIII", 0, 1, 1, 24, 0, 0xFFFFFFF0) + gif()
    )
    comment = b"METADATA_BLOCK_PICTURE=" + base64.b64encode(picture)
    covered = b"OpusTags" + struct.pack("<III", 0, 1, len(comment)) + comment
    yield attack("opus_whose_cover_claims_4_gigabytes", ogg([head, covered, *silence[:10]]), 200, 400)
    links = [encoded("ogg", "libopus", serial_offset=str(number)) for number in range(3)]
    yield attack("ogg_of_3_links", b"".join(links), 200)
    yield attack("ogg_of_1_link_thrice", links[0] * 3, 200, 400)
    link = [ogg([head, tags, *silence[:3]], serial=number) for number in range(300)]
    yield attack("ogg_of_300_links", b"".join(link), 200, 400)
    begun = [ogg([head], serial=number, end=False) for number in range(2_000)]
    yield attack("ogg_of_2000_streams", b"".join(begun))
    yield attack("ogg_of_flac_of_4_hertz", ogg([b"\x7fFLAC\x01\x00\x00\x01" + flac(4)[:42], flac(4)[42:]]))


def ogg(packets: list[bytes], *, serial: int = 1, end: bool = True) -> bytes:
    """Packets of at most 254 bytes, or one a page, in pages."""
    pages: list[list[bytes]] = [[packets[0]], *([packets[1]] if len(packets) > 1 else [],)]
    rest = packets[2:]
    pages += [rest[at : at + 255] for at in range(0, len(rest), 255)]
    made = b""
    pages = [page for page in pages if page]
    for number, page in enumerate(pages):
        lacing = b"".join(b"\xff" * (len(one) // 255) + bytes([len(one) % 255]) for one in page)
        kind = (2 if number == 0 else 0) | (4 if end and number == len(pages) - 1 else 0)
        granule = max(0, number - 1) * 255 * 5_760
        head = b"OggS\x00" + bytes([kind]) + struct.pack("<QII", granule, serial, number)
        body = b"".join(page)
        sum_at = head + bytes(4) + bytes([len(lacing)]) + lacing + body
        made += head + struct.pack("<I", _ogg_sum(sum_at)) + sum_at[len(head) + 4 :]
    return made


_OGG_TABLE = [_crc(bytes([byte]), 32, 0x04C11DB7) for byte in range(256)]


def _ogg_sum(data: bytes) -> int:
    value = 0
    for byte in data:
        value = (value << 8 & 0xFFFFFFFF) ^ _OGG_TABLE[value >> 24 ^ byte]
    return value


# --- Matroska


def _matroska_files() -> Iterable[MediaAttack]:
    def attack(name: str, body: bytes, *statuses: int) -> MediaAttack:
        return MediaAttack(name, "a.webm", "audio/webm", body, statuses or (400,))

    yield attack("webm", encoded("webm", "libopus"), 200)
    yield attack("webm_of_unknown_sizes", encoded("webm", "libopus", live="1"), 200)
    yield attack("webm_with_video", encoded("matroska", "libopus", video=True), 200)
    yield attack("matroska_of_4_hertz", matroska(rate=4.0))
    yield attack("matroska_of_infinite_hertz", matroska(rate=float("inf")), 200, 400)
    yield attack("matroska_of_nan_hertz", matroska(rate=float("nan")), 200, 400)
    yield attack("matroska_of_0_channels", matroska(channels=0), 400, 200)
    yield attack("matroska_of_255_channels", matroska(channels=255))
    yield attack("matroska_of_8_megabytes_of_codec_private", matroska(private=bytes(8_000_000)), 200, 400)
    yield attack(
        "matroska_that_claims_a_terabyte_of_codec_private",
        _EBML
        + element(
            0x18538067,
            element(0x1654AE6B, element(0xAE, b"\xd7\x81\x01\x63\xa2" + b"\x04\x00\x00\x00\x00\x00")),
        ),
    )
    laced = b"\x81\x00\x00\x06\xff" + b"\x01\xff\xff\xff\xff\xff\xff\xfe" * 255 + bytes(100)
    yield attack("matroska_with_lacing_of_giants", matroska(block=laced))
    bomb = zlib.compress(bytes(32_000_000))
    yield attack(
        "matroska_of_compressed_zeros", matroska(block=b"\x81\x00\x00\x80" + bomb, compressed=True), 200, 400
    )
    nested = b""
    for _ in range(5_000):
        nested = element(0x18538067, nested)
    yield attack("matroska_of_5000_nested_segments", _EBML + nested)
    yield attack("matroska_of_a_giant_id", b"\x1a\x45\xdf\xa3\x01\xff\xff\xff\xff\xff\xff\xfe" + bytes(100))


def element(number: int, content: bytes) -> bytes:
    """An element of EBML."""
    named = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return named + (len(content) | 1 << 56).to_bytes(8, "big") + content


_EBML = element(0x1A45DFA3, element(0x4282, b"matroska"))


def matroska(
    *,
    rate: float = 16_000.0,
    channels: int = 1,
    private: bytes = b"",
    block: bytes = b"\x81\x00\x00\x80" + bytes(3_200),
    compressed: bool = False,
) -> bytes:
    """PCM with any header."""
    audio = element(0xB5, struct.pack(">d", rate)) + element(0x9F, channels.to_bytes(2, "big"))
    track = element(0xD7, b"\x01") + element(0x73C5, b"\x01") + element(0x83, b"\x02")
    track += element(0x86, b"A_PCM/INT/LIT") + element(0xE1, audio + element(0x6264, b"\x10"))
    if private:
        track += element(0x63A2, private)
    if compressed:
        track += element(0x6D80, element(0x6240, element(0x5034, element(0x4254, b"\x00"))))
    cluster = element(0x1F43B675, element(0xE7, b"\x00") + element(0xA3, block))
    return _EBML + element(0x18538067, element(0x1654AE6B, element(0xAE, track)) + cluster)


# --- Others


def _other_files() -> Iterable[MediaAttack]:
    def attack(name: str, body: bytes, *statuses: int, kind: str = "application/octet-stream") -> MediaAttack:
        return MediaAttack(name, "a.bin", kind, body, statuses or (400,))

    yield attack("empty", b"")
    yield attack("one_byte", b"f")
    yield attack("aiff", b"FORM" + struct.pack(">I", 0x7FFFFFFF) + b"AIFFSSND" + bytes(100))
    yield attack("playlist", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")
    yield attack("playlist_of_addresses", b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/\n")
    yield attack("concat", b"ffconcat version 1.0\nfile /etc/passwd\n")
    yield attack("ffmetadata", b";FFMETADATA1\ntitle=a\n")
    yield attack("sdp", b"v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\n")
    yield attack("dash", b'<?xml version="1.0"?><MPD><BaseURL>file:///etc/passwd</BaseURL></MPD>')
    yield attack("svg", b"<svg><image href='file:///etc/passwd'/></svg>")
    yield attack("zip", b"PK\x03\x04" + bytes(100))
    yield attack("avi_of_a_playlist", b"RIFF\xff\xff\xff\xffAVI GAB2#EXTM3U\nfile:///etc/passwd\n")
    noise = random.Random(2).randbytes
    yield attack("adts_of_noise", b"\xff\xf1" + noise(200_000), 400, 200, kind="audio/aac")
    frames = b"".join(b"\xff\xf1\x50\x80\x03\x1f\xfc" + noise(17) for _ in range(5_000))
    yield attack("adts_of_frames_of_noise", frames, 400, 200, kind="audio/aac")
