import threading

from parley.models.recognition import Periodic

DEADLINE_S = 10


def test_it_runs_again_and_again_also_after_a_failure(caplog):
    seen: list[str] = []
    enough = threading.Event()

    def run():
        seen.append(threading.current_thread().name)
        if len(seen) == 1:
            raise ValueError("once")
        if len(seen) == 3:
            enough.set()

    periodic = Periodic(0.001, run)
    assert enough.wait(DEADLINE_S)
    periodic.close()
    assert "once" in caplog.text
    assert set(seen) == {"periodic"}


def test_closing_ends_the_thread_without_waiting_for_the_interval():
    periodic = Periodic(3600, lambda: None)
    periodic.close()
    assert not periodic._thread.is_alive()
