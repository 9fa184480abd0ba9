"""Responses that end when nobody waits for them any more."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


class Watched(Response):
    """Writes an answer, and cancels the writing as soon as the client has gone.

    Args:
        answer: Writes the response; it is cancelled at whatever it waits for.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        answering = asyncio.ensure_future(self._answer(scope, receive, send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                if not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
        if not answering.cancelled():
            answering.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
