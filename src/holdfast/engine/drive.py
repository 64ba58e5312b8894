"""The trampolines: they run an operation's steps, and a failed step is raised inside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.ops.op import Answer, Op, Step

T = TypeVar("T")


def drive(op: Op[T], run: Callable[[Step], Answer]) -> T:
    """Run an operation to its end with a function that runs one step."""
    try:
        step = next(op)
        while True:
            try:
                answer = run(step)
            except Exception as failure:
                step = op.throw(failure)
            else:
                step = op.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        op.close()


async def drive_async(op: Op[T], run: Callable[[Step], Awaitable[Answer]]) -> T:
    """The same, where running a step is awaited."""
    try:
        step = next(op)
        while True:
            try:
                answer = await run(step)
            except Exception as failure:
                step = op.throw(failure)
            else:
                step = op.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        op.close()
