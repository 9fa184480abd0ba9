"""Print where the milliseconds of the engine's steps go, on the public workload.

python scripts/step_times.py [--concurrency 1 4 16] [--tokens 64] [--model NAME]
"""

import argparse
from copy import copy

from rich.console import Console
from rich.table import Table

from peagle import LLM, SamplingParams
from peagle.evaluate.workload import read_workload

SPECS = {
    "none": {"method": "none"},
    "text, adaptive": {"method": "lookup"},
    "text, pinned": {"method": "lookup", "adaptive": False},
    "network and text, adaptive": {"method": "peagle"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    arguments = parser.parse_args()
    llm = LLM(arguments.model, prefix_caching=False)
    workload = read_workload()
    params = SamplingParams(max_tokens=arguments.tokens, ignore_eos=True)
    parts = list(llm.engine.seconds.parts())
    table = Table("at a time", "drafts", "steps", "tokens", "ms", *parts, "detokenizing")
    for count in arguments.concurrency:
        some = workload[:: max(1, len(workload) // count)][:count]
        for name, spec in SPECS.items():
            generations = [
                llm.stream(prompt.messages, params, parallel_drafting_spec=spec) for prompt in some
            ]
            sequences = [one for generation in generations for one in generation.sequences]
            while any(not one.output_ids for one in sequences):
                llm.step()
            before = copy(llm.engine.seconds)
            written = sum(len(one.output_ids) for one in sequences)
            while not all(generation.finished for generation in generations):
                llm.step()
            spent = llm.engine.seconds.since(before)
            for one in sequences:
                assert one.stops.text
            written = sum(len(one.output_ids) for one in sequences) - written
            text_s = sum(one.stops.detokenizing_s for one in sequences)
            each = [*spent.parts().values(), text_s]
            table.add_row(
                str(count), name, str(spent.steps), f"{written / spent.steps:.2f}",
                f"{1000 * spent.total / spent.steps:.1f}",
                *(f"{1000 * seconds / spent.steps:.2f}" for seconds in each),
            )  # fmt: skip
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
