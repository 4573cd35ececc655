from parley.runtime.admission import EarlyAborts


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_an_abort_counts_once():
    aborts = EarlyAborts()
    aborts.add("a")
    assert aborts.take("a")
    assert not aborts.take("a")
    assert not aborts.take("b")


def test_old_aborts_are_forgotten():
    clock = Clock()
    aborts = EarlyAborts(seconds=10, clock=clock)
    aborts.add("a")
    aborts.add("b")
    clock.now = 9
    assert aborts.take("a")
    clock.now = 11
    assert not aborts.take("b")


def test_memory_is_bounded():
    aborts = EarlyAborts(size=2)
    for name in "abc":
        aborts.add(name)
    assert [name for name in "abc" if aborts.take(name)] == ["b", "c"]
