import numpy as np
import pytest

from parley.asr.streaming.slots import SlotArrays, put, take
from parley.errors import OverloadedError

INITIAL = {"state": np.array([7.0, 8.0], np.float32), "length": np.array(3)}


def test_a_slot_begins_with_the_initial_values_whoever_had_it_before():
    slots = SlotArrays(1, INITIAL)
    slot = np.array([slots.acquire()])
    slots.scatter(slot, {"state": np.ones((1, 2), np.float32), "length": np.array([9])})
    assert slots.gather(slot)["length"].tolist() == [9]
    slots.release(0)
    assert slots.acquire() == 0
    assert slots.gather(slot)["state"].tolist() == [[7, 8]]
    assert slots.gather(slot)["length"].tolist() == [3]


def test_one_too_many_is_refused_until_another_is_given_back():
    slots = SlotArrays(2, INITIAL)
    first, second = slots.acquire(), slots.acquire()
    assert {first, second} == {0, 1}
    with pytest.raises(OverloadedError):
        slots.acquire()
    slots.release(second)
    assert (slots.free, slots.acquire()) == (1, second)


def test_rows_are_copies_in_the_order_asked_for_and_only_theirs_are_written():
    slots = SlotArrays(4, {"value": np.array(0)})
    for _ in range(4):
        slots.acquire()
    everything = np.arange(4)
    slots.scatter(everything, {"value": np.array([10, 11, 12, 13])})
    chosen = np.array([3, 1])
    rows = slots.gather(chosen)
    assert rows["value"].tolist() == [13, 11]
    rows["value"][:] = 0
    assert slots.gather(everything)["value"].tolist() == [10, 11, 12, 13]
    slots.scatter(chosen, {"value": np.array([93, 91])})
    assert slots.gather(everything)["value"].tolist() == [10, 91, 12, 93]


def test_some_rows_are_taken_and_put_back():
    rows = {"value": np.array([1, 2, 3]), "other": np.zeros(3)}
    assert take(rows, np.array([0, 1, 2]), ["value"]) == {"value": rows["value"]}
    assert take(rows, np.array([0, 1, 2]), ["value"])["value"] is rows["value"]
    some = np.array([0, 2])
    assert take(rows, some, ["value"])["value"].tolist() == [1, 3]
    put(rows, some, {"value": np.array([5, 6])})
    assert rows["value"].tolist() == [5, 2, 6]
    put(rows, np.arange(3), {"value": np.array([7, 8, 9])})
    assert rows["value"].tolist() == [7, 8, 9]
