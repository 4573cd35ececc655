"""The page in a Chromium of its own, with a microphone that plays recordings."""

from __future__ import annotations

import base64
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from playwright.sync_api import expect

HERE = Path(__file__).parent
SPEECH = HERE.parents[0] / "data" / "conversation"
WAIT_MS = 30_000
AWAY = ("net::ERR_CONNECTION_", "net::ERR_EMPTY_RESPONSE", " 503 ")
"""What Chromium reports of requests to a gateway that is gone, one that stops (it refuses sessions while its
calls end, and may close a connection before it reads the request), and one without a server."""
_CHANGED = "net::ERR_NETWORK_CHANGED"
"""With this Chromium drops all requests when a network interface of the machine comes or goes, as in
tests/unit/load and where containers start."""
_LOADS = 5
_MICROPHONE_RATE = 48_000
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
)


def microphone_flags(path):
    """A microphone that plays a file once, and a user who allows its use."""
    return (
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={path}%noloop",
    )


def write_speech(path, *parts):
    """A file for the microphone: names of recordings, and seconds of silence between them."""
    pieces = []
    for part in parts:
        if isinstance(part, str):
            (name,) = SPEECH.glob(f"*-{part}.wav")
            samples, rate = soundfile.read(name, dtype="float32")
            pieces.append(soxr.resample(samples, rate, _MICROPHONE_RATE))
        else:
            pieces.append(np.zeros(round(part * _MICROPHONE_RATE), np.float32))
    soundfile.write(path, np.concatenate(pieces), _MICROPHONE_RATE, subtype="PCM_16")
    return path


@dataclass
class Recording:
    """What the page gave to the loudspeaker."""

    samples: NDArray[np.float32]
    rate: int

    def between(self, start_s, end_s):
        return self.samples[round(start_s * self.rate) : round(end_s * self.rate)]

    def first_sound_s(self):
        return int(np.argmax(np.abs(self.samples) > 1e-3)) / self.rate

    def last_sound_s(self, start_s, end_s):
        """When the last sample of an interval was that is not silent; its start if all are."""
        loud = np.flatnonzero(np.abs(self.between(start_s, end_s)) > 1e-3)
        return start_s + (loud[-1] + 1) / self.rate if len(loud) else start_s


class Visit:
    """One page."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.problems = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda line: self.problems.append(line.text) if line.type == "error" else None)
        page.add_init_script(path=HERE / "hooks.js")

    def open(self):
        """Load the page, and load it again where some of it was dropped."""
        self.page.goto(self.url)
        for _ in range(_LOADS):
            if not any(_CHANGED in each for each in self.problems):
                break
            self.ignore_problems(_CHANGED)
            self.page.reload()

    def begin(self):
        """Start a call and wait until it is there; before the server is ready, a click starts none."""
        ready = expect(self.page.locator("body"))
        ready.to_have_attribute("data-server", "ready", timeout=WAIT_MS)
        self.page.get_by_role("button", name="Start talking").click()
        self.until("live")

    def until(self, *phases, timeout=WAIT_MS):
        pattern = re.compile("|".join(phases))
        expect(self.page.locator("body")).to_have_attribute("data-phase", pattern, timeout=timeout)

    def ignore_problems(self, *texts):
        """Leave out problems that contain one of the texts: the test is their cause."""
        self.problems = [each for each in self.problems if not any(text in each for text in texts)]

    def say(self, text):
        """Type it."""
        self.page.get_by_label("Type instead of speaking").fill(text)
        self.page.keyboard.press("Enter")

    def wait_for_message(self, kind):
        """Until the gateway has sent one of this type; the page's policy forbids scripts that are texts."""
        self.page.locator(f'html[data-seen~="{kind}"]').wait_for(state="attached", timeout=WAIT_MS)

    def wait_for_answer(self, text, timeout=WAIT_MS):
        """Until the agent has said it, and all of it was heard."""
        answer = self.page.locator("li.agent .heard", has_text=text).last
        expect(answer).to_be_visible(timeout=timeout)
        expect(self.page.locator("li.agent .coming").last).to_have_text("", timeout=timeout)

    def lines(self, kind):
        """The transcript's lines of ``user`` or ``agent``."""
        return self.page.locator(f"#transcript li.{kind} .said").all_inner_texts()

    def seen(self, name):
        return self.page.evaluate(f"seen.{name}")

    def messages(self, kind):
        return [message for message in self.seen("messages") if message["type"] == kind]

    def recording(self):
        raw = base64.b64decode(self.page.evaluate("recording()"))
        return Recording(np.frombuffer(raw, "<i2").astype(np.float32) / 32_767, self.seen("rate"))


@contextmanager
def visit(playwright, browser, url, folder, *, flags=(), **context):
    """Open the page in a new browser; an error in it fails the test."""
    running = playwright.chromium.launch_persistent_context(
        folder,
        executable_path=browser,
        headless=True,
        args=[*_FLAGS, *flags],
        **({"viewport": {"width": 1280, "height": 800}} | context),
    )
    try:
        one = Visit(running.pages[0], url)
        one.open()
        yield one
        one.ignore_problems(_CHANGED)
        assert one.problems == [], one.problems
    finally:
        running.close()
