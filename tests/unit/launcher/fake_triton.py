"""A program that talks and dies like ``tritonserver``, for tests of the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LINE = 'I1121 00:05:40.024647 32164 file.cc:1] "{}"'
SCENES = {
    "serves": ["loading: echo:1", "successfully loaded 'echo'", "Started HTTPService at 127.0.0.1:1"],
    "fails": [
        "loading: echo:1",
        "failed to load 'echo' version 1: Internal: ValueError: bad\\n\\nAt:\\n  m(3)",
    ],
    "hangs": ["loading: echo:1"],
    "port taken": ["failed to start GRPC service: Unavailable - Socket '0.0.0.0:1' already in use "],
    "dies": [],
    "crashes": [],
}


def main():
    scene = os.environ["FAKE_SCENE"]
    if os.environ.get("FAKE_STUBBORN"):
        stopped = LINE.format("All models are stopped, unloading models") + "\n"
        signal.signal(signal.SIGTERM, lambda *_: os.write(1, stopped.encode()))
    if "FAKE_CHILDREN" in os.environ:
        child = subprocess.Popen(["/bin/sleep", "600"])  # left behind when this process ends
        with Path(os.environ["FAKE_CHILDREN"]).open("a") as file:
            file.write(f"{child.pid}\n")
    if os.environ.get("FAKE_LEFTOVER"):
        (Path(os.environ["TMPDIR"]) / "vllm_dist_1").touch()
    if os.environ.get("FAKE_STUB"):
        model = Path(os.environ["TMPDIR"]) / "echo" / "1" / "model.py"
        model.parent.mkdir(parents=True)
        model.write_text("import time; time.sleep(600)")
        stub = ["/x/triton_python_backend_stub", str(model), "echo_0_0", "DEFAULT"]
        subprocess.Popen(stub, executable=sys.executable)
    if "FAKE_RUNS" in os.environ:
        runs = Path(os.environ["FAKE_RUNS"])
        if runs.exists():
            scene = "serves"
        with runs.open("a") as file:
            file.write(" ".join(sys.argv[1:]) + "\n")
    for text in SCENES[scene]:
        print(LINE.format(text), flush=True)
    if scene == "dies":
        print("Signal (11) received.", flush=True)
        sys.exit(7)
    if scene == "crashes":
        os.abort()
    time.sleep(600)


main()
