"""The state machine: the same calls on a real store and on the model oracle, compared at each step.

It is driven by Hypothesis, which looks for the shortest sequence that tells them apart, or by a
seed, which is faster and repeats exactly. Both make their choices through the same calls.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from holdfast.testing import (
    machine_calls,
    machine_process_calls,
    machine_queue_calls,
    machine_schedule_calls,
    machine_trigger_calls,
)
from holdfast.testing.machine_calls import Call, Pick
from holdfast.testing.machine_process_calls import first_process
from holdfast.testing.machine_schedule_calls import first_schedule, listener
from holdfast.testing.machine_trigger_calls import first_rule
from holdfast.testing.machine_world import World

T = TypeVar("T")

KINDS = {
    **machine_calls.KINDS,
    **machine_queue_calls.KINDS,
    **machine_process_calls.KINDS,
    **machine_trigger_calls.KINDS,
    **machine_schedule_calls.KINDS,
}
WEIGHTS = {
    **machine_calls.WEIGHTS,
    **machine_queue_calls.WEIGHTS,
    **machine_process_calls.WEIGHTS,
    **machine_trigger_calls.WEIGHTS,
    **machine_schedule_calls.WEIGHTS,
}
# The outcomes a run of some thousand steps has to show; without one of them it proves too little.
WANTED = frozenset(
    """
    commit: replayed False | commit: replayed True | commit: turn-conflict | commit: head-moved
    commit: lane-busy | commit: lane-lost | commit: node-unknown | commit: node-collision
    commit: component-missing | commit: session-unknown | commit: session-deleted | commit: invalid
    commit: claim-lost | commit: attachment-unknown
    create: created True | create: created False | create: session-deleted
    fork: created True | fork: created False | fork: session-exists | fork: session-unknown
    fork: session-deleted | fork: node-unknown | fork: not-retained | fork: invalid
    rewind: replayed False | rewind: replayed True | rewind: turn-conflict | rewind: head-moved
    rewind: lane-busy | rewind: lane-lost | rewind: node-unknown | rewind: not-retained
    rewind: session-unknown | rewind: session-deleted | rewind: invalid
    delete: deleted True | delete: deleted False | update: answer | update: session-unknown
    update: session-deleted | tombstone: True | tombstone: False | tombstone: session-unknown
    tombstone: session-deleted | vacuum: answer | vacuum: session-unknown | vacuum: session-deleted
    claim: answer | claim: displaced | claim: lane-busy | claim: session-unknown
    claim: session-deleted | renew: answer | renew: lane-lost | renew: session-unknown
    renew: session-deleted | release: True | release: False | displace: answer
    displace: session-unknown | displace: session-deleted | load: answer | load: nothing
    load: not-retained | load: invalid | node: answer | node: nothing | receipt: nothing
    diff: answer | diff: session-unknown
    commit: settled
    queue.enqueue: enqueued True | queue.enqueue: enqueued False | queue.enqueue: session-unknown
    queue.enqueue: session-deleted | queue.enqueue: invalid
    queue.claim: taken | queue.claim: redelivered | queue.claim: empty | queue.claim: claimed
    queue.claim: not-yet-available | queue.claim: command-at-head | queue.claim: turn-at-head
    queue.claim: boundary | queue.claim: not-at-head | queue.claim: zero-limit
    queue.claim: lane-lost | queue.claim: lane-busy | queue.claim: session-unknown
    queue.claim: session-deleted | queue.claim: invalid
    queue.claim_next: taken | queue.claim_next: redelivered | queue.claim_next: empty
    queue.claim_next: not-yet-available | queue.claim_next: zero-limit
    queue.renew: answer | queue.renew: claim-lost | queue.renew: invalid
    queue.renew: session-deleted
    queue.abandon: True | queue.abandon: False | queue.cancel: answer | queue.cancel: nothing
    queue.requeue: answer | queue.requeue: work-unknown | queue.requeue: work-not-dead
    queue.requeue: session-unknown | queue.requeue: session-deleted
    queue.prune: True | queue.prune: False | queue.get: answer | queue.get: nothing
    queue.why: free | queue.why: empty | queue.why: claimed | queue.why: not-yet-available
    queue.why: boundary | queue.why: command-at-head | queue.why: turn-at-head
    queue.why: session-unknown | queue.why: session-deleted
    processes.register: created True | processes.register: created False
    processes.register: process-conflict | processes.register: process-pruned
    processes.register: session-deleted | processes.register: invalid
    processes.append: replayed False | processes.append: replayed True
    processes.append: enqueued | processes.append: no-target | processes.append: target-gone
    processes.append: event-conflict | processes.append: event-undeclared
    processes.append: payload-rejected | processes.append: end-forbidden
    processes.append: lease-lost | processes.append: process-ended
    processes.append: process-unknown | processes.append: process-pruned
    processes.append: invalid
    processes.signal: replayed False | processes.signal: event-undeclared
    processes.request_cancel: replayed False | processes.request_cancel: replayed True
    processes.request_cancel: process-ended | processes.request_cancel: process-unknown
    processes.end: completed by lease | processes.end: completed by operator
    processes.end: completed by external | processes.end: failed by lease
    processes.end: cancelled by lease | processes.end: end-forbidden
    processes.end: lease-lost | processes.end: process-ended | processes.end: payload-rejected
    processes.end: process-unknown | processes.end: invalid
    processes.abandon: abandoned by lapse | processes.abandon: abandoned by operator
    processes.abandon: end-forbidden | processes.abandon: process-ended
    processes.suspend: answer | processes.suspend: lease-lost | processes.suspend: process-ended
    processes.suspend: event-undeclared | processes.suspend: process-unknown
    processes.suspend: invalid | processes.resume: answer | processes.set_external: answer
    processes.set_external: event-conflict
    processes.claim: answer | processes.claim: displaced | processes.claim: lease-busy
    processes.claim: not-recoverable | processes.claim: process-ended
    processes.claim: process-unknown | processes.renew: answer | processes.renew: lease-lost
    processes.release: True | processes.release: False | processes.due: some
    processes.due: none | processes.due: lost | processes.grant: answer
    processes.grant: session-deleted | processes.grant: process-unknown
    processes.revoke: True | processes.revoke: False | processes.transfer: True
    processes.transfer: False | processes.transfer: grant-unknown | processes.transfer: invalid
    processes.granted: answer | processes.granted: nothing | processes.grants: some
    processes.changes: some | processes.changes: none | processes.list: some
    processes.list: none | processes.list: invalid | processes.events: some
    processes.events: process-pruned | processes.wakes: some | processes.wakes: none
    processes.ack: True | processes.ack: False | processes.count: True
    processes.count: False | processes.recent: some | processes.prune: some
    processes.prune: none | delete: orphaned | delete: preserved
    triggers.register: created | triggers.register: revived | triggers.register: changed True
    triggers.register: changed False | triggers.register: subscription-moved
    triggers.register: operation-conflict | triggers.register: session-deleted
    triggers.register: invalid | triggers.enable: answer | triggers.enable: subscription-unknown
    triggers.enable: subscription-moved | triggers.enable: operation-conflict
    triggers.disable: answer | triggers.disable: subscription-unknown
    triggers.disable: subscription-moved | triggers.delete: answer
    triggers.delete: subscription-unknown | triggers.delete: subscription-moved
    triggers.record: recorded True | triggers.record: recorded False
    triggers.record: occurrence-conflict | triggers.ingest: started
    triggers.ingest: rejected and started | triggers.ingest: none | triggers.ingest: replayed
    triggers.ingest: occurrence-conflict | triggers.reserve: reserved | triggers.reserve: none
    triggers.reserve: occurrence-unknown | triggers.start: started
    triggers.start: rejected and started | triggers.start: none
    triggers.start: occurrence-unknown | triggers.deliveries: some | triggers.deliveries: none
    triggers.deliveries: occurrence-unknown | triggers.occurrence: answer
    triggers.occurrence: nothing | triggers.list: some | triggers.list: none
    triggers.occurrences: some | triggers.reserved: some | triggers.reserved: none
    triggers.prune: delivered | triggers.prune: some | triggers.prune: none
    delete: subscriptions
    schedules.register: created | schedules.register: changed True
    schedules.register: changed False | schedules.register: schedule-moved
    schedules.register: invalid | schedules.pause: paused True
    schedules.pause: schedule-unknown | schedules.resume: paused False
    schedules.resume: schedule-unknown | schedules.run_now: ran True | schedules.run_now: ran False
    schedules.run_now: schedule-unknown | schedules.delete: True | schedules.delete: False
    schedules.next: some | schedules.next: none | schedules.next: schedule-unknown
    schedules.tick: nothing | schedules.tick: fired | schedules.tick: skipped
    schedules.tick: fired and skipped | schedules.tick: fired and more
    schedules.tick: fired and skipped and more
    schedules.get: answer | schedules.get: nothing | schedules.list: some | schedules.list: none
    schedules.skipped: some | schedules.skipped: none | schedules.skipped: schedule-unknown
    skipped: missed | skipped: capped | skipped: paused | skipped: replaced
    """.replace("\n", "|")
    .replace(" | ", "|")
    .replace("    ", "")
    .split("|")
) - {""}


@cache
def _places(count: int) -> st.SearchStrategy[int]:
    """Drawing a place in the options costs much less than drawing one of them."""
    return st.integers(0, count - 1)


def store_machine(make_world: Callable[[], World], seen: Counter[str]) -> type[Any]:
    """A machine over worlds that `make_world` makes, one for each example. `seen` is filled with
    the outcomes that occurred."""

    def calls(kind: str) -> st.SearchStrategy[Call]:
        @st.composite
        def made(draw: st.DrawFn) -> Call:
            def pick(options: Sequence[T], /) -> T:
                return options[draw(_places(len(options)))]

            return KINDS[kind](pick)

        return made()

    class StoreMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world = make_world()
            self.agreed = True

        def _play(self, call: Call) -> None:
            self.agreed = False
            event(self.world.play(call))
            self.world.glance(call)
            self.agreed = True

        @initialize(more=st.sampled_from(((0,), (0, 1), ())))
        def begin(self, more: tuple[int, ...]) -> None:
            for tenant in more:
                self._play(Call(tenant, "create", {"session": "s0"}))
                self._play(first_process(tenant))
                self._play(first_rule(tenant))
            if not more:
                self._play(Call(0, "create", {"session": "s0"}))
                self._play(listener(0, "c0"))
                self._play(first_schedule(0))

        def teardown(self) -> None:
            if self.agreed:
                self.world.look()
            seen.update(self.world.seen)

    for kind in KINDS:
        setattr(StoreMachine, kind, _rule(kind, calls(kind)))
    return StoreMachine


def _rule(kind: str, made: st.SearchStrategy[Call]) -> Any:
    def played(self: Any, call: Call) -> None:
        self._play(call)

    played.__name__ = kind
    return rule(call=made)(played)


def seeded_run(world: World, seed: int, steps: int) -> None:
    """Play that many calls, chosen by the seed; what follows is the same wherever it is run."""
    chance = random.Random(seed)

    def pick(options: Sequence[T], /) -> T:
        return options[int(chance.random() * len(options))]

    chooser: Pick = pick
    # Much has to happen before triggers and schedules are worth a look, so that some runs are about
    # them, and the others leave them alone.
    weights = dict(WEIGHTS)
    for kind in machine_trigger_calls.KINDS:
        weights[kind] *= 7 if seed % 4 == 3 else 0
    for kind in machine_schedule_calls.KINDS:
        weights[kind] *= 5 if seed % 4 == 0 else 0
    names, chances = list(weights), list(weights.values())
    for tenant, session in ((0, "s0"), (0, "s1"), (1, "s0")):
        world.play(Call(tenant, "create", {"session": session}))
    for tenant in (0, 1):
        world.play(first_process(tenant))
        world.play(first_rule(tenant))
        if seed % 4 == 0:
            world.play(listener(tenant, "c0"))
            world.play(first_schedule(tenant))
    for number in range(steps):
        (kind,) = chance.choices(names, chances)
        call = KINDS[kind](chooser)
        world.play(call)
        world.glance(call)
        if number % 20 == 19:
            world.look()
    world.study()
