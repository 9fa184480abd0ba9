"""`peagle generate`: answer one prompt, or a file of them."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peagle.cli.options import AnswerOptions, with_shared_options, with_usual_length
from peagle.errors import InvalidRequestError
from peagle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from peagle.evaluate.workload import WorkloadPrompt
    from peagle.llm import LLM


@dataclass(frozen=True)
class FormOptions(AnswerOptions):
    """The options of answers, and the form that they must have; each field is an option."""

    json_schema: Annotated[
        str | None,
        typer.Option(help="The answer is JSON of this schema: a file, or the schema itself."),
    ] = None
    json_object: Annotated[
        bool, typer.Option("--json-object", help="The answer is a JSON object.")
    ] = False
    regex: Annotated[
        str | None, typer.Option(help="The answer matches this regular expression.")
    ] = None
    choice: Annotated[
        list[str] | None,
        typer.Option(help="The answer is this text; give it several times for a choice."),
    ] = None
    grammar: Annotated[
        Path | None,
        typer.Option(help="The answer follows the grammar in this file (GBNF or Lark)."),
    ] = None

    def params(self) -> SamplingParams:
        """Give the sampling parameters, with the answer's form.

        Raises:
            InvalidRequestError: An option is impossible, or a file cannot be read.
        """
        schema = self.json_schema
        if schema is not None and not schema.lstrip().startswith("{"):
            schema = _read(Path(schema), "--json-schema")
        told = {
            "json": schema,
            "json_object": self.json_object or None,
            "regex": self.regex,
            "choice": self.choice or None,
            "grammar": _read(self.grammar, "--grammar") if self.grammar is not None else None,
        }
        form = {name: value for name, value in told.items() if value is not None}
        params = super().params()
        return params.replaced(structured_outputs=form) if form else params


@with_shared_options
def generate(
    options: FormOptions,
    prompt: Annotated[
        str | None, typer.Argument(help="What to answer; `-` reads standard input.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per answer.")
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="A file with a JSON object a line: `messages` or `prompt`, and if wanted "
            "`id`, `category`, `max_tokens`. Prints one JSON object a line."
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="How many prompts of the file to answer at a time.")
    ] = 1,
) -> None:
    """Answer a prompt."""
    params = options.params()
    if prompts is not None:
        if prompt is not None:
            raise InvalidRequestError(
                "Both a prompt and --prompts are given.", remedy="Give one of them."
            )
        if options.stats:
            raise InvalidRequestError(
                "--stats and --prompts are given together.",
                remedy="Leave --stats out: every line of the output holds its figures.",
            )
        from peagle.evaluate.workload import read_workload

        workload = read_workload(prompts)
    elif prompt is None:
        raise InvalidRequestError(
            "There is no prompt.", remedy='Write one, as in: peagle generate "Why is the sky blue?"'
        )
    elif concurrency > 1:
        raise InvalidRequestError(
            f"--concurrency is {concurrency}, but there is only one prompt.",
            remedy="Give a file with --prompts.",
        )
    elif prompt == "-":
        prompt = sys.stdin.read()
    if prompt is not None and not prompt.strip():
        raise InvalidRequestError(
            "The prompt is empty.", remedy="Write what the model should answer.", field="prompt"
        )
    llm = options.load(speculate=not options.no_speculation)
    if prompts is not None:
        _answer_file(llm, workload, params, concurrency)
    else:
        assert prompt is not None
        _answer(llm, prompt, params, stats=options.stats, as_json=as_json)


def _read(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{option}: {file} cannot be read: {error}.",
            remedy="Give a text file.",
            field=option,
        ) from None


def _answer(llm: "LLM", prompt: str, params: SamplingParams, *, stats: bool, as_json: bool) -> None:
    from rich.console import Console

    from peagle.cli.statistics import as_object, as_table

    generation = llm.stream(prompt, with_usual_length(params, llm, prompt))
    try:
        for piece in generation:
            if not as_json:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        if not as_json:
            sys.stdout.write("\n")
        raise
    result = generation.result
    if as_json:
        sys.stdout.write(json.dumps(as_object(result, llm), ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("\n")
    if stats:
        Console(stderr=True).print(as_table(result, llm))


def _answer_file(
    llm: "LLM", workload: "list[WorkloadPrompt]", params: SamplingParams, concurrency: int
) -> None:
    from peagle.cli.statistics import as_object

    for first in range(0, len(workload), concurrency):
        some = workload[first : first + concurrency]
        results = llm.generate(
            [entry.messages for entry in some],
            [
                with_usual_length(
                    params.replaced(max_tokens=params.max_tokens or entry.max_tokens),
                    llm,
                    entry.messages,
                )
                for entry in some
            ],
        )
        for entry, result in zip(some, results, strict=True):
            named = {"id": entry.id, "category": entry.category}
            line = named | as_object(result, llm)
            sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
            sys.stdout.flush()
