"""`peagle chat`: a conversation in the terminal, streamed."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peagle.cli.options import AnswerOptions, with_shared_options, with_usual_length
from peagle.errors import InvalidRequestError, PeagleError
from peagle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from peagle.llm import LLM, Result

_HELP: Final = """\
/colour   colour tokens by how they came: drafted by the network, looked up, corpus, the target
/stats    show what speculation did after every answer
/reset    begin a new conversation
/exit     leave (or Ctrl-D)"""
_STYLES: Final = {
    "target": "default",
    "network": "green",
    "lookup": "cyan",
    "corpus": "magenta",
    "grammar": "yellow",
}


@with_shared_options
def chat(
    options: AnswerOptions,
    system: Annotated[str | None, typer.Option(help="How the model should behave.")] = None,
    colour: Annotated[
        bool, typer.Option("--colour", "--color", help="Colour tokens by how they came.")
    ] = False,
) -> None:
    """Chat with a model."""
    params = options.params()
    llm = options.load(speculate=not options.no_speculation)
    if llm.chat_template is None:
        from peagle.llm.prompt import without_template

        raise without_template(llm.name)
    Conversation(llm, params, system=system, colour=colour, stats=options.stats).run()


class Conversation:
    """A conversation with its switches.

    Args:
        llm: The model.
        params: How it answers; without `max_tokens`, at the usual length or what the context
            leaves.
        system: The system message, if there is one.
        colour: Whether tokens are coloured by origin.
        stats: Whether figures follow each answer.
    """

    def __init__(
        self, llm: "LLM", params: SamplingParams, *, system: str | None, colour: bool, stats: bool
    ) -> None:
        from rich.console import Console

        self._llm = llm
        self._params = params
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)
        self._colour = colour
        self._stats = stats
        self._console = Console(highlight=False)

    def run(self) -> None:
        """Read and answer until the person leaves."""
        console = self._console
        console.print(
            f"[bold]{self._llm.name}[/bold], speculation: {self._llm.spec.method}. "
            "Type /help for the switches, Ctrl-D to leave."
        )
        while True:
            try:
                said = console.input("[bold]> [/bold]").strip()
            except (EOFError, KeyboardInterrupt):
                console.print()
                return
            if said == "/exit":
                return
            if said.startswith("/"):
                self._switch(said)
            elif said:
                self._exchange(said)

    def _switch(self, command: str) -> None:
        match command:
            case "/colour" | "/color":
                self._colour = not self._colour
                self._console.print(
                    "  ".join(f"[{style}]{name}[/{style}]" for name, style in _STYLES.items())
                    if self._colour
                    else "Colours are off."
                )
            case "/stats":
                self._stats = not self._stats
                self._console.print(f"Figures are {'on' if self._stats else 'off'}.")
            case "/reset":
                self._messages = list(self._opening)
                self._console.print("A new conversation.")
            case _:
                self._console.print(_HELP)

    def _exchange(self, said: str) -> None:
        from rich.markup import escape

        from peagle.cli.statistics import as_table

        messages = [*self._messages, {"role": "user", "content": said}]
        try:
            self._require_room(messages)
            result = self._stream(messages)
        except PeagleError as error:
            self._console.print(f"[red]Error:[/red] {escape(str(error))}")
            return
        except KeyboardInterrupt:
            self._console.print("\n[dim](interrupted; this exchange is forgotten)[/dim]")
            return
        self._messages = [*messages, {"role": "assistant", "content": result.text}]
        if len(result.prompt_token_ids) + len(result.token_ids) >= self._llm.context_length:
            self._console.print(
                "[dim](the context is full; /reset begins a new conversation)[/dim]"
            )
        if self._stats:
            self._console.print(as_table(result, self._llm))

    def _require_room(self, messages: list[dict[str, str]]) -> None:
        """Refuse a message for which the conversation before it leaves no room.

        Raises:
            InvalidRequestError: There is none.
        """
        if len(self._messages) == len(self._opening):
            return
        tokens, llm, most = len(self._llm.encode(messages)), self._llm, self._params.max_tokens
        if tokens + (most or 1) > llm.context_length:
            answer = "" if most is None else f" and its answer may have {most}"
            raise InvalidRequestError(
                f"With this message the conversation has {tokens} tokens{answer}, but {llm.name} "
                f"takes {llm.context_length} of conversation and answer together here.",
                remedy="Type /reset to begin a new conversation, or write a shorter message.",
                field="messages",
            )

    def _stream(self, messages: list[dict[str, str]]) -> "Result":
        """Answer as it comes."""
        generation = self._llm.stream(
            messages, with_usual_length(self._params, self._llm, messages)
        )
        write = self._coloured_writer() if self._colour else None
        try:
            for piece in generation:
                if write is None:
                    sys.stdout.write(piece.text)
                    sys.stdout.flush()
                    continue
                for token, origin in zip(piece.token_ids, piece.origins, strict=True):
                    write(token, origin.value)
        finally:
            generation.drop()
        self._console.print()
        return generation.result

    def _coloured_writer(self) -> "Callable[[int, str], None]":
        from rich.text import Text

        from peagle.model.detokenizer import Detokenizer

        detokenizer = Detokenizer(self._llm.tokenizer)

        def write(token: int, origin: str) -> None:
            self._console.print(
                Text(detokenizer.push([token]), style=_STYLES[origin]), end="", soft_wrap=True
            )

        return write
