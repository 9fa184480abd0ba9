"""Signals wait for the end of what must not be cut in two."""

import signal
import threading

import pytest

from peagle.train.interruption import sigterm_as_ctrl_c, uninterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_heard_at_the_end_of_the_block(number: signal.Signals) -> None:
    done = []
    before = signal.getsignal(number)
    with sigterm_as_ctrl_c():
        inside = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            done += [signal.raise_signal(number), "all of it"]
        assert signal.getsignal(number) is inside
    assert done == [None, "all of it"]
    assert signal.getsignal(number) is before


def test_what_fails_in_the_block_still_fails() -> None:
    with pytest.raises(ValueError, match="no"), uninterrupted():
        raise ValueError("no")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_have_nothing_to_wait_for() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]
