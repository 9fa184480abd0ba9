"""Our own engine behind the protocol."""

from collections.abc import Sequence

import torch

from peagle import SamplingParams
from peagle.llm import LLM, Generation

from .loop import Prompt, Recorder, Settings, closed_loop, serve


class OurEngine:
    """Answers with the drafting specification that each request names."""

    def __init__(self, settings: Settings) -> None:
        self._llm = LLM(
            settings["model"],
            settings["drafter"],
            corpus=settings["corpus"],
            threads=settings["threads"],
            max_concurrent=settings["max_concurrent"],
            # Every repetition reads its prompts anew.
            prefix_caching=False,
            **settings["precision"],
        )

    def about(self) -> Settings:
        """Say what the weights are."""
        return {"torch": torch.__version__, "precision": self._llm.target.precision}

    def answer(
        self, prompts: list[Prompt], concurrency: int, request: Settings, record: Recorder
    ) -> None:
        """Answer prompts as `request["spec"]` says; None turns speculation off."""
        llm, spec = self._llm, request["spec"]
        running: dict[str, Generation] = {}

        def begin(prompt: Prompt) -> None:
            running[prompt["id"]] = llm.stream(
                {"prompt_token_ids": prompt["token_ids"]},
                SamplingParams(max_tokens=prompt["max_tokens"]),
                parallel_drafting_spec=spec,
                parallel_drafting=spec is not None,
            )

        def step() -> list[tuple[str, Sequence[int], bool, int | None]]:
            llm.step()
            moved: list[tuple[str, Sequence[int], bool, int | None]] = []
            for name, generation in list(running.items()):
                tokens = [token for piece in generation.news() for token in piece.token_ids]
                ended = generation.finished
                passes = None
                if ended:
                    passes = generation.result.statistics.target_passes
                    del running[name]
                if tokens or ended:
                    moved.append((name, tokens, ended, passes))
            return moved

        closed_loop(prompts, concurrency, record, begin=begin, step=step)


def main() -> None:
    """Serve."""
    serve(OurEngine)
