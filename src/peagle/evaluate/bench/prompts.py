"""The prompts of a run, as tokens of the target."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from peagle.errors import InvalidRequestError
from peagle.evaluate.bench.answer import BenchPrompt
from peagle.evaluate.workload import by_category, read_workload

BUNDLED: Final = Path(__file__).parent / "prompts.jsonl"
_USUAL_MAX_TOKENS: Final = 256


def read_prompts(
    path: Path,
    encode: Callable[[Any], list[int]],
    *,
    per_category: int | None,
    max_tokens: int | None,
    context_length: int,
) -> list[BenchPrompt]:
    """Read prompts, and mix their categories so that a batch holds all kinds.

    Args:
        path: A file as `peagle.evaluate.workload.read_workload` reads it.
        encode: Turns a conversation into tokens of the target.
        per_category: Most prompts of a category; None for all.
        max_tokens: Most tokens of an answer, whatever the file says.
        context_length: Most tokens of prompt and answer together.

    Raises:
        InvalidRequestError: The file cannot be read, a line is wrong or too long, or two prompts
            have one name.
    """
    groups = by_category(read_workload(path))
    chosen = [group[:per_category] for group in groups.values()]
    longest = max(len(group) for group in chosen)
    mixed = [group[place] for place in range(longest) for group in chosen if place < len(group)]
    prompts: list[BenchPrompt] = []
    for one in mixed:
        try:
            token_ids = encode(one.messages)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"{path}, {one.id}: {error.problem}", remedy=error.remedy, field="prompts"
            ) from None
        limit = min(
            one.max_tokens or _USUAL_MAX_TOKENS, max_tokens or one.max_tokens or _USUAL_MAX_TOKENS
        )
        if len(token_ids) + limit > context_length:
            raise InvalidRequestError(
                f"{path}, {one.id}: the prompt has {len(token_ids)} tokens and the answer up to "
                f"{limit}, but the model takes {context_length} of both together.",
                remedy="Shorten it, lower max_tokens, or take the line out.",
                field="prompts",
            )
        prompts.append(BenchPrompt(one.id, one.category, one.messages, token_ids, limit))
    _refuse_twins(path, prompts)
    return prompts


def _refuse_twins(path: Path, prompts: Sequence[BenchPrompt]) -> None:
    seen: set[str] = set()
    for one in prompts:
        if one.id in seen:
            raise InvalidRequestError(
                f"{path} has two prompts called {one.id!r}.",
                remedy="Give each another id, or leave the ids out.",
                field="prompts",
            )
        seen.add(one.id)
