"""What a result's figures look like, for people and for programs."""

from typing import Any

from rich.table import Table

from peagle.llm import LLM, Result


def as_object(result: Result, llm: LLM) -> dict[str, Any]:
    """Give a result as `peagle generate --json` prints it."""
    statistics = result.statistics
    completion_tokens = sum(len(choice.token_ids) for choice in result.choices)
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "usage": {
            "prompt_tokens": len(result.prompt_token_ids),
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
        },
        "dtype": str(llm.target.dtype).removeprefix("torch."),
        "quantization": llm.target.quantization,
        "backend": llm.target.backend,
        "speculation": statistics.as_object(result.method),
        "timing": {
            "load_s": llm.load_s,
            "ttft_s": result.timing.ttft_s,
            "decode_s": result.timing.decode_s,
            "tokens_per_s": result.timing.tokens_per_s,
            "step_ms": step_ms(result),
        },
        "seed": result.seed,
    }


def as_table(result: Result, llm: LLM) -> Table:
    """Give a result's figures as a table for people."""
    statistics, timing = result.statistics, result.timing
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    length = statistics.acceptance_length
    by_depth = "  ".join(f"{share:.2f}" for share in statistics.acceptance_by_depth)
    rows = {
        "speculation": result.method,
        "acceptance length": "–" if length is None else f"{length:.2f} tokens per target pass",
        "accepted by depth": by_depth or "–",
        "target passes": f"{statistics.target_passes}",
        "drafter passes": f"{statistics.draft_passes}",
        "draft tokens": f"{statistics.drafted_tokens}, accepted {statistics.accepted_tokens}",
        "prompt": f"{len(result.prompt_token_ids)} tokens, {result.cached_tokens} of them cached",
        "answer": f"{len(result.token_ids)} tokens, ended by {result.finish_reason}",
        "computed in": f"{llm.target.precision}, {llm.target.backend}",
        "load": f"{llm.load_s:.2f} s",
        "first token": f"{timing.ttft_s * 1000:.0f} ms",
        "speed": f"{timing.tokens_per_s:.1f} tokens/s",
        "a step": _step_line(result),
    }
    for name, value in rows.items():
        table.add_row(f"[dim]{name}[/dim]", value)
    return table


def step_ms(result: Result) -> dict[str, float]:
    """Give the mean milliseconds of a step, by what they were spent on."""
    timing = result.timing
    spent = {**timing.steps.parts(), "detokenizing": timing.detokenizing_s}
    return {name: 1000 * seconds / max(1, timing.steps.steps) for name, seconds in spent.items()}


def _step_line(result: Result) -> str:
    parts = step_ms(result)
    each = ", ".join(f"{name} {ms:.2f}" for name, ms in parts.items())
    return f"{sum(parts.values()):.2f} ms: {each}"
