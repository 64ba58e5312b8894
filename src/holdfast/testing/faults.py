"""Faults on purpose, between a store and its database: everything that makes one step fail is here.

A plan says where the next operation fails; the store that is opened over it runs on the real
database, so that what is left behind afterwards is what a real fault would leave.

    plan = Plan()
    faulty = wrap(store, plan)
    plan.arm("before", step=2)
    with pytest.raises(StoreUnreachable):
        await faulty.sessions.commit(turn)      # nothing of it is stored
    await faulty.sessions.commit(turn)          # a fault strikes once
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from holdfast.contract.errors import OutcomeUnknown, StoreUnreachable
from holdfast.engine.base import BlockingEngine, Engine
from holdfast.engine.watching import BlockingWatch, Watch
from holdfast.ops.op import Op
from holdfast.stores import Store
from holdfast.stores_blocking import BlockingStore

T = TypeVar("T")

Place = Literal["before", "after", "answer"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Where an operation fails: before or after its n-th step, or with its answer lost."""

    place: Place
    step: int

    def strike(self, place: Place, step: int, name: str) -> None:
        """Raise when this is the place. A step that has run may have been done."""
        if (place, step) != (self.place, self.step):
            return
        reason = f"a fault was planned {place} step {step}"
        if place == "before":
            raise StoreUnreachable(reason=reason)
        raise OutcomeUnknown(operation=name, reason=reason)


class Plan:
    """What the next operation meets, and what the last one did.

    `steps` are the names of the steps that the last operation yielded.
    """

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._struck = False
        self._fault: Fault | None = None

    def struck(self) -> bool:
        """Whether the last operation met its fault; one of fewer steps is done undisturbed."""
        return self._struck

    def arm(self, place: Place, *, step: int = 1) -> None:
        """Let the next operation fail, however often the engine runs it, and no other one.

        With "answer" the operation is done, and its caller is told `OutcomeUnknown`.
        """
        self._fault = Fault(place, step if place != "answer" else 0)

    def _begin(self, op: Callable[..., Op[T]]) -> tuple[Fault | None, Callable[..., Op[T]]]:
        fault, self._fault = self._fault, None
        self._struck = False

        def planned(*args: Any) -> Op[T]:
            return self._steps(op(*args), fault)

        return fault, planned

    def _steps(self, op: Op[T], fault: Fault | None) -> Op[T]:
        """The steps of an operation, with the fault raised in it as a failed step would be."""
        self.steps = []
        try:
            step = next(op)
            while True:
                self.steps.append(step.stmt.name)
                try:
                    self._meet(fault, "before")
                    answer = yield step
                    self._meet(fault, "after")
                except Exception as failure:
                    step = op.throw(failure)
                else:
                    step = op.send(answer)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            op.close()

    def _meet(self, fault: Fault | None, place: Place) -> None:
        if fault is not None:
            try:
                fault.strike(place, len(self.steps), self.steps[-1])
            except Exception:
                self._struck = True
                raise

    def _answer(self, fault: Fault | None) -> None:
        if fault is not None and fault.place == "answer":
            self._struck = True
            fault.strike("answer", 0, self.steps[-1] if self.steps else "operation")


class FaultyEngine:
    """An engine whose operations fail as planned."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan

    async def read(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes nothing."""
        fault, planned = self._plan._begin(op)
        value = await self._engine.read(planned, *args)
        self._plan._answer(fault)
        return value

    async def write(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes."""
        fault, planned = self._plan._begin(op)
        value = await self._engine.write(planned, *args)
        self._plan._answer(fault)
        return value

    def publish(self, topics: Iterable[str]) -> None:
        """Wake whoever waits, undisturbed."""
        self._engine.publish(topics)

    def watch(self, topic: str, op: Callable[..., Op[T]], *args: Any) -> Watch[T]:
        """Watch, undisturbed: a plan is for one operation, and a watch looks many times."""
        return self._engine.watch(topic, op, *args)

    def on(self, connection: Any) -> FaultyEngine:
        """The same plan inside the caller's own transaction."""
        return FaultyEngine(self._engine.on(connection), self._plan)

    async def close(self) -> None:
        """Close the engine beneath."""
        await self._engine.close()


class FaultyBlockingEngine:
    """The same for blocking callers. A plan is for one caller at a time."""

    def __init__(self, engine: BlockingEngine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan

    def read(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes nothing."""
        fault, planned = self._plan._begin(op)
        value = self._engine.read(planned, *args)
        self._plan._answer(fault)
        return value

    def write(self, op: Callable[..., Op[T]], *args: Any) -> T:
        """Run an operation that writes."""
        fault, planned = self._plan._begin(op)
        value = self._engine.write(planned, *args)
        self._plan._answer(fault)
        return value

    def publish(self, topics: Iterable[str]) -> None:
        """Wake whoever waits, undisturbed."""
        self._engine.publish(topics)

    def watch(self, topic: str, op: Callable[..., Op[T]], *args: Any) -> BlockingWatch[T]:
        """Watch, undisturbed: a plan is for one operation, and a watch looks many times."""
        return self._engine.watch(topic, op, *args)

    def on(self, connection: Any) -> FaultyBlockingEngine:
        """The same plan inside the caller's own transaction."""
        return FaultyBlockingEngine(self._engine.on(connection), self._plan)

    def close(self) -> None:
        """Close the engine beneath."""
        self._engine.close()


@overload
def wrap(store: Store, plan: Plan) -> Store: ...
@overload
def wrap(store: BlockingStore, plan: Plan) -> BlockingStore: ...
def wrap(store: Store | BlockingStore, plan: Plan) -> Store | BlockingStore:
    """The same handle with a plan in between; closing either closes both."""
    if isinstance(store, Store):
        view = store._view
        return Store(dataclasses.replace(view, engine=FaultyEngine(view.engine, plan)))
    blocking = store._view
    engine = FaultyBlockingEngine(blocking.engine, plan)
    return BlockingStore(dataclasses.replace(blocking, engine=engine))
