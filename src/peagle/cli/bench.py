"""`peagle bench`: our engine and others side by side, in one run."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peagle.cli.options import (
    DEFAULT_MODEL,
    AnswerLimitOption,
    CorpusOption,
    JsonReportOption,
)
from peagle.errors import InvalidRequestError

if TYPE_CHECKING:
    from peagle.catalog import ResolvedModel
    from peagle.evaluate.bench.answer import BenchPrompt
    from peagle.evaluate.bench.contenders import Contender
    from peagle.evaluate.bench.plan import Sources
    from peagle.evaluate.bench.results import Results
    from peagle.evaluate.bench.run import Measured
    from peagle.evaluate.bench.services import ServicePool

_DIFFERENT: Final = 1
_FAILED: Final = 2
_INTERRUPTED: Final = 130
_PAGE: Final = 64
# A drafter looks this far ahead of an answer's end.
_MARGIN: Final = 32


def bench(
    model: Annotated[
        str, typer.Argument(help="The target: a name, a GGUF file or a folder.")
    ] = DEFAULT_MODEL,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="A file with a JSON object a line: `messages` or `prompt`, and if wanted `id`, "
            "`category`, `max_tokens`. The bundled prompts if left out."
        ),
    ] = None,
    per_category: Annotated[
        int | None, typer.Option(min=1, help="Most prompts of a category.")
    ] = None,
    max_tokens: AnswerLimitOption = None,
    concurrency: Annotated[
        str, typer.Option(help="Numbers of requests under way.")
    ] = "1,2,4,8,16,32",
    configurations: Annotated[
        str | None,
        typer.Option(
            help="Ours: off, lookup, lookup+corpus, eagle3, eagle3+text, peagle-chain, "
            "peagle-tree, all; none for nothing. Whatever the model has drafters for if left out."
        ),
    ] = None,
    quantizations: Annotated[
        str | None,
        typer.Option(help="Ours: none (bfloat16), int8, int4. All if left out."),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            help="Others: transformers, transformers-lookup, llama-cpp, llama-cpp-lookup, "
            "openvino, vllm, vllm-peagle; none for nothing. All that are set up if left out."
        ),
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(help="A server with the OpenAI protocol; may be given again."),
    ] = None,
    url_model: Annotated[
        str | None, typer.Option(help="What the server calls the model; its first if left out.")
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="A drafter instead of the model's own of the same method: a file, a folder, or "
            "hf:ORGANISATION/NAME; may be given again for the other method."
        ),
    ] = None,
    corpus: CorpusOption = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of everyone; as many as there are cores if left out."),
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="How often everything is measured.")] = 3,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The contender that ratios are to; ours without speculation if left out."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for bench.json, bench.html, answers.jsonl and logs.")
    ] = Path("bench"),
    as_json: JsonReportOption = False,
    setup_peers: Annotated[
        bool,
        typer.Option(
            "--setup-peers", help="Make the environments of --peers (all if left out), and end."
        ),
    ] = False,
) -> None:
    """Measure speed, latency and acceptance, and check that our tokens are those without drafts."""
    from peagle.evaluate.bench.contenders import PEERS, choose_names

    if setup_peers:
        chosen = choose_names(peers, list(PEERS), list(PEERS), "peers", "peer")
        _set_up(chosen)
        return
    from rich.console import Console

    from peagle.catalog import resolve, resolve_drafter
    from peagle.evaluate.bench.contenders import OFF, OWN, choose_concurrencies, own_name
    from peagle.evaluate.bench.plan import (
        kv_cache_gib,
        own_contenders,
        peer_contenders,
        read_sources,
        server_contender,
    )
    from peagle.evaluate.bench.results import sum_up
    from peagle.evaluate.bench.services import ServicePool, build_service
    from peagle.quantization import QUANTIZATIONS

    ways = choose_names(quantizations, QUANTIZATIONS, QUANTIZATIONS, "quantizations",
                        "quantisation")  # fmt: skip
    own = choose_names(configurations, list(OWN), list(OWN), "configurations", "configuration")
    known = choose_names(peers, list(PEERS), list(PEERS), "peers", "peer")
    console = Console(stderr=True)
    resolved = resolve(model)
    sources = read_sources(resolved, [resolve_drafter(one) for one in drafter or []], corpus)
    if configurations is None:
        own = _possible(own, sources, console)
    if peers is None:
        known = _set_up_already(known, resolved, sources, console)
    asked, encode, eos = _read_prompts(resolved, prompts, per_category, max_tokens)
    concurrencies = choose_concurrencies(concurrency, len(asked))
    used = threads or _cores()
    longest = max(len(one.token_ids) + one.max_tokens for one in asked) + _MARGIN
    context_length = -(-longest // _PAGE) * _PAGE
    streams = max(concurrencies)
    bytes_per_token = resolved.entry.kv_bytes_per_token if resolved.entry else 1 << 17
    common = {
        "threads": used,
        "context_length": context_length,
        "max_concurrent": streams,
        "eos_token_ids": eos,
        "kv_cache_gib": kv_cache_gib(bytes_per_token, context_length, streams),
    }
    contenders = [
        *own_contenders(own, ways, model, sources, threads=used, max_concurrent=streams),
        *peer_contenders(known, resolved, sources, common),
        *(server_contender(one, url_model) for one in url or []),
    ]
    chosen_baseline = _baseline(baseline, contenders, own_name(OFF, ways[0]) if ways else "")
    _make_folder(output)
    pool = ServicePool(
        contenders,
        lambda spec: build_service(spec, threads=used, log_folder=output / "logs", encode=encode),
        asked[:1],
    )
    setting = {
        "model": resolved.name,
        "prompts_file": str(prompts) if prompts else "bundled",
        "concurrencies": concurrencies,
        "repetitions": repetitions,
        "threads": used,
        "max_tokens": max_tokens,
        "per_category": per_category,
        "drafters": [path.name for path in sources.drafters.values()],
        "corpus": None if sources.corpus is None else sources.corpus.name,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(used),
    }
    measured = _measure(pool, contenders, asked, console, output, concurrencies, repetitions)
    results = sum_up(
        measured.cells, contenders, asked, baseline=chosen_baseline, setting=setting,
        start_ups=pool.start_ups, ended_early=measured.ended_early,
    )  # fmt: skip
    _write(results, output)
    _show(results, output, as_json=as_json)
    if results.parity.differing:
        raise typer.Exit(_DIFFERENT)
    if measured.ended_early is not None:
        raise typer.Exit(_INTERRUPTED if measured.ended_early == "Interrupted." else _FAILED)


def _set_up(names: list[str]) -> None:
    from rich.console import Console

    from peagle.evaluate.bench.contenders import PEERS
    from peagle.evaluate.bench.environments import PACKAGES, make_environment

    console = Console(stderr=True, highlight=False)
    for environment in dict.fromkeys(PEERS[name].environment for name in names):
        wanted = ", ".join(PACKAGES[environment].install)
        with console.status(f"Installing {wanted} (this may take minutes)"):
            folder = make_environment(environment)
        console.print(f"{environment}: {folder}")


def _possible(names: list[str], sources: "Sources", console: Any) -> list[str]:
    """Leave out what there is no drafter or corpus for."""
    left_out = [name for name in names if sources.lacking(name) is not None]
    _say_left_out(console, left_out, "there is no drafter or corpus for them")
    return [name for name in names if name not in left_out]


def _set_up_already(
    names: list[str], resolved: "ResolvedModel", sources: "Sources", console: Any
) -> list[str]:
    """Leave out what has no environment or cannot read the model."""
    from peagle.evaluate.bench.contenders import PEERS
    from peagle.evaluate.bench.environments import is_made

    left_out = [
        name
        for name in names
        if not is_made(PEERS[name].environment)
        or (PEERS[name].needs == "gguf" and resolved.files.is_dir())
        or (PEERS[name].drafter and "peagle" not in sources.drafters)
    ]
    _say_left_out(console, left_out, "they are not set up (--setup-peers) or cannot read this")
    return [name for name in names if name not in left_out]


def _machine(threads: int) -> dict[str, Any]:
    from peagle.evaluate.machine import describe_machine

    machine = describe_machine()
    fields = {name: getattr(machine, name) for name in type(machine).__dataclass_fields__}
    return fields | {"threads": threads}


def _say_left_out(console: Any, names: list[str], why: str) -> None:
    if names:
        console.print(f"Left out, because {why}: {', '.join(names)}.", highlight=False)


def _read_prompts(
    resolved: "ResolvedModel", path: Path | None, per_category: int | None, max_tokens: int | None
) -> tuple[list["BenchPrompt"], Any, list[int]]:
    """Read prompts with the target's tokenizer, without loading its weights."""
    import torch

    from peagle.evaluate.bench.prompts import BUNDLED, read_prompts
    from peagle.llm.prompt import PromptReader
    from peagle.model.loading import open_tokenizer
    from peagle.model.prepared import open_checkpoint

    tokenizer = open_tokenizer(resolved.files)
    config = open_checkpoint(resolved.files, torch.bfloat16).config
    reader = PromptReader(
        tokenizer,
        resolved.entry.chat_template if resolved.entry else None,
        config.vocab_size,
        resolved.name,
    )
    asked = read_prompts(
        path or BUNDLED, reader.encode, per_category=per_category, max_tokens=max_tokens,
        context_length=config.context_length - _MARGIN,
    )  # fmt: skip
    return asked, tokenizer.encode, sorted(tokenizer.eos_token_ids)


def _cores() -> int:
    """Cores that this process may use, without their second threads."""
    import psutil

    physical = psutil.cpu_count(logical=False) or 1
    try:
        return min(physical, len(psutil.Process().cpu_affinity()))
    except AttributeError:
        # Not every system can bind processes.
        return physical


def _baseline(told: str | None, contenders: "list[Contender]", usual: str) -> str:
    names = [one.name for one in contenders]
    if not names:
        raise InvalidRequestError(
            "There is nothing to measure.",
            remedy="Leave --configurations out, or name peers or a --url.",
            field="configurations",
        )
    if told is None:
        return usual if usual in names else names[0]
    if told not in names:
        raise InvalidRequestError(
            f"--baseline is {told!r}, which is not measured in this run.",
            remedy=f"Choose among {', '.join(names)}.",
            field="baseline",
        )
    return told


def _make_folder(output: Path) -> None:
    try:
        (output / "logs").mkdir(parents=True, exist_ok=True)
        # Those of an earlier run would mix with this one's.
        (output / "answers.jsonl").unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(output, error) from None


def _measure(
    pool: "ServicePool",
    contenders: "list[Contender]",
    asked: "list[BenchPrompt]",
    console: Any,
    output: Path,
    concurrencies: list[int],
    repetitions: int,
) -> "Measured":
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from peagle.errors import PeagleError
    from peagle.evaluate.bench.run import Measured, measure
    from peagle.evaluate.bench.schedule import schedule
    from peagle.train.interruption import sigterm_as_ctrl_c

    measured = Measured()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/"
               "{task.total}"), TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True,
                  disable=not console.is_terminal) as progress, sigterm_as_ctrl_c():  # fmt: skip
        try:
            services = len({one.service.name for one in contenders})
            starting = progress.add_task("Starting", total=services)
            pool.start_all(lambda _: progress.advance(starting))
            turns = schedule(contenders, concurrencies, repetitions, all_loaded=pool.all_loaded)
            bar = progress.add_task("Measuring", total=len(turns) * len(asked))
            measure(
                pool, turns, asked, measured, record=output / "answers.jsonl",
                on_turn=lambda turn: progress.update(
                    bar, description=f"{turn.contender.name}, {turn.concurrency} at a time"
                ),
                on_answer=lambda: progress.advance(bar),
            )  # fmt: skip
        except KeyboardInterrupt:
            measured.ended_early = "Interrupted."
        except PeagleError as error:
            if not measured.cells:
                raise
            measured.ended_early = str(error)
        except OSError as error:
            raise _unwritable(output, error) from None
        finally:
            pool.stop_all()
    if measured.ended_early == "Interrupted." and not measured.cells:
        raise KeyboardInterrupt
    return measured


def _write(results: "Results", output: Path) -> None:
    from peagle.evaluate.bench.html_report import render_html

    try:
        (output / "bench.json").write_text(
            json.dumps(results.as_object(), indent=1, ensure_ascii=False) + "\n", "utf-8"
        )
        (output / "bench.html").write_text(render_html(results), "utf-8")
    except OSError as error:
        raise _unwritable(output, error) from None


def _unwritable(output: Path, error: OSError) -> InvalidRequestError:
    return InvalidRequestError(
        f"{output} cannot be written ({error.strerror or error}).",
        remedy="Give a folder that you may write to, on a disk with room.",
        field="output",
    )


def _show(results: "Results", output: Path, *, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from peagle.evaluate.bench.html_report import headline
    from peagle.evaluate.bench.tables import tables

    if as_json:
        sys.stdout.write(json.dumps(results.as_object(), ensure_ascii=False) + "\n")
    else:
        console = Console(highlight=False)
        console.print(headline(results), style="bold")
        for text in tables(results):
            table = Table(title=text.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
            for place, heading in enumerate(text.headings):
                table.add_column(heading, justify="right" if place else "left", overflow="fold")
            for row in text.rows:
                table.add_row(*row)
            console.print(table)
            console.print()
        console.print(results.parity.sentence(),
                      style="red" if results.parity.differing else "green")  # fmt: skip
        console.print(f"{output / 'bench.html'} has it with pictures.")
    if results.ended_early is not None:
        sys.stderr.write(f"The run ended early: {results.ended_early}\n")
