"""standstill.py over a store: who goes on meanwhile is not waited for, one looks at all, hooks of other threads are seen."""

from __future__ import annotations

import _thread
import threading
from types import SimpleNamespace as Values

import pytest
import torch.distributed as dist
from leaves import load_beside


@pytest.fixture(scope="module")
def leaf():
    return load_beside("standstill", "masking", "launcher_summary")


@pytest.fixture
def store():
    return dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def watched(leaf, store, monkeypatch):
    """Three processes of a beat each second, the last of which has stood still for as long as counts."""
    monkeypatch.setattr(leaf, "PACE", leaf.Pace())
    leaf.STANDSTILL.clear()
    leaf.PACE.moves = 1
    all_ = [leaf.Standstill(store, rank, 3, 1.0) for rank in range(3)]
    for rank, one in enumerate(all_):
        store.set(f"who/{rank}", f"rank {rank}")
        one.observe()
    return all_


def stand_still(one, seconds: int) -> None:
    for _ in range(seconds):
        one.observe()


def test_the_first_process_says_it_once_all_stand_still_and_again_after_twice_as_long(watched, leaf, capsys):
    for one in watched[1:]:
        stand_still(one, 600)
    stand_still(watched[0], 599)
    assert not leaf.STANDSTILL
    watched[0].observe()
    first, _, others, _ = leaf.STANDSTILL[0].splitlines()[1:]
    assert "No process has finished anything for 600 s" in leaf.STANDSTILL[0]
    assert first.startswith("  rank 0: in ") and others.startswith("  ranks 1, 2: in ")
    stand_still(watched[0], 599)
    assert capsys.readouterr().err.count("No process") == 1
    watched[0].observe()
    assert capsys.readouterr().err.count("for 1200 s") == 1


def test_another_process_hears_what_the_first_says_of_all(watched, leaf, store):
    store.set(leaf.TOLD, "rank 2 hangs")
    stand_still(watched[1], 600)
    assert leaf.STANDSTILL == ["rank 2 hangs"]
    store.set(leaf.TOLD, "rank 0 hangs")  # meanwhile
    watched[1].observe()
    assert leaf.STANDSTILL == ["rank 0 hangs"]
    leaf.PACE.moves += 1
    watched[1].observe()
    assert not leaf.STANDSTILL


def test_nobody_waits_for_the_place_of_one_that_goes_on_meanwhile(watched, leaf, store, capsys):
    """A key that is deleted between a look and the reading would hold the beats up for the store's five minutes."""
    for one in watched[1:]:
        stand_still(one, 600)
    leaf.PACE.moves += 1
    watched[2].observe()
    assert store.check(watched[2].places[1:]) and store.get("place/2") == b""
    watched[0].moves = leaf.PACE.moves
    stand_still(watched[0], 600)
    assert not capsys.readouterr().err and not leaf.STANDSTILL


def test_a_checkpoint_of_an_hour_does_not_hide_what_hangs_later(watched, leaf, capsys):
    """The libraries give up after two hours."""
    for one in watched:
        one.longest = 3600
    for one in watched[1:]:
        stand_still(one, 3600)
    stand_still(watched[0], 3600)
    assert "for 3600 s" in capsys.readouterr().err


def test_before_the_training_begins_a_process_is_to_be_somewhere_else_each_time(watched, leaf, monkeypatch, capsys):
    """Data is prepared for hours, and others wait for it; that one reads long files is no standstill."""
    leaf.PACE.moves, at = 0, iter(range(10_000))
    for one in watched:
        one.moves = 0
    monkeypatch.setattr(leaf, "trace_calls", lambda: ["waits"])
    for one in watched[1:]:
        stand_still(one, 1200)
    monkeypatch.setattr(leaf, "trace_calls", lambda: [next(at)])
    stand_still(watched[0], 1200)
    assert not capsys.readouterr().err
    monkeypatch.setattr(leaf, "trace_calls", lambda: ["hangs"])
    stand_still(watched[0], 601)
    assert "The training has not begun, and no process has left its place for 600 s." in capsys.readouterr().err


def test_what_was_waited_before_the_training_is_no_measure_of_it(watched, leaf, monkeypatch):
    monkeypatch.setattr(leaf, "trace_calls", lambda: ["waits"])
    leaf.PACE.moves = watched[1].moves = 0
    stand_still(watched[1], 7200)
    leaf.PACE.moves = 1
    watched[1].observe()
    assert watched[1].longest == 0 and watched[1].still == 0
    stand_still(watched[1], 400)
    leaf.PACE.moves = 2
    watched[1].observe()
    assert watched[1].longest == 400


def test_a_thread_that_reads_for_the_main_one_is_looked_at_too(leaf):
    inside, ready = threading.Event(), threading.Event()

    def read():
        ready.set()
        inside.wait()

    before = leaf.trace_calls()
    reader = threading.Thread(target=read)
    reader.start()
    ready.wait()
    assert len(leaf.trace_calls()) == len(before) + 1
    inside.set()
    reader.join()


def test_many_places_are_not_all_listed(leaf):
    places = [f"in f ({n})" for n in range(20)] + [f"{leaf.WAITS} g"] * 1000
    lines = leaf.describe_standstill(places, [f"rank {n}" for n in range(1020)], 600.0).splitlines()
    assert len(lines) == 2 + leaf.SHOWN_PLACES and lines[-1] == "  the other 1012 elsewhere"


def test_the_hooks_of_a_backward_pass_are_seen_in_the_thread_that_runs_them(leaf, monkeypatch):
    """On a GPU the engine's own threads go backward; threading knows of none of them."""
    inside, ready = threading.Event(), threading.Event()

    def hook():
        ready.set()
        inside.wait()

    _thread.start_new_thread(hook, ())
    ready.wait()
    frames = leaf.sys._current_frames()
    main = threading.main_thread().ident
    backward = Values(
        f_code=Values(co_filename=f"/x/{leaf.BACKWARD}", co_name="go", co_qualname="go"), f_lineno=1, f_back=None
    )
    monkeypatch.setattr(leaf.sys, "_current_frames", lambda: frames | {main: backward})
    place = leaf.describe_place()
    inside.set()
    assert place.startswith("in ") and place.endswith(
        "go > test_the_hooks_of_a_backward_pass_are_seen_in_the_thread_that_runs_them.<locals>.hook"
    )


def test_a_process_without_a_frame_is_at_its_end(leaf, monkeypatch):
    monkeypatch.setattr(leaf.sys, "_current_frames", dict)
    assert leaf.describe_place() == "at its end"
