"""Measure how far quantised targets are from float32, token by token, on recorded answers.

python scripts/quantization_kl.py [--model NAME] [--answers FILE] [--every N] [--max-tokens N]
    [--kinds bfloat16 int8 int4] [--output FILE]

The answers are those of the public prompts; `--every 6` takes each sixth of them and
`--max-tokens` cuts them, for a quick look.
"""

import argparse
import gzip
import json
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from peagle.catalog import resolve
from peagle.evaluate.divergence import divergences
from peagle.evaluate.recorded import Recorded
from peagle.model.loading import DTYPES, load_target
from peagle.model.target import Target

ANSWERS = Path(__file__).parent.parent / "tests" / "draft" / "public_answers.jsonl.gz"


def read_answers(file: Path, every: int, max_tokens: int | None) -> list[Recorded]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        answers = [json.loads(line) for line in lines][::every]
    return [
        Recorded(
            answer["id"],
            answer["category"],
            answer["prompt_token_ids"],
            answer["response_token_ids"][:max_tokens],
            len(answer["response_token_ids"]),
        )
        for answer in answers
    ]


def load(files: Path, kind: str) -> Target:
    if kind in DTYPES:
        return load_target(files, dtype=kind).model
    return load_target(files, quantization=kind).model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--answers", type=Path, default=ANSWERS)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=None)
    parser.add_argument("--kinds", nargs="+", default=["bfloat16", "int8", "int4"])
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    answers = read_answers(arguments.answers, arguments.every, arguments.max_tokens)
    files = resolve(arguments.model).files
    console = Console()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("Reading answers", total=len(answers))
        found = divergences(
            load(files, "float32"),
            [load(files, kind) for kind in arguments.kinds],
            answers,
            lambda: progress.advance(bar),
        )
    rows = [
        {"kind": kind, "mean": one.mean, "p99": one.p99, "top1": one.top1_agreement}
        for kind, one in zip(arguments.kinds, found, strict=True)
    ]
    tokens = len(found[0].nats)
    table = Table(title=f"KL to float32 in nats, {tokens} tokens of {len(answers)} answers")
    for heading in ("", "mean", "p99", "same most probable token"):
        table.add_column(heading, justify="right" if heading else "left")
    for kind, one in zip(arguments.kinds, found, strict=True):
        table.add_row(kind, f"{one.mean:.5f}", f"{one.p99:.5f}", f"{one.top1_agreement:.2%}")
    console.print(table)
    if arguments.output:
        written = {"model": arguments.model, "answers": len(answers), "tokens": tokens}
        arguments.output.write_text(
            json.dumps({**written, "kinds": rows}, indent=1) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()
