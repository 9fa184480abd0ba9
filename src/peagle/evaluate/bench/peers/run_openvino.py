"""OpenVINO GenAI behind the protocol; it reads the GGUF file itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai

from .loop import Prompt, Recorder, Settings, closed_loop, serve


class OpenVino:
    """Answers with continuous batching."""

    def __init__(self, settings: Settings) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = settings["max_concurrent"]
        scheduler.cache_size = settings["kv_cache_gib"]
        # Every repetition reads its prompts anew, as ours does.
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings["model"], scheduler, "CPU", {"INFERENCE_NUM_THREADS": settings["threads"]}
        )
        self._eos = settings["eos_token_ids"]
        # Requests of the engine need numbers of their own, also across repetitions.
        self._number = 0

    def about(self) -> Settings:
        """Say which release runs."""
        return {"openvino-genai": openvino_genai.__version__, "dtype": "the GGUF file's own"}

    def answer(
        self,
        prompts: list[Prompt],
        concurrency: int,
        request: Settings,  # noqa: ARG002
        record: Recorder,
    ) -> None:
        """Answer prompts."""
        handles: dict[str, Any] = {}
        passes: dict[str, int] = {}

        def begin(prompt: Prompt) -> None:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = prompt["max_tokens"]
            config.do_sample = False
            config.eos_token_id = self._eos[0]
            config.stop_token_ids = set(self._eos)
            ids = openvino.Tensor(np.array([prompt["token_ids"]], dtype=np.int64))
            handles[prompt["id"]] = self._pipeline.add_request(self._number, ids, config)
            passes[prompt["id"]] = -1
            self._number += 1

        def step() -> list[tuple[str, Sequence[int], bool, int | None]]:
            self._pipeline.step()
            moved: list[tuple[str, Sequence[int], bool, int | None]] = []
            for name, handle in list(handles.items()):
                tokens: list[int] = []
                while handle.can_read():
                    for output in handle.read().values():
                        tokens += output.generated_ids
                ended = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
                passes[name] += bool(tokens)
                if ended:
                    del handles[name]
                if tokens or ended:
                    moved.append((name, tokens, ended, max(passes[name], 0)))
            return moved

        closed_loop(prompts, concurrency, record, begin=begin, step=step)


def main() -> None:
    """Serve."""
    serve(OpenVino)
