"""Measure speed side by side in one run, over the public workload.

Interleaved repetitions of: transformers (one stream), our engine without speculation (one stream),
with lookup and corpus (one stream), and sixteen prompts together without speculation. Prints
tokens per second, ratios per category (medians over repetitions), and what drafting costs.

    python scripts/speed.py [--runs 5] [--max-tokens N] [--per-category N] [--no-transformers]
"""

import argparse
import json
import time
from collections import defaultdict
from copy import copy
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from peagle import LLM, SamplingParams
from peagle.evaluate.machine import describe_machine
from peagle.evaluate.workload import WorkloadPrompt, by_category, read_workload

TOGETHER = 16


def transformers_model(model: str) -> Any:
    """Load the same weights into transformers, bfloat16."""
    from compare_transformers import reference_of

    return reference_of(model).to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--per-category", type=int, default=6)
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    groups = by_category(read_workload())
    prompts = [p for group in groups.values() for p in group[: arguments.per_category]]
    limits = {p.id: min(p.max_tokens or 256, arguments.max_tokens) for p in prompts}
    llm = LLM(arguments.model, dtype="bfloat16", prefix_caching=False)
    reference = None if arguments.no_transformers else transformers_model(arguments.model)
    llm.generate("Hello", SamplingParams(max_tokens=8))

    def ours(prompt: WorkloadPrompt, *, speculate: bool) -> tuple[int, float]:
        began = time.perf_counter()
        result = llm.generate(
            [prompt.messages],
            SamplingParams(max_tokens=limits[prompt.id]),
            parallel_drafting=speculate,
        )[0]
        return len(result.token_ids), time.perf_counter() - began

    def theirs(prompt: WorkloadPrompt) -> tuple[int, float]:
        ids = torch.tensor([llm.encode(prompt.messages)])
        began = time.perf_counter()
        with torch.inference_mode():
            output = reference.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False,
                max_new_tokens=limits[prompt.id], eos_token_id=2, pad_token_id=2,
            )  # fmt: skip
        return output.shape[1] - ids.shape[1], time.perf_counter() - began

    speeds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    drafting: list[float] = []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("Measuring", total=arguments.runs * len(prompts))
        for run in range(arguments.runs):
            counted: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])

            def count(
                kind: str, category: str, measured: tuple[int, float],
                counted: dict[tuple[str, str], list[float]] = counted,
            ) -> None:  # fmt: skip
                for where in (category, "all"):
                    counted[kind, where][0] += measured[0]
                    counted[kind, where][1] += measured[1]

            for number, prompt in enumerate(prompts):
                kinds = ["plain", "speculative"]
                for kind in kinds if (run + number) % 2 == 0 else reversed(kinds):
                    before = copy(llm.engine.seconds)
                    count(kind, prompt.category, ours(prompt, speculate=kind == "speculative"))
                    if kind == "speculative":
                        spent = llm.engine.seconds.since(before)
                        drafting.append(spent.drafting / spent.target)
                if reference is not None and run == 0:
                    count("transformers", prompt.category, theirs(prompt))
                progress.advance(bar)
            some = prompts[: len(prompts) // TOGETHER * TOGETHER] or prompts
            for first in range(0, len(some), TOGETHER):
                batch = some[first : first + TOGETHER]
                began = time.perf_counter()
                results = llm.generate(
                    [p.messages for p in batch],
                    [SamplingParams(max_tokens=limits[p.id]) for p in batch],
                    parallel_drafting=False,
                )
                written = sum(len(result.token_ids) for result in results)
                count("sixteen", "all", (written, time.perf_counter() - began))
            for (kind, category), (tokens, seconds) in counted.items():
                speeds[kind][category].append(tokens / seconds)

    def mid(kind: str, category: str) -> float | None:
        return median(speeds[kind][category]) if speeds[kind][category] else None

    rows = []
    for category in [*groups, "all"]:
        ratios = [
            fast / slow
            for fast, slow in zip(
                speeds["speculative"][category], speeds["plain"][category], strict=True
            )
        ]
        rows.append({
            "category": category,
            "transformers": mid("transformers", category),
            "plain": mid("plain", category),
            "speculative": mid("speculative", category),
            "ratio": median(ratios), "lowest ratio": min(ratios), "highest ratio": max(ratios),
        })  # fmt: skip
    together = mid("sixteen", "all")
    report = {
        "machine": vars_of(describe_machine()),
        "prompts": len(prompts),
        "runs": arguments.runs,
        "answers shortened": sum(limits[p.id] < (p.max_tokens or 256) for p in prompts),
        "rows": rows,
        "sixteen together, without speculation": together,
        "drafting over target pass": median(drafting),
    }
    table = Table(title="End-to-end tokens per second, bfloat16, one stream")
    for heading in ("category", "transformers", "plain", "speculative", "ratio", "spread"):
        table.add_column(heading, justify="left" if heading == "category" else "right")
    for row in rows:
        numbers = [row[kind] for kind in ("transformers", "plain", "speculative")]
        table.add_row(
            row["category"],
            *("–" if number is None else f"{number:.1f}" for number in numbers),
            f"{row['ratio']:.2f}",
            f"{row['lowest ratio']:.2f}–{row['highest ratio']:.2f}",
        )
    console = Console(width=100)
    console.print(table)
    plain = mid("plain", "all") or 1.0
    if together is not None:
        console.print(f"16 prompts together, without speculation: {together:.1f} tokens/s, "
                      f"{together / plain:.1f} times one stream")  # fmt: skip
    console.print(f"Drafting takes {100 * median(drafting):.1f}% of the target's time.")
    console.print(f"{arguments.runs} runs of {len(prompts)} prompts (transformers: one run); "
                  f"{report['answers shortened']} answers shortened.")  # fmt: skip
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


def vars_of(record: Any) -> dict[str, Any]:
    """Fields of a dataclass with slots."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


if __name__ == "__main__":
    main()
