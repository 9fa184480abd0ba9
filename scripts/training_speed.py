"""How fast drafters train on this machine, and how much memory that takes.

Features are read beforehand, as in every epoch but the first. The share of the machine's product
rate is what the network's products need over what they would take at the rate of one large
bfloat16 product measured here.

    python scripts/training_speed.py [--model NAME] [--data FILE] [--length N] [--updates N]
"""

import argparse
import json
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from peagle.catalog import resolve
from peagle.evaluate.machine import describe_machine
from peagle.model.loading import load_target
from peagle.train.checkpoint import Progress
from peagle.train.conversations import Conversation
from peagle.train.recipe import Recipe
from peagle.train.run import begin_from_target, open_run, split_data
from peagle.train.traffic import read_data
from peagle.train.trainer import Limits

REPOSITORY = Path(__file__).parents[1]
WARM_UP = 3
DOCUMENTS = 400


class EnoughError(Exception):
    """Enough updates were timed."""


class PeakMemory:
    """Watches the memory of this process that is its own; mapped files are not."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            for line in Path("/proc/self/status").read_text("utf-8").splitlines():
                if line.startswith("RssAnon"):
                    self.bytes = max(self.bytes, 1024 * int(line.split()[1]))


def product_rate() -> float:
    """Operations a second of a large bfloat16 product, the best of some."""
    left, right = torch.randn(4096, 2048).bfloat16(), torch.randn(2048, 2048).bfloat16()
    best = 0.0
    for _ in range(8):
        began = time.perf_counter()
        left @ right
        best = max(best, 2 * 4096 * 2048 * 2048 / (time.perf_counter() - began))
    return best


def lengthened(conversations: list[Conversation], length: int) -> list[Conversation]:
    """Join conversations to documents of `length` tokens, the first prompt being the prompt."""
    joined: list[Conversation] = []
    text: list[int] = []
    prompt: list[int] = []
    for each in conversations:
        if not text:
            prompt = list(each.prompt)
        text += [*each.prompt, *each.response]
        if len(text) >= length:
            joined.append(Conversation(prompt, text[len(prompt) : length], each.category))
            text = []
    return joined


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--method", default="peagle")
    parser.add_argument(
        "--data", type=Path, default=REPOSITORY / "data" / "smollm2-self-chat.jsonl.gz"
    )
    parser.add_argument("--length", type=int, default=None, help="join to documents so long")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--recipe", type=Path, default=None)
    told = parser.parse_args()
    resolved = resolve(told.model)
    target = load_target(resolved.files, dtype="bfloat16")
    conversations = read_data([told.data], target)
    if told.length:
        conversations = lengthened(conversations, told.length)
    data = split_data(conversations[:DOCUMENTS], target.model.config.context_length)
    recipe = Recipe.read(told.recipe) if told.recipe else Recipe.of_method(told.method)
    beginning = begin_from_target(target, told.model, recipe, data)
    with tempfile.TemporaryDirectory() as folder, PeakMemory() as memory:

        def updates(count: int) -> list[tuple[int, float]]:
            """Train from the beginning; give tokens and seconds after each update."""
            trainer = open_run(
                Path(folder), target=target, files=resolved.files, name=told.model,
                beginning=beginning, data=data, cache_features=True, resume=False,
            )  # fmt: skip
            marks: list[tuple[int, float]] = []

            def note(progress: Progress, _loss: float) -> None:
                marks.append((progress.tokens, progress.seconds))
                if len(marks) == count:
                    raise EnoughError

            with suppress(EnoughError):
                trainer.train(Limits(tokens=10**9, measure_tokens=10**9), on_step=note)
            return marks

        updates(WARM_UP)
        # The same documents again, whose features are there now.
        with FlopCounterMode(display=False) as counter:
            counted = updates(WARM_UP)[-1][0]
        operations = counter.get_total_flops() / counted
        rate = product_rate()
        marks = updates(WARM_UP + told.updates)
    tokens = marks[-1][0] - marks[WARM_UP - 1][0]
    seconds = marks[-1][1] - marks[WARM_UP - 1][1]
    machine = describe_machine()
    print(json.dumps({
        "processor": machine.processor, "torch": machine.torch_version,
        "threads": machine.threads, "recipe": recipe.model_dump(), "length": told.length,
        "updates": told.updates, "response_tokens": tokens,
        "response_tokens_per_s": round(tokens / seconds, 1),
        "product_gflop_per_response_token": round(operations / 1e9, 3),
        "machine_gflops": round(rate / 1e9, 1),
        "share_of_machine": round(operations * tokens / seconds / rate, 3),
        "peak_memory_gb": round(memory.bytes / 1e9, 2),
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
