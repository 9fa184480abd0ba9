"""`peagle serve`: a model behind OpenAI's and SageMaker's interfaces."""

import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model

from peagle.cli.options import (
    DEFAULT_MODEL,
    ModelOptions,
    NoSpeculationOption,
    with_shared_options,
)
from peagle.errors import InvalidRequestError
from peagle.serve.settings import ServeSettings

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from peagle.llm import LLM

_USUAL: Final = ServeSettings()
_LISTS: Final = {
    "api_keys": "api_key",
    "access_keys": "access_key",
    "served_model_names": "served_model_name",
}
_EXAMPLE: Final = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}

Texts = Annotated[
    list[str] | None, BeforeValidator(lambda one: [one] if isinstance(one, str) else one)
]
"""Texts that a file gives in a list, or one of them alone."""


@dataclass(frozen=True)
class ServeOptions(ModelOptions):
    """The model's options, and how it is served; each field is an option and a key of a file."""

    model: Annotated[
        str,
        typer.Argument(
            help="A name from `peagle models`, hf:ORGANISATION/NAME, a GGUF file or a folder."
        ),
    ] = DEFAULT_MODEL
    no_speculation: NoSpeculationOption = False
    no_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--no-prefix-caching", help="Read every prompt anew, whatever was read before."
        ),
    ] = False
    host: Annotated[str, typer.Option(help="Address to listen at.")] = _USUAL.host
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes a free one.")] = _USUAL.port
    api_key: Annotated[
        Texts,
        typer.Option(
            help="A key that requests must carry; may be given again.", envvar="PEAGLE_API_KEY"
        ),
    ] = None
    access_key: Annotated[
        Texts,
        typer.Option(
            help="An AWS access key, as ID:SECRET, that requests may be signed with instead; may "
            "be given again.",
            envvar="PEAGLE_ACCESS_KEY",
        ),
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines in without a key.")
    ] = _USUAL.insecure
    served_model_name: Annotated[
        Texts,
        typer.Option(help="A further name of the model for clients; may be given again."),
    ] = None
    max_concurrent: Annotated[int, typer.Option(help="Most answers that are written at once.")] = (
        _USUAL.max_concurrent
    )
    max_queue: Annotated[int, typer.Option(help="Most requests that wait.")] = _USUAL.max_queue
    request_timeout: Annotated[
        float, typer.Option(help="Longest seconds of a request, waiting included.")
    ] = _USUAL.request_timeout
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that open requests have when the server is stopped.")
    ] = _USUAL.drain_timeout
    max_body_bytes: Annotated[int, typer.Option(help="Largest body of a request.")] = (
        _USUAL.max_body_bytes
    )
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write prompts and answers to the log.")
    ] = _USUAL.log_prompts
    log_format: Annotated[str, typer.Option(help="text or json.")] = _USUAL.log_format
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with any of these options; the command line wins over it."),
    ] = None

    def settings(self) -> "ServeSettings":
        """Give the server's settings.

        Raises:
            InvalidRequestError: An option is impossible.
        """
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        for setting, option in _LISTS.items():
            told[setting] = tuple(told[option] or ())
        try:
            return ServeSettings(**{name: told[name] for name in ServeSettings.model_fields})
        except ValidationError as found:
            first = found.errors(include_url=False)[0]
        setting = str(first["loc"][0])
        option = _LISTS.get(setting, setting)
        raise InvalidRequestError(
            f"--{option.replace('_', '-')} cannot be {_shown(first)}.",
            remedy=f"{first['msg']}.",
            field=option,
        )


def _file_model() -> type[BaseModel]:
    """Describe a file: the options under their names, of the types that they have."""
    keys: dict[str, Any] = {
        one.name: (one.type, one.default) for one in fields(ServeOptions) if one.name != "config"
    }
    return create_model("ServeFile", __config__=ConfigDict(extra="forbid", strict=True), **keys)


@with_shared_options
def serve(options: ServeOptions, *, context: typer.Context) -> None:
    """Serve a model behind OpenAI's and SageMaker's interfaces."""
    if options.config is not None:
        options = _with_file(options, options.config, context)
    settings = options.settings()
    from peagle.catalog import resolve
    from peagle.serve.request_log import set_up_logging
    from peagle.serve.server import run

    set_up_logging(as_json=settings.log_format == "json")
    # Fetches the model, if need be, before anything listens.
    name = resolve(options.model).name
    run(
        lambda: options.load(
            speculate=not options.no_speculation,
            max_concurrent=options.max_concurrent,
            prefix_caching=not options.no_prefix_caching,
        ),
        settings,
        [name, options.model, *settings.served_model_names],
        lambda llm, url: _tell(llm, url, settings),
    )


def _with_file(options: ServeOptions, path: Path, context: typer.Context) -> ServeOptions:
    """Lay the options of the command line over those of a file.

    Raises:
        InvalidRequestError: The file cannot be read, or a key or value is wrong.
    """
    try:
        told = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequestError(
            f"The configuration {path} cannot be read: {' '.join(str(error).split())}.",
            remedy="Give a YAML file with keys such as model, port and api_key.",
            field="config",
        ) from None
    told = {} if told is None else told
    if not isinstance(told, dict):
        raise InvalidRequestError(
            f"The configuration {path} is no mapping.",
            remedy="Give a YAML file with keys such as model, port and api_key.",
            field="config",
        )
    written = {str(key).replace("-", "_"): value for key, value in told.items()}
    if isinstance(written.get("spec"), dict):
        written["spec"] = json.dumps(written["spec"])
    if isinstance(written.get("corpus"), str):
        written["corpus"] = Path(written["corpus"])
    file = _file_model()
    try:
        checked = file.model_validate(written)
    except ValidationError as found:
        first = found.errors(include_url=False)[0]
    else:
        wanted = {}
        for name in written:
            source = context.get_parameter_source(name)
            if source is None or source.name == "DEFAULT":
                wanted[name] = getattr(checked, name)
        return replace(options, **wanted)
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        raise InvalidRequestError(
            f"The configuration {path} has an unknown key {name!r}.",
            remedy=f"Known keys: {', '.join(file.model_fields)}.",
            field=name,
        )
    raise InvalidRequestError(
        f"The configuration {path} has {name}: {_shown(first)}.",
        remedy=f"{first['msg']}; `peagle serve --help` says what --{name.replace('_', '-')} takes.",
        field=name,
    )


def _shown(error: "ErrorDetails") -> str:
    """Show a value that is wrong; a key is not shown."""
    return "the value that was given" if "_key" in str(error["loc"][0]) else repr(error["input"])


def _tell(llm: "LLM", url: str, settings: "ServeSettings") -> None:
    """Say where the server is, how it drafts, and how to ask it."""
    key = ""
    if settings.api_keys:
        key = '-H "Authorization: Bearer $PEAGLE_API_KEY" '
    elif settings.access_keys:
        key = '--user "$PEAGLE_ACCESS_KEY" --aws-sigv4 aws:amz:us-east-1:sagemaker '
    body = json.dumps(_EXAMPLE)
    spec = llm.spec
    lines = (
        f"{llm.name} is ready: {llm.target.precision}, {llm.target.backend}, "
        f"speculation {spec.method}, context {llm.context_length}, loaded in {llm.load_s:.1f} s.",
        f"  OpenAI     {url}/v1",
        f"  SageMaker  {url}, endpoint {llm.name}",
        f"  health     {url}/health",
        f"  metrics    {url}/metrics",
        f"  page       {url}/",
        "",
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' {key}-d '{body}'",
    )
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
