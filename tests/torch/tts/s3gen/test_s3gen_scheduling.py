"""Who is served next."""

import random

import pytest

from parley.errors import ModelLoadingError
from parley_torch.tts.s3gen.scheduling import (
    ChunkSchedule,
    PlayoutSchedule,
    S3GenLimits,
    Work,
    choose_batch,
)


def keys(batch):
    return [work.key for work in batch]


def test_stream_that_runs_dry_first_is_served_first():
    ready = [Work("later", 100, 5.0), Work("first", 100, -1.0), Work("soon", 100, 2.0)]
    assert keys(choose_batch(ready, S3GenLimits(max_batch=2))) == ["first", "soon"]
    assert keys(choose_batch(ready, S3GenLimits(max_batch=1))) == ["first"]
    assert choose_batch([], S3GenLimits()) == []


def test_long_rows_do_not_hold_up_an_urgent_short_one():
    ready = [Work("urgent", 100, 0.0), Work("long", 900, 1.0), Work("alike", 150, 2.0)]
    assert keys(choose_batch(ready, S3GenLimits(stretch=1.5))) == ["urgent", "alike"]


def test_short_rows_join_an_urgent_long_one():
    ready = [Work("short", 100, 2.0), Work("urgent", 900, 0.0)]
    assert keys(choose_batch(ready, S3GenLimits())) == ["urgent", "short"]


def test_starting_a_run_costs_time_too():
    ready = [Work("urgent", 24, 0.0), Work("longer", 60, 1.0), Work("long", 100, 2.0)]
    assert keys(choose_batch(ready, S3GenLimits(overhead=64))) == ["urgent", "longer"]
    assert keys(choose_batch(ready, S3GenLimits(overhead=0))) == ["urgent"]


def test_rows_that_cost_join_equals_only():
    on_cpu = S3GenLimits(row_cost=1.0, stretch=3.0)
    unequal = [Work("urgent", 100, 0.0), Work("short", 26, 1.0), Work("alike", 90, 2.0)]
    assert keys(choose_batch(unequal, on_cpu)) == ["urgent", "alike"], "padding would cost more than a start"
    assert keys(choose_batch([Work("a", 24, 0.0), Work("b", 26, 1.0)], on_cpu)) == ["a", "b"]


def test_memory_is_bounded():
    ready = [Work(n, 500, float(n)) for n in range(8)]
    assert keys(choose_batch(ready, S3GenLimits(max_frames=1_600))) == [0, 1, 2]
    assert keys(choose_batch(ready, S3GenLimits(max_frames=10))) == [0], "the most urgent is always served"


def test_a_listener_runs_dry_when_all_was_played():
    playout = PlayoutSchedule(now=10.0)
    assert playout.deadline == 10.0
    playout.on_sent(0.5, now=11.0)
    assert playout.deadline == 11.5
    playout.on_sent(1.0, now=11.2)
    playout.on_sent(1.0, now=20.0)  # silence since 12.5: the new audio is heard from now on
    assert playout.deadline == 21.0


@pytest.mark.parametrize("seed", range(5))
def test_scheduling_starves_no_stream_and_few_run_dry(seed):
    """Long and short utterances share a server that is fast enough for all of them together."""
    rng = random.Random(seed)
    now = 0.0
    playouts = {n: PlayoutSchedule(0.0) for n in range(12)}
    left = {n: rng.randrange(5, 40) for n in range(12)}
    made = dict.fromkeys(range(12), 0)
    lengths = {n: rng.choice([150, 200, 1_500]) for n in range(12)}
    dry = served = 0
    gaps = dict.fromkeys(range(12), 0.0)
    while any(left.values()):
        ready = [Work(n, lengths[n], playouts[n].deadline) for n in left if left[n]]
        batch = choose_batch(ready, S3GenLimits(max_batch=4))
        now += 0.02 + 0.00003 * max(work.frames for work in batch)
        for work in batch:
            late = now - playouts[work.key].deadline
            dry += made[work.key] > 0 and late > 0
            gaps[work.key] = max(gaps[work.key], late)
            playouts[work.key].on_sent(1.0, now)
            made[work.key] += 1
            left[work.key] -= 1
            served += 1
    assert dry == 0, f"of {served} chunks"
    assert max(gaps.values()) < 0.5, "first audio of the last one"


def test_schedule():
    schedule = ChunkSchedule((10, 15, 25))
    ends = [schedule.ends(n) for n in (-3, 0, 9, 10, 24, 25, 74, 75)]
    assert ends == [[], [], [], [10], [10], [10, 25], [10, 25, 50], [10, 25, 50, 75]]
    numbers, starts = (column.tolist() for column in schedule.chunks(60))
    assert numbers == [1] * 10 + [2] * 15 + [3] * 25 + [4] * 10
    assert starts == [0] * 10 + [10] * 15 + [25] * 25 + [50] * 10
    assert schedule.chunks(30)[0].tolist() == numbers[:30]


@pytest.mark.parametrize("text", ["", "0", "a", "10,,5", "10,-1"])
def test_chunks_that_make_no_sense(text):
    with pytest.raises(ModelLoadingError):
        ChunkSchedule.parse(text)
