"""Signs of life: what counts as waiting."""

from __future__ import annotations

import threading

from rlobj.base.progress import beat, signs, waiting


def test_a_thread_that_waits_does_not_hide_a_main_thread_that_hangs() -> None:
    begun, end = threading.Event(), threading.Event()

    def waits() -> None:
        with waiting():
            begun.set()
            end.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    begun.wait()
    assert not signs()[1]
    with waiting():
        assert signs()[1]
    with waiting(thread):
        assert signs()[1], "it waits for a thread that waits"
        end.set()
        thread.join()
        assert not signs()[1], "it waits for a thread that does not"
    assert not signs()[1]


def test_waits_are_nested_and_count_as_progress_at_their_end() -> None:
    count, _ = signs()
    with waiting():
        with waiting():
            pass
        assert signs() == (count + 1, True)
    beat()
    assert signs() == (count + 3, False)
