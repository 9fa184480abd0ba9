"""The pool of threads outlives forks of its process and the interpreter's end."""

import multiprocessing
import subprocess
import sys

import numpy as np

from peagle import native

WORDS = np.arange(1 << 18, dtype=np.uint64)
SUM = int(np.bitwise_xor.reduce(WORDS))


def read_through(threads: int) -> int:
    return int(native.library.read_through(WORDS, native.thread_pool(threads)))


def test_every_number_of_threads_reads_every_word_once() -> None:
    for threads in (1, 2, 3, 5):
        assert native.thread_pool(threads).size == threads
        for _ in range(50):
            assert read_through(threads) == SUM


def test_a_fork_of_the_process_computes_with_threads_of_its_own() -> None:
    assert read_through(3) == SUM
    fork = multiprocessing.get_context("fork")
    with fork.Pool(1) as children:
        assert children.apply_async(read_through, (3,)).get(timeout=60) == SUM
    assert read_through(3) == SUM


def test_threads_that_wait_do_not_keep_the_interpreter_from_ending() -> None:
    program = (
        "import numpy, peagle.native as native\n"
        "words = numpy.ones(1 << 16, numpy.uint64)\n"
        "print(native.library.read_through(words, native.thread_pool(3)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
