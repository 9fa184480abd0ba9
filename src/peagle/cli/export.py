"""`peagle export`: drafters and models in the formats that other programs read."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from peagle.errors import InvalidRequestError


class _Format(StrEnum):
    VLLM = "vllm"
    SPECULATORS = "speculators"


def export(
    drafter: Annotated[
        str | None,
        typer.Argument(
            help="The drafter: a file, a folder, or hf:ORGANISATION/NAME; the model's own without."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The folder to write, which must not exist yet.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model that the drafter is for.")] = None,
    form: Annotated[
        _Format | None,
        typer.Option("--format", help="vllm: the raw form; speculators: the library's form."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Write this model, which came as a GGUF file, instead of a drafter."),
    ] = None,
) -> None:
    """Write a drafter for vLLM or the speculators library, or a GGUF model for transformers."""
    if output is None:
        raise _incomplete("There is no --output.", "Give the folder to write.", "output")
    if target is not None:
        if drafter is not None or model is not None or form is not None:
            raise _incomplete(
                "A drafter, --model and --format do not go with --target.",
                "Write the target and the drafter one after the other.",
                "target",
            )
        _export_target(target, output)
        return
    if drafter is None and model is None:
        raise _incomplete(
            "There is nothing to write.",
            "Give a drafter and its --model, or --target MODEL.",
            "drafter",
        )
    if model is None:
        raise _incomplete(
            "There is no --model.", "Name the model that the drafter is for.", "model"
        )
    if form is None:
        raise _incomplete("There is no --format.", "Choose vllm or speculators.", "format")
    _export_drafter(drafter, model, form, output)


def _export_drafter(drafter: str | None, model: str, form: _Format, output: Path) -> None:
    import torch

    from peagle.catalog import resolve, resolve_drafter
    from peagle.draft.formats.writing import export_drafter
    from peagle.draft.loading import load_weights
    from peagle.draft.peagle.config import PEagleConfig
    from peagle.model.loading import open_tokenizer
    from peagle.model.prepared import open_checkpoint

    given = resolve_drafter(drafter) if drafter is not None else None
    resolved = resolve(model)
    chosen = given or resolved.drafter()
    if chosen is None:
        raise _incomplete(
            f"{resolved.name} has no drafter of its own.", "Name the drafter to write.", "drafter"
        )
    fingerprint = open_tokenizer(resolved.files).fingerprint()
    checkpoint = open_checkpoint(resolved.files, torch.bfloat16)
    embedding = checkpoint.tensors()["model.embed_tokens.weight"]
    config, tensors = load_weights(chosen, checkpoint.config, embedding, fingerprint)
    export_drafter(
        config, tensors, output, form.value, target=checkpoint.config, embedding=embedding
    )
    if isinstance(config, PEagleConfig) and config.markov_rank:
        typer.echo(
            f"Left out: the Markov head (rank {config.markov_rank}), which only peagle runs. "
            "Deep draft tokens will be accepted less often.",
            err=True,
        )
    typer.echo(
        f"{output} holds the {config.method} drafter of {config.target_name} ({form.value})."
    )


def _export_target(target: str, output: Path) -> None:
    from peagle.catalog import resolve
    from peagle.model.target_export import export_target

    resolved = resolve(target)
    if resolved.files.is_dir():
        raise InvalidRequestError(
            f"{resolved.name} is a Hugging Face folder already: {resolved.files}.",
            remedy="Use that folder; --target is for models that came as a GGUF file.",
            field="target",
        )
    template = resolved.entry.chat_template if resolved.entry else None
    export_target(resolved.files, output, chat_template=template)
    typer.echo(f"{output} holds {resolved.name} in bfloat16, for transformers and others.")


def _incomplete(problem: str, remedy: str, field: str) -> InvalidRequestError:
    return InvalidRequestError(problem, remedy=remedy, field=field)
