"""Replies to the Produce requests of one client that wait for followers, in the order of the requests."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from headrace.promise import Promise
from headrace.server.frames import InvalidRequestError, Parts

Later: TypeAlias = asyncio.Future[Parts] | Promise[Parts]


T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


class Executed(Awaitable[T_co]):
    """The reply to an executed request, which may still wait for followers; later Produce requests need not wait."""

    __slots__ = ("reply",)

    def __init__(self, reply: Awaitable[T_co]) -> None:
        self.reply = reply

    def then(self, convert: Callable[[Promise[Any]], U]) -> "Executed[U]":
        """Convert the reply when it is done. A promise is converted in the turn of the loop that completes it."""
        reply = self.reply
        return Executed(reply.then(convert) if isinstance(reply, Promise) else _converted(reply, convert))

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self.reply.__await__()


async def _converted(reply: Awaitable[Any], convert: Callable[[Promise[Any]], U]) -> U:
    done: Promise[Any] = Promise()
    try:
        done.set_result(await reply)
    except Exception as error:  # noqa: BLE001  `convert` handles it
        done.set_exception(error)
    return convert(done)


class Lost(NamedTuple):
    """There is no reply, and the connection must be closed; `reason` is None if its request was cancelled."""

    reason: str | None


class Runs:
    """A queue of replies, the first of which is not done. An InvalidRequestError in it ends the connection."""

    __slots__ = ("_replies", "is_ended")

    def __init__(self) -> None:
        self._replies: deque[Parts | Later | InvalidRequestError] = deque()
        self.is_ended = False
        """True if an invalid request ends the queue: nothing that the client sent after it may be handled."""

    def __len__(self) -> int:
        return len(self._replies)

    def append(self, reply: Parts | Later) -> None:
        self._replies.append(reply)

    def end(self, error: InvalidRequestError) -> None:
        self._replies.append(error)
        self.is_ended = True

    def take_done(self) -> Iterator[Parts | InvalidRequestError | Lost]:
        """Remove and yield the replies before the first that is not done."""
        replies = self._replies
        while replies:
            reply = replies[0]
            if isinstance(reply, asyncio.Future | Promise):
                if not reply.done():
                    return
                replies.popleft()
                yield _outcome(reply)
            else:
                replies.popleft()
                yield reply

    def cancel(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the waiting replies in the next turn of the loop, when their tasks are sure to have started."""
        for reply in self._replies:
            if isinstance(reply, asyncio.Future | Promise):
                loop.call_soon(reply.cancel)


def abandon(answer: Parts | Awaitable[Parts], loop: asyncio.AbstractEventLoop) -> None:
    """Cancel a request whose connection was closed while it was handled, in the next turn like `Runs.cancel`."""
    reply = answer.reply if isinstance(answer, Executed) else answer
    if not isinstance(reply, list):
        loop.call_soon((reply if isinstance(reply, Promise) else asyncio.ensure_future(reply, loop=loop)).cancel)


def _outcome(run: Later) -> Parts | InvalidRequestError | Lost:
    if run.cancelled():
        return Lost(None)
    error = run.exception()
    if error is None:
        return run.result()
    return error if isinstance(error, InvalidRequestError) else Lost(f"{type(error).__name__}: {error}")
