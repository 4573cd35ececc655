import subprocess
import sys

PROGRAM = """
import atexit
from parley.serving.process_end import skip_interpreter_end

class Slow:
    def __del__(self):
        print("taken apart")

skip_interpreter_end()
atexit.register(print, "registered later")
slow = Slow()
print("buffered", end="")
"""


def test_the_process_ends_after_what_others_registered_and_before_the_interpreter_does():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "bufferedregistered later\n"
    assert done.stderr == ""
