"""`peagle serve`: a model behind OpenAI's interface."""

import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import yaml

from peagle.cli.options import (
    DEFAULT_MODEL,
    ModelOptions,
    NoSpeculationOption,
    with_shared_options,
)
from peagle.errors import InvalidRequestError

if TYPE_CHECKING:
    from peagle.llm import LLM
    from peagle.serve.settings import ServeSettings

_EXAMPLE: Final = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}


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
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes a free one.")] = 8080
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="A key that requests must carry; may be given again.", envvar="PEAGLE_API_KEY"
        ),
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines in without a key.")
    ] = False
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="A further name of the model for clients; may be given again."),
    ] = None
    max_concurrent: Annotated[
        int, typer.Option(min=1, help="Most answers that are written at once.")
    ] = 32
    max_queue: Annotated[int, typer.Option(help="Most requests that wait.")] = 256
    request_timeout: Annotated[
        float, typer.Option(help="Longest seconds of a request, waiting included.")
    ] = 600.0
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that open requests have when the server is stopped.")
    ] = 30.0
    max_body_bytes: Annotated[int, typer.Option(help="Largest body of a request.")] = 4 << 20
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write prompts and answers to the log.")
    ] = False
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text"
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with any of these options; the command line wins over it."),
    ] = None

    def settings(self) -> "ServeSettings":
        """Give the server's settings.

        Raises:
            InvalidRequestError: An option is impossible.
        """
        from pydantic import ValidationError

        from peagle.serve.settings import ServeSettings

        told = {one.name: getattr(self, one.name) for one in fields(self)}
        told["api_keys"] = tuple(self.api_key or ())
        told["served_model_names"] = tuple(self.served_model_name or ())
        try:
            return ServeSettings(**{name: told[name] for name in ServeSettings.model_fields})
        except ValidationError as found:
            first = found.errors(include_url=False)[0]
            option = str(first["loc"][0])
            raise InvalidRequestError(
                f"--{option.replace('_', '-')} cannot be {first['input']!r}.",
                remedy=f"{first['msg']}.",
                field=option,
            ) from None


@with_shared_options
def serve(options: ServeOptions, *, context: typer.Context) -> None:
    """Serve a model behind OpenAI's interface."""
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
            speculate=not options.no_speculation, max_concurrent=options.max_concurrent
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
    known = {one.name: one.default for one in fields(ServeOptions) if one.name != "config"}
    wanted: dict[str, Any] = {}
    for key, value in told.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise InvalidRequestError(
                f"The configuration {path} has an unknown key {str(key)!r}.",
                remedy=f"Known keys: {', '.join(known)}.",
                field=str(key),
            )
        source = context.get_parameter_source(name)
        if source is None or source.name == "DEFAULT":
            wanted[name] = _value(name, value, known[name], path)
    return replace(options, **wanted)


def _value(name: str, value: Any, usual: Any, path: Path) -> Any:
    """Check a value of a file against the type of the option's default."""
    if name == "spec" and isinstance(value, dict):
        return json.dumps(value)
    if name in ("api_key", "served_model_name"):
        value = [value] if isinstance(value, str) else value
        fine = isinstance(value, list) and all(isinstance(one, str) for one in value)
    elif name == "threads":
        fine = value is None or (isinstance(value, int) and not isinstance(value, bool))
    elif usual is None:
        fine = value is None or isinstance(value, str)
        value = Path(value) if name == "corpus" and isinstance(value, str) else value
    elif isinstance(usual, bool) or isinstance(value, bool):
        fine = isinstance(value, bool) and isinstance(usual, bool)
    elif isinstance(usual, float):
        fine = isinstance(value, int | float)
    else:
        fine = isinstance(value, type(usual))
    if name == "max_concurrent" and fine:
        fine = value >= 1
    if not fine:
        raise InvalidRequestError(
            f"The configuration {path} has {name}: {value!r}.",
            remedy=f"`peagle serve --help` says what --{name.replace('_', '-')} takes.",
            field=name,
        )
    return value


def _tell(llm: "LLM", url: str, settings: "ServeSettings") -> None:
    """Say where the server is, how it drafts, and how to ask it."""
    key = '-H "Authorization: Bearer $PEAGLE_API_KEY" ' if settings.api_keys else ""
    body = json.dumps(_EXAMPLE)
    spec = llm.spec
    lines = (
        f"{llm.name} is ready: {llm.target.precision}, {llm.target.backend}, "
        f"speculation {spec.method}, context {llm.context_length}, loaded in {llm.load_s:.1f} s.",
        f"  OpenAI   {url}/v1",
        f"  health   {url}/health",
        f"  metrics  {url}/metrics",
        f"  page     {url}/",
        "",
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' {key}-d '{body}'",
    )
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
