"""llama.cpp through llama-cpp-python behind the protocol: plain, or with its prompt lookup."""

from collections.abc import Iterator, Sequence

import llama_cpp
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from .loop import Prompt, Recorder, Settings, one_after_another, serve


class LlamaCpp:
    """Answers one prompt at a time, which is what the Python package offers."""

    def __init__(self, settings: Settings) -> None:
        self._eos = set(settings["eos_token_ids"])
        self._passes = 0
        self._llama = Llama(
            settings["model"],
            n_ctx=settings["context_length"],
            n_threads=settings["threads"],
            n_threads_batch=settings["threads"],
            # Prompt lookup reads the logits of every position it verifies.
            logits_all=settings["lookup"],
            # Two draft tokens are what the package's documentation advises for CPUs.
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=2)
            if settings["lookup"]
            else None,
            verbose=False,
        )
        evaluate = self._llama.eval

        def counted(tokens: Sequence[int]) -> None:
            self._passes += 1
            evaluate(tokens)

        self._llama.eval = counted

    def about(self) -> Settings:
        """Say which release runs."""
        return {"llama-cpp-python": llama_cpp.__version__, "dtype": "the GGUF file's own"}

    def answer(
        self,
        prompts: list[Prompt],
        concurrency: int,
        request: Settings,  # noqa: ARG002
        record: Recorder,
    ) -> None:
        """Answer prompts."""
        one_after_another(prompts, concurrency, record, self._write)

    def _write(self, prompt: Prompt) -> Iterator[tuple[list[int], int]]:
        # The prompt of the repetition before would otherwise be found in its cache.
        self._llama.reset()
        self._llama.n_tokens = 0
        self._passes = 0
        written = self._llama.generate(prompt["token_ids"], top_k=1, temp=0.0, min_p=0.0)
        for count, token in enumerate(written, 1):
            yield [token], self._passes - 1
            if token in self._eos or count == prompt["max_tokens"]:
                return


def main() -> None:
    """Serve."""
    serve(LlamaCpp)
