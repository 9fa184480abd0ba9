"""The prompts of one HTTP request, answered together."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from peagle.llm import Generation, Piece
from peagle.serve.errors import ApiError
from peagle.serve.service import AnswerStream, EngineService

Placed = tuple[int, Piece]
"""A piece, and which of the request's prompts it answers."""


class Asked:
    """The prompts of one HTTP request on their way.

    Args:
        service: The engine.
        generations: What the engine made of each prompt.
        client: Who asks.

    Raises:
        ApiError: The server is not ready, or its queue is full; nothing is queued then.
    """

    def __init__(
        self, service: EngineService, generations: Sequence[Generation], client: str
    ) -> None:
        self.generations = generations
        self._service = service
        self._streams: list[AnswerStream] = []
        try:
            for generation in generations:
                self._streams.append(service.submit(generation, client))
        except ApiError:
            self.cancel()
            raise

    async def pieces(self) -> AsyncIterator[list[Placed]]:
        """Give what was written as it comes, until all answers have ended.

        Raises:
            ApiError: An answer cannot go on, or took too long.
        """
        if len(self._streams) == 1:
            async for pieces in self._streams[0].pieces():
                yield [(0, piece) for piece in pieces]
            return
        arrived: asyncio.Queue[list[Placed] | ApiError | None] = asyncio.Queue()

        async def read(place: int, stream: AnswerStream) -> None:
            try:
                async for pieces in stream.pieces():
                    arrived.put_nowait([(place, piece) for piece in pieces])
                arrived.put_nowait(None)
            except ApiError as error:
                arrived.put_nowait(error)

        readers = [
            asyncio.create_task(read(place, stream)) for place, stream in enumerate(self._streams)
        ]
        reading = len(readers)
        try:
            while reading:
                news = await arrived.get()
                if news is None:
                    reading -= 1
                elif isinstance(news, ApiError):
                    raise news
                else:
                    yield news
        finally:
            for reader in readers:
                reader.cancel()

    def cancel(self) -> None:
        """Drop what has not ended."""
        for stream in self._streams:
            self._service.cancel(stream)
