"""Measure acceptance length over the public workload, greedy, with trees of a pinned shape.

python scripts/acceptance.py [--nodes 15] [--model NAME] [--output FILE]
"""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from peagle import LLM, SamplingParams
from peagle.evaluate.acceptance import Answered, by_category, mean_acceptance_length
from peagle.evaluate.workload import read_workload

SOURCES = {
    "lookup": {"method": "lookup", "lookup": True, "corpus": False},
    "corpus": {"method": "lookup", "lookup": False, "corpus": True},
    "lookup + corpus": {"method": "lookup", "lookup": True, "corpus": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--nodes", type=int, nargs="+", default=[15])
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    workload = read_workload()
    llm = LLM(arguments.model)
    rows = []
    for nodes in arguments.nodes:
        for name, sources in SOURCES.items():
            results = llm.generate(
                [prompt.messages for prompt in workload],
                [SamplingParams(max_tokens=prompt.max_tokens) for prompt in workload],
                parallel_drafting_spec={**sources, "max_tree_nodes": nodes, "adaptive": False},
            )
            answers = [
                Answered(prompt.category, result.token_ids, result.statistics)
                for prompt, result in zip(workload, results, strict=True)
            ]
            varied = [answer for answer in answers if answer.varied]
            rows.append({
                "sources": name,
                "nodes": nodes,
                **{
                    category: statistics.acceptance_length
                    for category, statistics in by_category(answers).items()
                },
                "mean": mean_acceptance_length(answers),
                "varied answers": mean_acceptance_length(varied),
                "varied": len(varied),
            })  # fmt: skip
    table = Table(title="Acceptance length, greedy (tokens per target pass, bonus included)")
    for heading in rows[0]:
        table.add_column(heading, justify="left" if heading == "sources" else "right")
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=130).print(table)
    print(f"{len(workload)} answers; varied: distinct bigrams above 0.6")
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
