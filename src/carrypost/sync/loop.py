"""The thread in which blocking calls run: an event loop, and the contexts that are open.

A call is a hop: the thread that makes it waits while the loop does the work. Ctrl-C ends the wait and cancels the work.
When the program ends, what is still open is closed within five seconds.
"""
# Blocking programs could have had a node of their own design, with locks. Instead they use the same
# asynchronous classes in one thread with an event loop, and each call is a hop to that thread. So
# there is one implementation to test, and programs with many threads need no locks: all state
# belongs to the loop.
#
# The price is the hop. Three things keep it small: eager work runs without a task as long as it
# waits for nothing, a lock takes the place of a future (`Call.ended`), and messages that were read
# ahead are taken without any hop (`batches`).

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from carrypost.classic.connections import Connection
from carrypost.errors import IllegalStateException
from carrypost.jms.batches import Batch
from carrypost.jms.context_sessions import ContextSessions
from carrypost.sync.call import Call, resumed

T = TypeVar("T")
_CLOSE_S, _CUT_OFF_S, _JOIN_S = 4.0, 0.5, 0.5
"""At exit: how long listeners may take to finish, closing without them, and the thread to end."""


class Loop:
    """The event loop of blocking calls, its thread, and what is open."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.batches: list[Batch] = []
        """Messages that threads take on their own: their consumption is reported before anything else is done."""
        self._contexts: list[ContextSessions | Connection] = []
        self._began = threading.Event()
        # A daemon thread: a program that ends by an exception must not hang, and `atexit` closes
        # what is open.
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="carrypost loop", daemon=True)
        self._thread.start()
        self._began.wait()
        atexit.register(self._end)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = asyncio.Event()
        self._began.set()
        await self._ends.wait()

    # --- calls ---------------------------------------------------------------------------------------------

    def run(
        self, begin: Callable[[], Awaitable[T]], undo: Callable[[T], object] | None = None, *, eager: bool = False
    ) -> T:
        """Do something in the thread of the loop, and wait for the outcome; raises what that raises.

        If a signal handler raises meanwhile, as Ctrl-C does, the work is cancelled, and a result that it had
        nevertheless is passed to `undo`. Eager work needs no task until it waits for something, which saves a turn of
        the loop.
        """
        call = Call(begin, eager=eager)
        try:
            self.post(self._begin, call)
            call.ended.acquire()
        except BaseException:
            if not self._loop.is_closed():
                self.run(lambda: asyncio.shield(self._loop.create_task(self._abandon(call, undo))))
            raise
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # there is one, as there is no error

    def post(self, function: Callable[..., object], *given: object) -> None:
        """Have a function called in the thread of the loop, after all that was asked for before."""
        try:
            self._loop.call_soon_threadsafe(function, *given, context=copy_context())
        except RuntimeError:
            if self._loop.is_closed():
                raise IllegalStateException("the program ends: its contexts are closed") from None
            raise

    def _begin(self, call: Call[Any]) -> None:
        # A thread waits for the call: whatever is raised here ends it, or the thread would wait for
        # ever.
        try:
            self._report_taken()
            if not call.abandoned:  # Else Ctrl-C came before the loop began with it.
                self._perform(call)
        except Exception as error:  # noqa: BLE001 - the thread raises it
            call.fail(error)

    def _report_taken(self) -> None:
        """Report messages that threads took since, before anything else: an acknowledgement covers what was taken."""
        if self.batches:
            for batch in self.batches:
                batch.report()
            self.batches = [each for each in self.batches if not each.is_over]

    def _perform(self, call: Call[Any]) -> None:
        work: Coroutine[Any, Any, None] = call.perform()
        if call.eager:
            try:
                work = resumed(work, work.send(None))
            except StopIteration:
                return
        call.task = self._loop.create_task(work)

    async def _abandon(self, call: Call[T], undo: Callable[[T], object] | None) -> None:
        call.abandoned = True
        if call.task is not None:
            call.task.cancel()
            await asyncio.wait({call.task})
        undone = None if undo is None or call.result is None else undo(call.result)
        if isinstance(undone, Awaitable):
            await undone

    # --- the end -------------------------------------------------------------------------------------------

    def add(self, context: ContextSessions | Connection) -> None:
        """Close this context, or connection, when the program ends, unless it is closed by then."""
        self._contexts = [*(each for each in self._contexts if each._is_open), context]  # noqa: SLF001 - a part of the same API

    def _end(self) -> None:
        # A forked child inherits the handler, but neither the thread nor the contexts.
        if os.getpid() == self.pid:
            with suppress(IllegalStateException):
                self.run(self._close)
                self.post(self._ends.set)
            self._thread.join(_JOIN_S)

    async def _close(self) -> None:
        """Close all open contexts; listeners that do not end in time are left alone."""
        for limit_s in (_CLOSE_S, _CUT_OFF_S):
            closing = [asyncio.ensure_future(each.close()) for each in self._contexts]
            if not closing or not (await asyncio.wait(closing, timeout=limit_s))[1]:
                return
            for each in self._contexts:
                each._cut_off()  # noqa: SLF001
