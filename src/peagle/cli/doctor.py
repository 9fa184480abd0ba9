"""`peagle doctor`: what this machine can do, and whether the engine's promise holds on it."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peagle.cli.options import DEFAULT_MODEL, BackendOption, DeviceOption, ModelOption

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from peagle.engine.costs import CostCurve

_BROKEN: Final = 1
_MEASURING_S: Final = 3.0


def doctor(
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = "auto",
    backend: BackendOption = "auto",
    dtype: Annotated[
        str, typer.Option(help="auto checks bfloat16 and float32, unless --quantization is given.")
    ] = "auto",
    quantization: Annotated[
        str,
        typer.Option(help="none, int8 or int4; auto checks what is usual for the model, too."),
    ] = "auto",
) -> None:
    """Check that rows are independent on this machine, and measure what passes cost."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from peagle import native
    from peagle.catalog import resolve
    from peagle.engine.costs import BASE_CONTEXT
    from peagle.engine.measuring import measure_target
    from peagle.evaluate.machine import describe_machine, memory_bandwidth
    from peagle.evaluate.row_check import check_rows
    from peagle.model.loading import choose_device, load_target
    from peagle.model.native_target import obstacle

    console = Console(highlight=False)
    machine = describe_machine()
    bandwidth = memory_bandwidth()
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in {
        "processor": machine.processor,
        "cores": f"{machine.cores} ({machine.threads} threads used)",
        "instructions": machine.instructions,
        "memory": f"{machine.memory_bytes / 1e9:.0f} GB, read at {bandwidth / 1e9:.1f} GB/s",
        "GPU": ", ".join(machine.gpus) or "none",
        "torch": machine.torch_version,
        "native step": native.absence() or f"built, for {', '.join(native.instruction_sets())}",
    }.items():
        facts.add_row(f"[dim]{name}[/dim]", value)
    console.print(facts)
    resolved = resolve(model)
    sound = True
    usual = resolved.quantization.get(choose_device(device).type, "none")
    console.print(f"usual for {resolved.name} here: quantization {usual}")
    for one_dtype, one_quantization in _checked(dtype, quantization, usual):
        loaded = load_target(
            resolved.files,
            dtype=one_dtype,
            quantization=one_quantization,
            device=device,
            backend=backend,
        )
        target = loaded.model
        console.print(
            f"\n[bold]{resolved.name} in {target.precision} on {target.device}, "
            f"{target.backend}[/bold]"
        )
        if target.backend == "torch" and backend == "auto" and target.device.type == "cpu":
            against = obstacle(target.config, target.dtype, target.quantization)
            console.print(f"It runs through torch, since the native step cannot run it: {against}.")
        console.print(f"Weights: {loaded.weight_bytes / 1e6:.0f} MB. {target.row_independence}")
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("Comparing rows")
            check = check_rows(target, partial(_show, progress, bar))
        if check.differing:
            sound = False
            console.print(
                f"[red]Row invariance does not hold[/red]: {check.differing} of {check.compared} "
                "rows differed from plain decoding. Speculation may change answers here; please "
                "report this with the lines above."
            )
        else:
            console.print(
                f"Row invariance [green]holds[/green]: {check.compared} rows, at every place of "
                f"passes of up to {check.largest_pass} rows, equal plain decoding bit for bit."
            )
        costs = measure_target(target, _MEASURING_S)
        console.print(f"A target pass behind {BASE_CONTEXT} tokens, by its rows:")
        console.print(_curve(costs.target))
        console.print(
            f"Each further answer in a pass costs {costs.per_sequence * 1000:.2f} ms more, each "
            f"further 1000 tokens of its context {costs.per_key * 1e6:.1f} ms, and "
            f"{costs.per_row_key * 1e6:.2f} ms for each of its rows."
        )
        reading = target.bytes_read_per_pass / bandwidth
        console.print(
            f"Reading the weights once takes {reading * 1000:.1f} ms at this bandwidth: a pass "
            f"over 1 row takes {costs.target.at(1) / reading:.1f} times as long, one over 16 rows "
            f"{costs.target.at(16) / reading:.1f} times."
        )
    if not sound:
        raise typer.Exit(_BROKEN)


def _checked(dtype: str, quantization: str, usual: str) -> list[tuple[str, str]]:
    """Choose the pairs of dtype and quantisation to check."""
    from peagle.model.loading import DTYPES

    if dtype != "auto" or quantization not in ("auto", "none"):
        return [(dtype, quantization)]
    plain = [(each, "none") for each in DTYPES]
    return [*plain, ("auto", usual)] if quantization == "auto" and usual != "none" else plain


def _curve(curve: "CostCurve") -> "Table":
    """Show a cost curve, and from which probability on draft tokens pay for an answer alone."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("rows", "ms", "tokens/s if all were accepted", "draft tokens pay from"):
        table.add_column(heading, justify="right")
    one = curve.at(1)
    for rows, seconds in zip(curve.rows, curve.seconds, strict=True):
        # Expected tokens 1 + p (rows - 1) over these seconds, against one token over one row's.
        least = (seconds / one - 1) / (rows - 1) if rows > 1 else 0.0
        table.add_row(
            f"{rows}",
            f"{seconds * 1000:.1f}",
            f"{rows / seconds:.0f}",
            "" if rows == 1 else "never" if least >= 1 else f"{least:.0%} each",
        )
    return table


def _show(progress: "Progress", bar: "TaskID", done: int, total: int) -> None:
    progress.update(bar, completed=done, total=total)
