"""Ctrl-C, sent to a real process."""

import signal
import subprocess
import sys

import torch

WORDY = "Repeat the word yes twenty times."
# A shell that starts the tests in the background has its children ignore Ctrl-C. Sums depend on the
# number of threads, so it is that of the tests.
CODE = f"""
import signal
import torch
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads({torch.get_num_threads()})
from peagle.cli import main
main()
"""


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )


def read_until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """Read what a process writes until `text` is in it."""
    assert process.stdout is not None
    seen = b""
    while text not in seen:
        more = process.stdout.read(256)
        assert more, f"it ended after {seen!r}"
        seen += more
    return seen


def test_ctrl_c_ends_generate_with_one_line_and_130() -> None:
    process = start("generate", WORDY, "--max-tokens", "4000")
    seen = read_until(process, b"Yes")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "Interrupted."
    assert b"Traceback" not in err
    answer = (seen + out).decode()
    assert answer.startswith("Yes")
    assert answer.endswith("\n"), "the answer's line is not ended"


def test_ctrl_c_cuts_an_answer_off_and_the_chat_goes_on() -> None:
    process = start("chat", "--max-tokens", "4000", "--dtype", "bfloat16")
    assert process.stdin is not None
    process.stdin.write(WORDY.encode() + b"\n")
    read_until(process, b"Yes")
    process.send_signal(signal.SIGINT)
    read_until(process, b"(interrupted; this exchange is forgotten)")
    out, err = process.communicate(b"Say hello.\n", timeout=60)
    assert process.returncode == 0
    assert b"Hello" in out
    assert err == b""
