"""Hugging Face transformers behind the protocol: plain, or with its prompt lookup."""

import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from .loop import Prompt, Recorder, Settings, serve


class _Watch(StoppingCriteria):
    """Notes the tokens of each row after each pass; it stops nothing."""

    def __init__(self, width: int, rows: int) -> None:
        self._seen = width
        self._ended = [False] * rows
        self.times: list[tuple[float, int, int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> Any:  # noqa: ARG002
        self.times.append((time.perf_counter(), self._seen, input_ids.shape[1]))
        self._seen = input_ids.shape[1]
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Transformers:
    """Answers in static batches, padded on the left: it has no continuous batching on CPU."""

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(settings["threads"])
        self._model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.bfloat16)
        self._eos = settings["eos_token_ids"]

    def about(self) -> Settings:
        """Say which release runs."""
        return {"transformers": transformers.__version__, "torch": torch.__version__,
                "dtype": "bfloat16"}  # fmt: skip

    def answer(
        self, prompts: list[Prompt], concurrency: int, request: Settings, record: Recorder
    ) -> None:
        """Answer prompts; prompt lookup takes one at a time."""
        together = 1 if request["lookup"] else concurrency
        for prompt in prompts[:concurrency]:
            record.sent(prompt)
        sent = min(concurrency, len(prompts))
        for first in range(0, len(prompts), together):
            some = prompts[first : first + together]
            for at in sorted(self._batch(some, request, record)):
                # Whoever got the answer sends the next request, which waits for its batch.
                if sent < len(prompts):
                    record.sent(prompts[sent], at)
                    sent += 1

    def _batch(self, some: list[Prompt], request: Settings, record: Recorder) -> list[float]:
        width = max(len(prompt["token_ids"]) for prompt in some)
        pad = self._eos[0]
        ids = torch.full((len(some), width), pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(some):
            own = torch.tensor(prompt["token_ids"])
            ids[row, width - len(own) :] = own
            mask[row, width - len(own) :] = 1
        watch = _Watch(width, len(some))
        options: Settings = {"prompt_lookup_num_tokens": 10} if request["lookup"] else {}
        with torch.inference_mode():
            output = self._model.generate(
                ids, attention_mask=mask, do_sample=False, eos_token_id=self._eos,
                max_new_tokens=max(prompt["max_tokens"] for prompt in some), pad_token_id=pad,
                stopping_criteria=StoppingCriteriaList([watch]), **options,
            )  # fmt: skip
        ended = []
        for row, prompt in enumerate(some):
            own_end = _length(output[row, width:].tolist(), self._eos, prompt["max_tokens"])
            pieces = [
                (at, output[row, start : min(end, width + own_end)].tolist())
                for at, start, end in watch.times
                if start < width + own_end
            ]
            for at, tokens in pieces:
                record.arrived(prompt["id"], tokens, at)
            record.finished(prompt["id"], passes=len(pieces) - 1)
            ended.append(pieces[-1][0])
        return ended


def _length(tokens: list[int], eos: list[int], limit: int) -> int:
    """Tokens of an answer, the one that ended it included; a batch goes on to its longest."""
    for place, token in enumerate(tokens[:limit], 1):
        if token in eos:
            return place
    return min(len(tokens), limit)


def main() -> None:
    """Serve."""
    serve(Transformers)
