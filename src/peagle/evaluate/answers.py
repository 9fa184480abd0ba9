"""The target's answers to a file of prompts: taken from it, or written by the engine."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from peagle.errors import InvalidRequestError
from peagle.evaluate.recorded import Recorded
from peagle.llm import LLM
from peagle.sampling_params import SamplingParams
from peagle.train.prompt_lines import EXAMPLE, PromptEntry, read_content, read_entries


def read_prompts(llm: LLM, path: Path, *, sampled: bool) -> list[PromptEntry]:
    """Read a file of prompts, with the answers that it has.

    Args:
        llm: The target.
        path: The file.
        sampled: Whether answers are asked for that only the target can give now.

    Raises:
        InvalidRequestError: The file cannot be read or is empty, a line is wrong, a prompt or an
            answer is longer than the context, or answers are recorded that were to be sampled.
        CheckpointError: The file was made with another tokenizer.
    """
    entries = list(read_entries(llm, path, read_content(path)))
    if not entries:
        raise InvalidRequestError(f"{path} holds no prompts.", remedy=EXAMPLE, field="prompts")
    for entry in entries:
        answer = 1 if entry.response is None else len(entry.response)
        if len(entry.prompt) + answer > llm.context_length:
            raise InvalidRequestError(
                f"{entry.where}: the prompt has {len(entry.prompt)} tokens and the answer "
                f"{answer} or more, but {llm.name} takes {llm.context_length} of both together.",
                remedy="Shorten it, or take the line out.",
                field="prompts",
            )
        if sampled and entry.response is not None:
            raise InvalidRequestError(
                f"--temperature is above 0, but {entry.where} is answered already.",
                remedy="Leave --temperature and --seed out, or give prompts without responses.",
                field="temperature",
            )
    return entries


def record_answers(
    llm: LLM,
    entries: Sequence[PromptEntry],
    *,
    temperature: float = 0.0,
    seeds: Sequence[int] = (0,),
    max_tokens: int | None = None,
    usual_max_tokens: int,
    on_answered: Callable[[], None] = lambda: None,
) -> list[Recorded]:
    """Let the target answer what is not answered yet, many prompts at a time.

    Drafts make this faster and change nothing: the answers are those of plain decoding.

    Args:
        llm: The target.
        entries: The prompts.
        temperature: 0 for greedy answers.
        seeds: At a temperature above 0, one answer is sampled with each.
        max_tokens: Most tokens of an answer, recorded ones too, whatever the file says; never
            more than the context leaves.
        usual_max_tokens: The same where neither `max_tokens` nor the file says it.
        on_answered: Told whenever an answer is complete.

    Raises:
        PeagleError: An answer cannot be written.
    """

    def limit_of(entry: PromptEntry) -> int:
        room = llm.context_length - len(entry.prompt)
        return min(room, max_tokens or entry.max_tokens or usual_max_tokens)

    asked = [
        (entry, seed if temperature > 0 else None)
        for seed in (seeds if temperature > 0 else (0,))
        for entry in entries
    ]
    written = iter(_write(llm, [
        (entry, SamplingParams(temperature=temperature, seed=seed,
                               max_tokens=limit_of(entry)))
        for entry, seed in asked if entry.response is None
    ], on_answered))  # fmt: skip
    answers = []
    for entry, seed in asked:
        if entry.response is None:
            answer, limit = next(written), limit_of(entry)
        else:
            answer = list(entry.response[:max_tokens])
            # One that no token ended was cut at its limit.
            ended = answer[-1] in llm.tokenizer.eos_token_ids
            limit = max(len(answer), limit_of(entry)) if ended else len(answer)
            on_answered()
        name = entry.id if seed is None or len(seeds) == 1 else f"{entry.id}/seed-{seed}"
        answers.append(Recorded(name, entry.category, entry.prompt, answer, limit, seed))
    return answers


def save_answers(answers: Sequence[Recorded], path: Path) -> None:
    """Write answers as a file of prompts that are answered, so that they need not be made again."""
    with path.open("w", encoding="utf-8") as lines:
        for one in answers:
            fields = {
                "id": one.id,
                "category": one.category,
                "prompt_token_ids": list(one.prompt),
                "response_token_ids": list(one.answer),
                "max_tokens": one.limit,
            }
            lines.write(json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n")


def _write(
    llm: LLM,
    asked: Sequence[tuple[PromptEntry, SamplingParams]],
    on_answered: Callable[[], None],
) -> list[list[int]]:
    generations = []
    try:
        for entry, params in asked:
            generations.append(llm.stream({"prompt_token_ids": list(entry.prompt)}, params))
        left = list(generations)
        while left:
            llm.step()
            for one in left:
                if one.finished:
                    on_answered()
            left = [one for one in left if not one.finished]
    finally:
        for generation in generations:
            generation.drop()
    return [generation.result.token_ids for generation in generations]
