"""The PostgreSQL engine: everything that runs steps on a PostgreSQL database lives here.

One statement in autocommit is one round trip, and that is what most blocks are; a script of several
parts is one transaction. An operation runs in a task of its own that no cancellation reaches: the
cancelled caller waits until the outcome is known. A connection on which something unexpected
happened is discarded. Whole operations are repeated, bounded, because each of them is repeatable by
its ids; no state of a database session is relied on, so a transaction pooler may sit in between.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import asyncpg

from holdfast.contract.errors import (
    HandleClosed,
    HoldfastError,
    Invalid,
    NotSupported,
    OutcomeUnknown,
    Refused,
    Superseded,
    Unavailable,
    WrongLoop,
    WrongProcess,
)
from holdfast.engine.base import BlockingEngine, Engine
from holdfast.engine.drive import drive_async
from holdfast.engine.loop_thread import LoopThread
from holdfast.engine.postgres_calls import Call, Params, Rows, compiled, picked
from holdfast.engine.postgres_errors import (
    AGAIN,
    DISCARD,
    Failed,
    Fault,
    fault_of,
    reason_of,
    translated,
)
from holdfast.engine.postgres_merge import Merger
from holdfast.engine.postgres_open import CONNECT_SECONDS, know_types, prepare, unopened
from holdfast.engine.postgres_pool import Kept, Lease
from holdfast.engine.postgres_schema import check_schema
from holdfast.engine.postgres_signals import PostgresSignals
from holdfast.engine.watching import BlockingWatch, BlockingWatching, Watch, Watching
from holdfast.ops.op import Answer, Op, Step
from holdfast.sql.catalog import Block, CatalogError, catalog

T = TypeVar("T")

ATTEMPTS = 6
PATIENCE_SECONDS = 15.0
RIVAL_DELAYS = (0.01, 0.03, 0.1, 0.3, 1.0)
LOSS_DELAYS = (0.05, 0.25, 1.0, 3.0, 6.0)


# A connection of our own gets these as startup parameters; a pooler shares its connections, and
# refuses parameters that it does not track. A lock that is not given in time is a known outcome,
# a client that stops waiting for an answer is not: so the lock timeout is the shorter one.
_SETTINGS = {
    "application_name": "holdfast",
    "jit": "off",
    "default_transaction_isolation": "read committed",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
}


class PostgresEngine:
    """Runs operations on one PostgreSQL database, for the callers of one event loop."""

    def __init__(
        self,
        pool: Any,
        calls: Mapping[str, Call],
        signals: PostgresSignals,
        *,
        acquire_timeout: float,
        max_group: int,
        max_group_bytes: int,
    ) -> None:
        self.signals = signals
        self._watching = Watching(self.read, signals, signals.attend)
        self._pool = pool
        self._kept = Kept(pool)
        self._calls = calls
        self._acquire_timeout = acquire_timeout
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._running: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._expired_at = 0.0
        self._mergers = {
            name: Merger(call, self._send, max_group=max_group, max_group_bytes=max_group_bytes)
            for name, call in calls.items()
            if call.merged_by
        }

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        schema: str = "holdfast",
        pooler: bool = False,
        listen_url: str | None = None,
        pool_size: int = 10,
        migrate: bool = True,
        acquire_timeout: float = 30.0,
        command_timeout: float = 60.0,
        max_group: int = 64,
        max_group_bytes: int = 64 * 1024 * 1024,
        allow_unsafe: bool = False,
        blocks: Mapping[str, Block] | None = None,
    ) -> PostgresEngine:
        """Connect, look at the server, bring the schema up to date, and fill the pool.

        `blocks` replaces the catalog and leaves the schema alone; it is there to test the engine.
        """
        check_schema(schema)
        found = catalog("postgres") if blocks is None else blocks
        calls = {name: compiled(block, f'"{schema}"') for name, block in found.items()}
        await prepare(
            url, None if blocks is not None else schema, migrate=migrate, allow_unsafe=allow_unsafe
        )
        try:
            pool = await asyncpg.create_pool(
                url,
                min_size=0,
                max_size=pool_size,
                timeout=CONNECT_SECONDS,
                command_timeout=command_timeout,
                statement_cache_size=0 if pooler else 1024,
                max_cacheable_statement_size=0,
                server_settings={"application_name": "holdfast"} if pooler else _SETTINGS,
                init=know_types,
                reset=_no_reset,
            )
        except Exception as failure:
            raise unopened(failure, url) from None
        signals = PostgresSignals(
            url, schema=schema, listen_url=listen_url or (None if pooler else url)
        )
        return cls(
            pool,
            calls,
            signals,
            acquire_timeout=acquire_timeout,
            max_group=max_group,
            max_group_bytes=max_group_bytes,
        )

    async def read(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes nothing."""
        return await self._outcome(op, args)

    async def write(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes."""
        return await self._outcome(op, args)

    def publish(self, topics: Iterable[str]) -> None:
        """Wake whoever waits, here at once and elsewhere in a few milliseconds."""
        self.signals.publish(topics)

    def watch(self, topic: str, op: Callable[..., Op[T]], *args: Any) -> Watch[T]:
        """Watch what a reading operation answers."""
        self._check()
        return self._watching.watch(topic, op, args)

    def on(self, connection: Any) -> Engine:
        """An engine that runs steps inside the transaction that is open on `connection`."""
        self._check()
        if not hasattr(connection, "is_in_transaction"):
            raise Invalid(field="connection", reason="is not an asyncpg connection")
        return _Borrowed(self, connection)

    async def close(self) -> None:
        """Finish the operations under way, then let go of the database."""
        self._check(closed_too=True)
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await _settled(self._closing)

    async def _close(self) -> None:
        while self._running:
            await asyncio.wait(self._running)
        await self.signals.close()
        await self._kept.close()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._pool.close()
        except Exception:
            self._pool.terminate()

    def _check(self, *, closed_too: bool = False) -> None:
        if os.getpid() != self._pid:
            raise WrongProcess(opened_in=self._pid, used_in=os.getpid())
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoop()
        if self._closing is not None and not closed_too:
            raise HandleClosed()

    # --- operations

    async def _outcome(self, op: Callable[..., Op[T]], args: tuple[Any, ...]) -> T:
        self._check()
        run = _Run()
        task = self._loop.create_task(self._repeat(run, op, args))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await _settled(task, run)

    async def _repeat(self, run: _Run, op: Callable[..., Op[T]], args: tuple[Any, ...]) -> T:
        """Run an operation from its beginning until an attempt has an outcome, bounded."""
        until = self._loop.time() + PATIENCE_SECONDS
        unknown: OutcomeUnknown | None = None
        attempt = 0
        while True:
            attempt += 1
            try:
                return await drive_async(op(*args), self._step)
            except Failed as failed:
                if failed.ambiguous:
                    unknown = OutcomeUnknown(operation=failed.operation, reason=failed.reason)
                gives_up = run.cancelled and unknown is None
                if gives_up or attempt >= ATTEMPTS or self._loop.time() > until:
                    raise unknown or translated(failed, failed.operation, "") from failed
                await self._pause(failed, attempt)
            except (Refused, Superseded, Unavailable) as refusal:
                # An earlier attempt may have been done, and may be what this one was refused for.
                if unknown is not None:
                    raise unknown from refusal
                raise

    async def _pause(self, failed: Failed, attempt: int) -> None:
        lost = failed.fault in (Fault.LOST, Fault.UNREACHABLE)
        if lost and attempt > 1 and self._loop.time() > self._expired_at + 1.0:
            # Losing two connections in a row says that the others are no better.
            self._expired_at = self._loop.time()
            await self._kept.close()
            await self._pool.expire_connections()
        delays = LOSS_DELAYS if lost else RIVAL_DELAYS
        await asyncio.sleep(delays[attempt - 1] * random.uniform(0.5, 1.0))

    async def _step(self, step: Step) -> Answer:
        call = self._call(step)
        try:
            if call.merged_by:
                rows = await self._mergers[call.name].submit(step.params)
            elif call.single:
                rows = await self._alone(call, step.params)
            else:
                rows = await self._script(call, step.params)
            if rows is not None:
                return Answer(rows, False)
            return Answer(await self._explained(call, step.params), True)
        except Failed as failed:
            failed.operation = call.operation(step.params)
            if failed.fault in AGAIN:
                raise
            raise translated(failed, call.name, call.ids(step.params)) from failed

    def _call(self, step: Step) -> Call:
        call = self._calls.get(step.stmt.name)
        if call is None:
            raise CatalogError(f"there is no block {step.stmt.name}")
        return call

    # --- calls, each on a connection of the pool

    async def _send(self, call: Call, arguments: list[Any]) -> list[Any]:
        """Run the one statement of a block, for one request or for many."""
        lease = Lease(self._pool, self._kept, self._acquire_timeout)
        async with lease as connection:
            lease.ambiguous = call.writes
            records: list[Any] = await connection.fetch(call.parts[0].sql, *arguments)
            return records

    async def _alone(self, call: Call, params: Params) -> Rows | None:
        arguments = call.parts[0].arguments(params)
        try:
            records = await self._send(call, arguments)
        except Failed as failed:
            if failed.fault is Fault.DUPLICATE and call.refused is not None:
                return None
            raise
        if not records and call.parts[0].kind == "guard":
            return None
        return picked(records, call.returns)

    async def _script(self, call: Call, params: Params) -> Rows | None:
        lease = Lease(self._pool, self._kept, self._acquire_timeout)
        try:
            async with lease as connection:
                await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                try:
                    rows = await run_parts(connection, call, params)
                except Exception as failure:
                    if isinstance(failure, Failed) or fault_of(failure) not in DISCARD:
                        await connection.execute("ROLLBACK")
                    raise
                if rows is None:
                    await connection.execute("ROLLBACK")
                    return None
                lease.ambiguous = call.writes
                if await connection.execute("COMMIT") != "COMMIT":
                    raise Failed(Fault.LOST, "the transaction had ended already")
                return rows
        except Failed as failed:
            if failed.fault is Fault.DUPLICATE and call.refused is not None:
                return None
            raise

    async def _explained(self, call: Call, params: Params) -> Rows:
        assert call.refused is not None
        arguments = call.refused.arguments(params)
        async with Lease(self._pool, self._kept, self._acquire_timeout) as connection:
            return picked(await connection.fetch(call.refused.sql, *arguments), call.explains)


class _Run:
    """What the caller of an operation tells the task that runs it."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


async def _settled(task: asyncio.Task[T], run: _Run | None = None) -> T:
    """The result of a task that is not ours to cancel. A cancellation is delivered when it is over.

    A waiter of its own is cheaper than `asyncio.shield`, and can be awaited again.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        waiter: asyncio.Future[None] = task.get_loop().create_future()

        def over(_: object, waiter: asyncio.Future[None] = waiter) -> None:
            if not waiter.done():
                waiter.set_result(None)

        task.add_done_callback(over)
        try:
            await waiter
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation
            if run is not None:
                run.cancelled = True
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


class _Borrowed:
    """Runs steps inside the caller's own transaction: nothing is merged, repeated or committed.

    Each step that writes has a savepoint, so that one that fails leaves nothing behind that the
    caller could commit.
    """

    def __init__(self, engine: PostgresEngine, connection: Any) -> None:
        self._engine = engine
        self._connection = connection

    async def read(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes nothing."""
        return await self._outcome(op, args)

    async def write(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes; it is durable when the caller commits."""
        return await self._outcome(op, args)

    def publish(self, topics: Iterable[str]) -> None:
        """Nothing is said of what the caller may still take back; whoever waits polls."""

    def watch(self, topic: str, op: Callable[..., Op[T]], *args: Any) -> Watch[T]:
        """Refused: an open transaction would be held for as long as the wait takes."""
        raise NotSupported(
            what="waiting inside a transaction", reason="wait on the store, then begin"
        )

    def on(self, connection: Any) -> Engine:
        """The same for another connection."""
        return self._engine.on(connection)

    async def close(self) -> None:
        """Nothing is ours to close."""

    async def _outcome(self, op: Callable[..., Op[T]], args: tuple[Any, ...]) -> T:
        self._engine._check()
        if not self._connection.is_in_transaction():
            raise Invalid(field="connection", reason="has no open transaction")
        return await _settled(
            asyncio.get_running_loop().create_task(drive_async(op(*args), self._step))
        )

    async def _step(self, step: Step) -> Answer:
        call = self._engine._call(step)
        try:
            rows = await self._guarded(call, step.params)
            if rows is not None:
                return Answer(rows, False)
            assert call.refused is not None
            arguments = call.refused.arguments(step.params)
            records = await self._connection.fetch(call.refused.sql, *arguments)
            return Answer(picked(records, call.explains), True)
        except (HoldfastError, LookupError):
            raise
        except Failed as failed:
            raise translated(failed, call.name, call.ids(step.params)) from failed
        except Exception as failure:
            told = Failed(fault_of(failure), reason_of(failure))
            raise translated(told, call.name, call.ids(step.params)) from failure

    async def _guarded(self, call: Call, params: Params) -> Rows | None:
        if not call.writes:
            return await run_parts(self._connection, call, params)
        await self._connection.execute("SAVEPOINT holdfast_step")
        try:
            rows = await run_parts(self._connection, call, params)
        except Exception as failure:
            fault = failure.fault if isinstance(failure, Failed) else fault_of(failure)
            if isinstance(failure, LookupError) or fault is not Fault.LOST:
                await self._undo()
                if fault is Fault.DUPLICATE and call.refused is not None:
                    return None
            raise
        if rows is None:
            await self._undo()
        else:
            await self._connection.execute("RELEASE SAVEPOINT holdfast_step")
        return rows

    async def _undo(self) -> None:
        await self._connection.execute(
            "ROLLBACK TO SAVEPOINT holdfast_step; RELEASE SAVEPOINT holdfast_step"
        )


async def run_parts(connection: Any, call: Call, params: Params) -> Rows | None:
    """Run the parts of a block in order for one request; None when its guard refuses."""
    values = dict(params)
    answer: list[Any] = []
    for text in call.parts:
        try:
            if text.kind == "when" and not values[text.subject]:
                continue
            arguments = text.merged([values]) if call.merged_by else text.arguments(values)
        except LookupError as missing:
            raise Failed(Fault.DEFECT, f"there is no value for {missing}") from missing
        records = await connection.fetch(text.sql, *arguments)
        if text.kind == "guard":
            if not records:
                return None
            values.update(records[0].items())
            answer = records
        elif text.kind == "rows":
            answer = records
    return picked(answer, call.returns)


async def _no_reset(connection: Any) -> None:
    """Nothing to reset: no state of a database session is ever made."""


class PostgresBlockingEngine:
    """The same for blocking callers, safe from threads: a private event loop owns the engine.

    A caller that is interrupted stops waiting; its operation goes on to its end.
    """

    def __init__(self, thread: LoopThread, engine: PostgresEngine) -> None:
        self._thread = thread
        self._engine = engine
        self._watching = BlockingWatching(self.read, engine.signals, self._attend)

    @classmethod
    def open(cls, url: str, **options: Any) -> PostgresBlockingEngine:
        """Open a `PostgresEngine` with the same options, on a loop thread of its own."""
        thread = LoopThread("holdfast-postgres")
        try:
            return cls(thread, thread.run(PostgresEngine.open(url, **options)))
        except BaseException:
            thread.stop()
            raise

    def read(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes nothing."""
        return self._thread.run(self._engine.read(op, *args))

    def write(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes."""
        return self._thread.run(self._engine.write(op, *args))

    def on(self, connection: Any) -> BlockingEngine:
        """Refused: the driver's connections belong to an event loop."""
        raise NotSupported(
            what="a transaction of the caller", reason="open the store with holdfast.open"
        )

    def publish(self, topics: Iterable[str]) -> None:
        """Wake whoever waits, here and elsewhere in a few milliseconds."""
        # Another thread may have closed the handle since the operation was done.
        with suppress(HandleClosed):
            self._thread.call(self._engine.signals.publish, tuple(topics))

    def watch(self, topic: str, op: Callable[..., Op[T]], *args: Any) -> BlockingWatch[T]:
        """Watch what a reading operation answers."""
        self._thread.require()
        return self._watching.watch(topic, op, args)

    def _attend(self) -> None:
        self._thread.call(self._engine.signals.attend)

    def close(self) -> None:
        """Finish the operations under way, let go of the database and end the thread."""
        # Another thread may have closed it already, or be about to.
        with suppress(HandleClosed):
            self._thread.run(self._engine.close())
        self._thread.stop()
