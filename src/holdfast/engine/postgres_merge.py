"""Everything that turns many waiting requests into few calls lives here.

A merged block takes many requests in one call. Requests for the same block and tenant that wait at
the same time go out together; nothing waits for a timer, a free slot sends at once whatever is
there. Two requests with the same merge key are never in flight together, because the second would
only wait for the row lock of the first, and everything in its call would wait with it.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from holdfast.engine.postgres_calls import Call, Params, Rows, weight
from holdfast.engine.postgres_errors import SINGLE_OUT, Failed, Fault

SLOTS = 2
# A slot rests for this many turns of the event loop after a call, no longer than the callers who
# got their answers need to come back with their next requests; else the first would go out alone.
RESTING_TURNS = 6
# A call that takes longer than this waits for somebody else's lock, and lends its slot out.
OVERDUE_SECONDS = 0.25
MOST_CALLS = 6
REPEATS = 4

Send = Callable[[Call, list[Any]], Awaitable[list[Any]]]
Key = tuple[Hashable, Hashable]


class Request:
    """One waiting request. Its future gives the rows of its answer, or None when it is refused."""

    __slots__ = ("bytes", "future", "key", "params")

    def __init__(self, key: Key, params: Params, future: asyncio.Future[Rows | None]) -> None:
        self.key = key
        self.params = params
        self.bytes = weight(params)
        self.future = future

    def answer(self, rows: Rows | None) -> None:
        if not self.future.done():
            self.future.set_result(rows)

    def fail(self, failure: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(failure)


class Merger:
    """The dispatcher of one block."""

    def __init__(self, call: Call, send: Send, *, max_group: int, max_group_bytes: int) -> None:
        self._call = call
        self._text = call.parts[0]
        self._names = {name for name, _, _ in self._text.values}
        self._send = send
        self._max_group = max_group
        self._max_bytes = max_group_bytes
        self._ready: OrderedDict[Hashable, deque[Request]] = OrderedDict()
        self._taken: dict[Key, deque[Request]] = {}
        self._calls = 0
        self._in_flight = 0
        self._overdue = 0
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, params: Params) -> asyncio.Future[Rows | None]:
        """Hand a request in. A parameter it lacks is raised here, before it is merged."""
        tenant = params.get("tenant")
        key = (tenant, params[self._call.merged_by])
        loop = asyncio.get_running_loop()
        self._require(params)
        request = Request(key, params, loop.create_future())
        behind = self._taken.get(key)
        if behind is not None:
            behind.append(request)
        else:
            self._taken[key] = deque()
            self._ready.setdefault(tenant, deque()).append(request)
            self._pump()
        return request.future

    def _require(self, params: Params) -> None:
        if not self._names <= params.keys():
            raise KeyError(f"{self._call.name} lacks {sorted(self._names - params.keys())}")

    def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        while self._ready and not self._ended and self._calls < MOST_CALLS:
            if self._calls - self._overdue >= SLOTS:
                return
            self._calls += 1
            task = loop.create_task(self._run(self._batch()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _batch(self) -> list[Request]:
        """The next call: requests of one tenant, in order, bounded by number and bytes.

        It leaves the other slots their share, so that calls of like size overlap.
        """
        tenant, waiting = next(iter(self._ready.items()))
        share = -(-(len(waiting) + self._in_flight) // SLOTS)
        batch = [waiting.popleft()]
        size = batch[0].bytes
        while waiting and len(batch) < min(share, self._max_group):
            size += waiting[0].bytes
            if size > self._max_bytes:
                break
            batch.append(waiting.popleft())
        if waiting:
            self._ready.move_to_end(tenant)
        else:
            del self._ready[tenant]
        self._in_flight += len(batch)
        return batch

    async def _run(self, batch: list[Request]) -> None:
        overdue = False

        def lend() -> None:
            nonlocal overdue
            overdue = True
            self._overdue += 1
            self._pump()

        timer = asyncio.get_running_loop().call_later(OVERDUE_SECONDS, lend)
        try:
            await self._settle(batch)
        except Failed as failed:
            for request in batch:
                request.fail(failed.copy())
        except asyncio.CancelledError:
            # Only the end of the event loop cancels this task.
            self._ended = True
            for request in batch:
                request.future.cancel()
            raise
        except Exception as failure:
            for request in batch:
                request.fail(failure)
        finally:
            timer.cancel()
            self._in_flight -= len(batch)
            self._overdue -= overdue
            for request in batch:
                self._free(request.key)
            # A lone caller has nobody to wait for.
            alone = len(batch) == 1 and not self._in_flight and not self._ready
            self._rest(0 if alone else RESTING_TURNS)

    def _rest(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._rest, turns - 1)
        else:
            self._calls -= 1
            self._pump()

    def _free(self, key: Key) -> None:
        behind = self._taken[key]
        if behind:
            self._ready.setdefault(key[0], deque()).append(behind.popleft())
        else:
            del self._taken[key]

    async def _settle(self, batch: list[Request]) -> None:
        """Answer every request of a batch; what is raised concerns all that have no answer yet."""
        for attempt in range(1, REPEATS + 1):
            try:
                records = await self._send(
                    self._call, self._text.merged([request.params for request in batch])
                )
            except Failed as failed:
                if failed.fault is Fault.CONFLICT and attempt < REPEATS:
                    await asyncio.sleep(random.uniform(0.5, 1.0) * 0.005 * 3**attempt)
                    continue
                if failed.fault in SINGLE_OUT and len(batch) > 1:
                    await asyncio.gather(*(self._single(request) for request in batch))
                    return
                if failed.fault is Fault.DUPLICATE:
                    batch[0].answer(None)
                    return
                raise
            self._share(batch, records)
            return

    async def _single(self, request: Request) -> None:
        try:
            await self._settle([request])
        except Failed as failed:
            request.fail(failed)

    def _share(self, batch: list[Request], records: list[Any]) -> None:
        """Give each request its rows; the first column says whose they are."""
        if records:
            names = tuple(records[0].keys())
            places = [names.index(column) for column in self._call.returns]
            answers: dict[int, Rows] = {}
            for record in records:
                row = tuple(record[at] for at in places)
                answers.setdefault(record[0], []).append(row)
        else:
            answers = {}
        for ord_, request in enumerate(batch, 1):
            request.answer(answers.get(ord_))
