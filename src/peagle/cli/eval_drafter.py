"""`peagle eval-drafter`: acceptance of drafters and text sources, side by side."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peagle.cli.options import (
    DEFAULT_MAX_TOKENS,
    AnswerLimitOption,
    CorpusOption,
    DeviceOption,
    DtypeOption,
    JsonReportOption,
    QuantizationOption,
    TemperatureOption,
)
from peagle.errors import InvalidRequestError

if TYPE_CHECKING:
    from peagle.draft.corpus import Corpus
    from peagle.evaluate.report import Report
    from peagle.llm import LLM


def eval_drafter(
    model: Annotated[str, typer.Argument(help="The target: a name, a GGUF file or a folder.")],
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]DRAFTER",
            help="A drafter (a file, a folder with a public checkpoint or hf:ORGANISATION/NAME), "
            "with a name for the table if wanted; may be given again. The model's own if left out.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="A file with a JSON object a line: `prompt`, `messages` or `prompt_token_ids`, "
            "with `response` or `response_token_ids` where it was answered before. The public "
            "workload if left out."
        ),
    ] = None,
    nodes: Annotated[str, typer.Option(help="Sizes of the trees.")] = "7,15,31",
    chain: Annotated[
        int, typer.Option(help="Draft tokens of the chain of each drafter alone; 0 for none.")
    ] = 7,
    sources: Annotated[
        str | None,
        typer.Option(
            help="Mixes of network, lookup and corpus, such as network,network+lookup+corpus. "
            "All if left out."
        ),
    ] = None,
    corpus: CorpusOption = None,
    max_tokens: AnswerLimitOption = None,
    temperature: TemperatureOption = 0.0,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="What to sample with (0 if left out); may be given again."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for eval-drafter.json, eval-drafter.md, acceptance.png and answers.jsonl."
        ),
    ] = None,
    as_json: JsonReportOption = False,
    dtype: DtypeOption = "auto",
    quantization: QuantizationOption = "auto",
    device: DeviceOption = "auto",
) -> None:
    """Measure how many drafts a model accepts, from each source and from all of them together.

    The target answers the prompts once; every way of drafting is then replayed on the answers.
    """
    from rich.console import Console
    from rich.progress import Progress

    from peagle.catalog import resolve
    from peagle.draft.mixture import MixturePrior
    from peagle.draft.storage import read_network_weights
    from peagle.evaluate.answers import read_prompts, record_answers
    from peagle.evaluate.comparison import compare, steps
    from peagle.evaluate.configurations import (
        check_chain,
        choose_mixes,
        configurations,
        parse_nodes,
    )
    from peagle.evaluate.drafters import named_files, open_drafters, read_configs
    from peagle.evaluate.report import Report
    from peagle.evaluate.workload import PUBLIC_WORKLOAD
    from peagle.llm import LLM

    sizes = parse_nodes(nodes)
    check_chain(chain)
    seeds = _seeds(temperature, seed)
    files = named_files(drafter or [])
    configs = read_configs(files)
    _make_folder(output)
    resolved = resolve(model)
    if not files:
        files = {path.stem: path for path in resolved.drafters.values()}
        configs = read_configs(files)
    table = corpus or resolved.corpus
    mixes = choose_mixes(sources, network=bool(files), corpus=table is not None)
    llm = LLM(model, corpus=corpus, dtype=dtype, quantization=quantization, device=device)
    drafters = open_drafters(files, configs, llm.target, llm.tokenizer.fingerprint())
    ways = configurations(
        [(name, config.method) for name, config in configs.items()],
        mixes, nodes=sizes, chain=chain, usual=llm.spec,
    )  # fmt: skip
    path = prompts or PUBLIC_WORKLOAD
    entries = read_prompts(llm, path, sampled=temperature > 0)
    console = Console(stderr=True)
    if not files:
        console.print(f"{llm.name} has no drafter and none is given: text sources alone.")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("Answering", total=len(entries) * len(seeds))
        recorded = record_answers(
            llm, entries, temperature=temperature, seeds=seeds, max_tokens=max_tokens,
            usual_max_tokens=DEFAULT_MAX_TOKENS, on_answered=lambda: progress.advance(bar),
        )  # fmt: skip
        replaying = progress.add_task(
            "Replaying", total=steps(len(recorded), len(ways), len(drafters))
        )
        measured = compare(
            llm.target, recorded, ways, drafters=drafters,
            weights={name: read_network_weights(path) for name, path in files.items()},
            corpus=_corpus(table, llm), prior=MixturePrior.load(),
            on_step=lambda: progress.advance(replaying),
        )  # fmt: skip
    setting = {
        "model": llm.name,
        "dtype": str(llm.target.dtype).removeprefix("torch."),
        "quantization": llm.target.quantization,
        "prompts": str(path) if prompts is not None else "public workload",
        "drafters": {
            name: {
                "file": str(files[name]),
                "method": config.method,
                "draft_vocab_size": config.draft_vocab_size,
            }
            for name, config in configs.items()
        },
        "corpus": str(corpus) if corpus else "the model's own" if table else None,
        "temperature": temperature,
        "seeds": seeds if temperature > 0 else [],
        "max_tokens": max_tokens,
    }
    report = Report.of(setting, recorded, measured)
    if output is not None:
        _write(report, output)
    _show(report, as_json=as_json)


def _seeds(temperature: float, told: list[int] | None) -> list[int]:
    """Check how answers are sampled, before anything is loaded."""
    from peagle.sampling_params import SamplingParams

    if told and temperature == 0:
        raise InvalidRequestError(
            f"--seed {told[0]} is given, but at temperature 0 answers are greedy.",
            remedy="Set --temperature above 0, or leave --seed out.",
            field="seed",
        )
    seeds = told or [0]
    if len(set(seeds)) < len(seeds):
        raise InvalidRequestError(
            f"--seed is given twice with the same value: {seeds}.",
            remedy="Give each seed once: the same one makes the same answers.",
            field="seed",
        )
    for one in seeds:
        SamplingParams(temperature=temperature, seed=one)
    return seeds


def _make_folder(output: Path | None) -> None:
    if output is None:
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(output, error) from None


def _corpus(table: Path | None, llm: "LLM") -> "Corpus | None":
    from peagle.draft.corpus import Corpus

    if table is None:
        return None
    return Corpus.load(
        table,
        tokenizer_fingerprint=llm.tokenizer.fingerprint(),
        vocab_size=llm.target.config.vocab_size,
    )


def _write(report: "Report", output: Path) -> None:
    from peagle.evaluate.acceptance_plot import draw_acceptance
    from peagle.evaluate.answers import save_answers

    categories = list(dict.fromkeys(one.category for one in report.recorded))
    try:
        (output / "eval-drafter.json").write_text(
            json.dumps(report.as_object(), indent=1, ensure_ascii=False) + "\n", "utf-8"
        )
        (output / "eval-drafter.md").write_text(report.as_markdown(), "utf-8")
        save_answers(report.recorded, output / "answers.jsonl")
        draw_acceptance(report.rows, categories, output / "acceptance.png")
    except OSError as error:
        raise _unwritable(output, error) from None


def _unwritable(output: Path, error: OSError) -> InvalidRequestError:
    return InvalidRequestError(
        f"{output} cannot be written ({error.strerror or error}).",
        remedy="Give a folder that you may write to, on a disk with room.",
        field="output",
    )


def _show(report: "Report", *, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    if as_json:
        sys.stdout.write(json.dumps(report.as_object(), ensure_ascii=False) + "\n")
        return
    console = Console(highlight=False)
    for text in report.tables():
        table = Table(title=text.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for place, heading in enumerate(text.headings):
            table.add_column(heading, justify="right" if place else "left", no_wrap=place > 0)
        for row in text.rows:
            table.add_row(*row)
        console.print(table)
        console.print()
    console.print(report.summary())
