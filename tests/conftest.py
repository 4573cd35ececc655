"""What all tests stand on, whatever started them."""

import signal


def pytest_configure() -> None:
    # A job started in the background or by nohup ignores these, and hands that on to its children:
    # the programs under test would not hear the signals that they are sent.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
