"""Plain decoding: one token at a time over a fresh cache, the reference for everything else."""

from peagle.engine.choice import TokenChooser
from peagle.engine.stops import StopRule
from peagle.llm import LLM
from peagle.model.detokenizer import Detokenizer
from peagle.model.kv_cache import page_bytes, pages_for
from peagle.model.rows import SequenceRows
from peagle.sampling_params import SamplingParams


class PlainDecoder:
    """Writes answers to one prompt without the engine: no tree, no batch, no chunk.

    The prompt is read once, token by token; every answer begins behind it.

    Args:
        llm: The model.
        prompt_ids: The prompt.
        max_tokens: Most tokens that an answer will have.
    """

    def __init__(self, llm: LLM, prompt_ids: list[int], max_tokens: int) -> None:
        self._llm = llm
        self._prompt_ids = prompt_ids
        target = llm.target
        positions = len(prompt_ids) + max_tokens
        self._cache = target.new_cache(
            pages_for(positions) * page_bytes(target.config, target.kv_dtype)
        )
        self._sequence = self._cache.open(positions)
        for token in prompt_ids[:-1]:
            rows = [SequenceRows(self._sequence, [token], logits="none")]
            target.forward(self._cache, rows).commit([[0]])
        self._behind_prompt = self._cache.mark(self._sequence)

    def write(self, params: SamplingParams, *, seed: int = 0, choice: int = 0) -> list[int]:
        """Write an answer.

        Args:
            params: How tokens are chosen and when to stop.
            seed: What sampling draws with.
            choice: Which of the request's answers.

        Returns:
            The answer's tokens.
        """
        llm, prompt_ids = self._llm, self._prompt_ids
        eos_ids = llm.tokenizer.eos_token_ids
        grammar = llm.grammar(params)
        chooser = TokenChooser(
            params,
            prompt_ids,
            vocab_size=llm.target.config.vocab_size,
            eos_ids=eos_ids,
            seed=seed,
            choice=choice,
            grammar=grammar.begin() if grammar else None,
        )
        stops = StopRule(
            params,
            eos_ids=eos_ids,
            context_room=llm.context_length - len(prompt_ids),
            detokenizer=Detokenizer(llm.tokenizer),
        )
        self._cache.rewind(self._sequence, self._behind_prompt)
        token = prompt_ids[-1]
        output: list[int] = []
        while True:
            step = llm.target.forward(self._cache, [SequenceRows(self._sequence, [token])])
            step.commit([[0]])
            token = chooser.choose(step.logits[0][0])
            chooser.commit([token])
            output.append(token)
            if stops.push(token, complete=chooser.completed_by()) is not None:
                return output
