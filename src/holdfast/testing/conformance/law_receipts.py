"""Changes of triggers: receipts of what was done, and what is not there.

A change may name an operation, and is then done once: whoever repeats it is told what came of it.
Every operation answers what it is asked about something unknown in the same way, and looks at what
it is given before it looks at anything that is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from holdfast.contract.errors import (
    HoldfastError,
    Invalid,
    OccurrenceUnknown,
    OperationConflict,
    SubscriptionMoved,
    SubscriptionUnknown,
)
from holdfast.contract.stores import Store
from holdfast.contract.triggers import (
    OccurrenceFilter,
    SubscriptionFilter,
)
from holdfast.testing.conformance.kit import Kit
from holdfast.testing.conformance.kit_triggers import (
    NO_OCCURRENCE,
    denied,
    given,
    goes_on,
    here,
    mail,
    rule,
    seen,
)


async def test_law_j07_an_operation_is_answered_once(kit: Kit) -> None:
    """A change that names an operation is done once: the same again is answered the same, on any
    handle, also when the rule has moved on since, and changes nothing. (j07)"""
    async with kit.open() as store, kit.open() as other:
        made = await store.triggers.register(rule("k"), operation="o1")
        disabled = await store.triggers.disable("k", expected=1, operation="o2")
        changed = await store.triggers.register(
            rule("k", name="second"), expected=2, operation="o3"
        )
        enabled = await store.triggers.enable("k", operation="o4")
        gone = await store.triggers.delete("k", operation="o5")
        revived = await store.triggers.register(rule("k"), operation="o6")
        before = await seen(store)
        for handle in (store, other):
            triggers = handle.triggers
            assert await triggers.register(rule("k"), operation="o1") == made
            assert await triggers.disable("k", expected=1, operation="o2") == disabled
            second = rule("k", name="second")
            assert await triggers.register(second, expected=2, operation="o3") == changed
            assert await triggers.enable("k", operation="o4") == enabled
            assert await triggers.delete("k", operation="o5") == gone
            assert await triggers.register(rule("k"), operation="o6") == revived
        assert await seen(other) == before


async def test_law_j08_an_operation_has_one_meaning(kit: Kit) -> None:
    """An operation that was answered is refused with OperationConflict when it comes with anything
    else: another change, rule, owner, key or expected revision. A refused one leaves no receipt.
    (j08)"""
    async with kit.open() as store:
        await given(store, "l")
        with pytest.raises(SubscriptionMoved):
            await store.triggers.disable("l", expected=7, operation="o")
        with pytest.raises(SubscriptionUnknown):
            await store.triggers.disable("k", operation="o")
        await store.triggers.register(rule("k"), operation="o")
        triggers = store.triggers
        others: dict[str, Callable[[], Awaitable[object]]] = {
            "rule": lambda: triggers.register(rule("k", name="other"), operation="o"),
            "state": lambda: triggers.register(rule("k", enabled=False), operation="o"),
            "owner": lambda: triggers.register(rule("k", owner=here()), operation="o"),
            "key": lambda: triggers.register(rule("l"), operation="o"),
            "expected": lambda: triggers.register(rule("k"), expected=1, operation="o"),
            "disable": lambda: triggers.disable("k", operation="o"),
            "enable": lambda: triggers.enable("k", operation="o"),
            "delete": lambda: triggers.delete("k", operation="o"),
        }
        for name, call in others.items():
            async with denied(store, OperationConflict) as it:
                await call()
            assert it.value.operation == "o", name
        await goes_on(store, rules=2)


def calls_on(store: Store, occurrence: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every call that needs a rule "k" of the host, or the occurrence."""
    triggers = store.triggers
    return {
        "enable": lambda: triggers.enable("k"),
        "disable": lambda: triggers.disable("k"),
        "disable expected": lambda: triggers.disable("k", expected=1),
        "delete": lambda: triggers.delete("k"),
        "reserve": lambda: triggers.reserve(occurrence),
        "start": lambda: triggers.start(occurrence),
        "deliveries": lambda: triggers.deliveries(occurrence),
    }


UNKNOWN = {
    "reserve": OccurrenceUnknown,
    "start": OccurrenceUnknown,
    "deliveries": OccurrenceUnknown,
}


async def test_law_j12_what_is_unknown_is_refused_by_name(kit: Kit) -> None:
    """A change of a rule that is not there is refused with SubscriptionUnknown, and what needs an
    occurrence that is not there with OccurrenceUnknown, both by name; a reading of one answers
    None. Nothing is made by it. (j12)"""
    async with kit.open() as store:
        await given(store, "k", owner=here())
        for name, call in calls_on(store, NO_OCCURRENCE).items():
            async with denied(store, UNKNOWN.get(name, SubscriptionUnknown)) as it:
                await call()
            if isinstance(it.value, SubscriptionUnknown):
                assert (it.value.owner, it.value.key) == (None, "k")
            else:
                assert it.value.fields == {"occurrence": NO_OCCURRENCE}
        assert await store.triggers.get("k") is None
        assert await store.triggers.occurrence(NO_OCCURRENCE) is None
        await goes_on(store)


async def test_law_j13_another_tenants_triggers_are_not_there(kit: Kit) -> None:
    """The rules, occurrences and deliveries of another tenant are answered as what does not exist,
    by every operation; nothing that happens to one tenant starts anything of another, and the same
    keys and operations are free there. (j13)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        await store.triggers.register(rule("k"), operation="o")
        known = (await store.triggers.ingest(mail("m"))).occurrence.occurrence
        waiting = (await store.triggers.record(mail("w"))).occurrence.occurrence
        assert len(await store.triggers.reserve(waiting)) == 1
        before = await seen(store)
        for occurrence in (known, waiting):
            for name, call in calls_on(other, occurrence).items():
                with pytest.raises(HoldfastError) as it:
                    await call()
                assert type(it.value) is UNKNOWN.get(name, SubscriptionUnknown), name
            assert await other.triggers.occurrence(occurrence) is None
        assert await other.triggers.get("k") is None
        assert (await other.triggers.list()).items == ()
        assert (await other.triggers.occurrences()).items == ()
        assert (await other.triggers.reserved()).items == ()
        far = before.occurrences[0].at_ms + 10**10
        assert (await other.triggers.prune(before_ms=far)).occurrences == ()
        mine = await other.triggers.ingest(mail("m", payload="mine"))
        assert (mine.recorded, mine.deliveries) == (True, ())
        made = await other.triggers.register(rule("k", name="mine"), operation="o")
        assert made.created is True
        await other.triggers.disable("k")
        await other.triggers.delete("k")
        assert await seen(store) == before
        await goes_on(store)


async def test_law_j14_ill_formed_names_are_invalid(kit: Kit) -> None:
    """An operation that is given a blank or ill-formed owner, key, operation, occurrence or filter,
    a number out of range, or a cursor that is none, is Invalid, names the argument, and changes
    nothing. (j14)"""
    async with kit.open() as store:
        await given(store, "k")
        t = store.triggers
        wrong = SubscriptionFilter
        cases: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("operation", lambda: t.register(rule("k"), operation=" ")),
            ("expected", lambda: t.register(rule("k"), expected=-1)),
            ("owner", lambda: t.get("k", owner=here(""))),
            ("key", lambda: t.get("")),
            ("occurrence", lambda: t.occurrence("")),
            ("occurrence", lambda: t.reserve(" ")),
            ("occurrence", lambda: t.start("")),
            ("occurrence", lambda: t.deliveries("")),
            ("limit", lambda: t.list(limit=0)),
            ("limit", lambda: t.list(limit=1001)),
            ("after", lambda: t.list(after="not a cursor \x00")),
            ("which.session", lambda: t.list(which=wrong(session=" "))),
            ("which.source_type", lambda: t.list(which=wrong(source_type=""))),
            ("which.source_key", lambda: t.list(which=wrong(source_key=""))),
            ("which.enabled", lambda: t.list(which=wrong(enabled="no"))),  # type: ignore[arg-type]
            ("limit", lambda: t.occurrences(limit=0)),
            ("after", lambda: t.occurrences(after="nonsense")),
            ("which.source_type", lambda: t.occurrences(which=OccurrenceFilter(source_type=""))),
            ("limit", lambda: t.reserved(limit=0)),
            ("after", lambda: t.reserved(after="not a cursor \x00")),
            ("limit", lambda: t.deliveries(NO_OCCURRENCE, limit=0)),
            ("before_ms", lambda: t.prune(before_ms=-1)),
            ("limit", lambda: t.prune(before_ms=0, limit=0)),
        ]
        for call in (t.enable, t.disable, t.delete):
            cases += [
                ("owner", lambda call=call: call("k", owner=here(""))),  # type: ignore[misc]
                ("key", lambda call=call: call(" ")),  # type: ignore[misc]
                ("expected", lambda call=call: call("k", expected=-1)),  # type: ignore[misc]
                ("operation", lambda call=call: call("k", operation="")),  # type: ignore[misc]
            ]
        before = await seen(store)
        for number, (field, ask) in enumerate(cases):
            with pytest.raises(Invalid) as it:
                await ask()
            assert it.value.field.startswith(field), (number, field, it.value.field)
        assert await seen(store) == before
        await goes_on(store)
