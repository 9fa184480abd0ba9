"""vLLM behind the protocol: plain, or with a P-EAGLE drafter."""

from collections.abc import Sequence

import vllm
from vllm import EngineArgs, SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine

from .loop import Prompt, Recorder, Settings, closed_loop, serve


class Vllm:
    """Answers with continuous batching, the engine in this process."""

    def __init__(self, settings: Settings) -> None:
        drafter = settings["drafter"]
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=settings["model"],
                dtype="bfloat16",
                max_model_len=settings["context_length"],
                max_num_seqs=settings["max_concurrent"],
                # Every repetition reads its prompts anew, as ours does.
                enable_prefix_caching=False,
                enforce_eager=settings["eager"],
                speculative_config=None
                if drafter is None
                else {
                    "method": "eagle3",
                    "model": drafter,
                    "num_speculative_tokens": settings["draft_tokens"],
                    "parallel_drafting": True,
                },
            )
        )
        self._count = 0

    def about(self) -> Settings:
        """Say which release runs."""
        return {"vllm": vllm.__version__, "dtype": "bfloat16"}

    def answer(
        self,
        prompts: list[Prompt],
        concurrency: int,
        request: Settings,  # noqa: ARG002
        record: Recorder,
    ) -> None:
        """Answer prompts."""
        told: dict[str, int] = {}
        passes: dict[str, int] = {}

        def begin(prompt: Prompt) -> None:
            told[prompt["id"]] = passes[prompt["id"]] = 0
            self._engine.add_request(
                prompt["id"],
                {"prompt_token_ids": prompt["token_ids"]},
                SamplingParams(temperature=0, max_tokens=prompt["max_tokens"], detokenize=False),
            )

        def step() -> list[tuple[str, Sequence[int], bool, int | None]]:
            moved: list[tuple[str, Sequence[int], bool, int | None]] = []
            for output in self._engine.step():
                name, written = output.request_id, output.outputs[0].token_ids
                new = list(written[told[name] :])
                passes[name] += told[name] > 0 and bool(new)
                told[name] = len(written)
                moved.append((name, new, output.finished, passes[name]))
            return moved

        closed_loop(prompts, concurrency, record, begin=begin, step=step)


def main() -> None:
    """Serve."""
    serve(Vllm)
