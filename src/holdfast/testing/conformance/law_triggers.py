"""Triggers: the rules by which what happens outside starts processes.

A rule is a subscription. It belongs to a session, to one frame of it, or to the host, which is
nobody's session, and has a key there. What is registered under the same owner and key is the same
rule: said again it changes nothing, said otherwise it is the next revision of it, for somebody who
knows the one before.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.contract.errors import (
    Invalid,
    SessionDeleted,
    SubscriptionMoved,
    SubscriptionUnknown,
)
from holdfast.contract.processes import Const, EventType, NewGrant, Pointer, Scope
from holdfast.contract.triggers import (
    NewSubscription,
    ProcessTemplate,
    Subscription,
    SubscriptionFilter,
)
from holdfast.testing.conformance.kit import Kit, all_pages
from holdfast.testing.conformance.kit_triggers import (
    denied,
    given,
    goes_on,
    got,
    here,
    keys,
    mail,
    rule,
    running,
)

FULL = NewSubscription(
    owner=Scope(session="s", frame="f"),
    key="k",
    source_type="mail",
    source_key="inbox",
    name="Mail that asks",
    schema={"type": "object", "required": ["from"], "additionalProperties": True},
    process=ProcessTemplate(
        kind="research",
        label="Answer it",
        definition="research@2",
        inputs={"who": Pointer(at="/from"), "how": Const(value="kindly")},
        events=(EventType(name="step"),),
        recovery="owner-bound",
        wake=Scope(session="w"),
        grants=(NewGrant(scope=Scope(session="o"), kind="tool", label="mine"),),
    ),
)
TEMPLATE: dict[str, Any] = {
    "kind": "other",
    "label": "Leave it",
    "definition": None,
    "inputs": {"who": Pointer(at="/from")},
    "events": (),
    "recovery": "rerunnable",
    "wake": Scope(session="w", frame="f"),
    "grants": (),
}
DIFFERENT: dict[str, Any] = {
    "source_type": "call",
    "source_key": "outbox",
    "name": "",
    "schema": None,
    **{
        f"process.{name}": msgspec.structs.replace(FULL.process, **{name: value})
        for name, value in TEMPLATE.items()
    },
}


def changed(name: str) -> NewSubscription:
    """The full rule with one thing changed."""
    return msgspec.structs.replace(FULL, **{name.partition(".")[0]: DIFFERENT[name]})


async def test_law_203_each_rule_has_an_id_of_its_own(kit: Kit) -> None:
    """Two rules have ids of their own, also when only their owners differ. A listing of a session
    holds its own rules with those of its frames, and one by source or state those of everybody.
    (203)"""
    async with kit.open() as store:
        made = [
            *await given(store, "a", "b"),
            *await given(store, "a", owner=here("s")),
            *await given(store, "a", owner=here("s", "f"), source_key="outbox"),
            *await given(store, "a", owner=here("t")),
        ]
        assert len({subscription.subscription for subscription in made}) == 5
        mine = await all_pages(
            lambda a: store.triggers.list(which=SubscriptionFilter(session="s"), after=a)
        )
        assert [subscription.owner for subscription in mine] == [here("s"), here("s", "f")]
        by_source = SubscriptionFilter(source_type="mail", source_key="inbox", enabled=True)
        listed = await all_pages(lambda a: store.triggers.list(which=by_source, after=a, limit=3))
        assert {one.subscription for one in listed} == {
            made[0].subscription,
            made[1].subscription,
            made[2].subscription,
            made[4].subscription,
        }


async def test_law_204_a_rule_is_disabled_by_its_owner(kit: Kit) -> None:
    """Disabling names the owner and the key, and no other owner's rule of that key is touched; the
    rule is still there afterwards, as a disabled one. (204)"""
    async with kit.open() as store:
        for owner in (None, here("s"), here("s", "f"), here("t")):
            await given(store, "k", owner=owner)
        disabled = await store.triggers.disable("k", owner=here("s"))
        assert disabled.enabled is False
        assert await store.triggers.get("k", owner=here("s")) == disabled
        assert [(await got(store, "k", owner)).enabled for owner in (None, here("s", "f"))] == [
            True,
            True,
        ]
        assert await keys(store, session="s", enabled=False) == ["k"]
        assert await keys(store, session="s") == ["k", "k"]
        for owner in (here("u"), here("t", "f")):
            async with denied(store, SubscriptionUnknown):
                await store.triggers.disable("k", owner=owner)
        await goes_on(store, rules=3)


async def test_law_207_a_disabled_rule_starts_nothing(kit: Kit) -> None:
    """What happens while a rule is disabled does not start anything by it, then or later; what
    happens after it was enabled again does. (207)"""
    async with kit.open() as store, kit.open() as other:
        await given(store, "k")
        await store.triggers.disable("k")
        missed = await other.triggers.ingest(mail("m1"))
        assert (missed.recorded, missed.deliveries) == (True, ())
        recorded = (await other.triggers.record(mail("m2"))).occurrence.occurrence
        assert await other.triggers.reserve(recorded) == ()
        enabled = await store.triggers.enable("k")
        assert enabled.enabled is True
        assert await got(other) == enabled
        assert (await other.triggers.ingest(mail("m1"))).deliveries == ()
        assert await running(other) == []
        await goes_on(other)
        born_off = await store.triggers.register(rule("off", enabled=False))
        assert (born_off.created, born_off.subscription.enabled) == (True, False)
        assert len((await other.triggers.ingest(mail("m3"))).deliveries) == 1


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "no key": ("key", {"key": ""}),
    "blank key": ("key", {"key": "  "}),
    "long key": ("key", {"key": "x" * 201}),
    "blank source type": ("source_type", {"source_type": " "}),
    "blank source key": ("source_key", {"source_key": ""}),
    "blank owner": ("owner", {"owner": here("")}),
    "blank frame": ("owner", {"owner": here("s", "")}),
    "name with a control character": ("name", {"name": "a\x00b"}),
    "schema that is no schema": ("schema", {"schema": {"type": 3}}),
    "schema that is no object": ("schema", {"schema": "object"}),
    "no truth": ("enabled", {"enabled": "yes"}),
    "blank kind": ("process.kind", {"process": ProcessTemplate(kind="")}),
    "label with a control character": ("process.label", {"process": ProcessTemplate(label="\x01")}),
    "blank definition": ("process.definition", {"process": ProcessTemplate(definition=" ")}),
    "unknown recovery": (
        "process.recovery",
        {"process": ProcessTemplate(recovery="sometimes")},  # type: ignore[arg-type]
    ),
    "blank wake": ("process.wake", {"process": ProcessTemplate(wake=here(""))}),
    "blank grant": (
        "process.grants[0].scope",
        {"process": ProcessTemplate(grants=[NewGrant(scope=here(""))])},
    ),
    "grant twice": (
        "process.grants[1].scope",
        {"process": ProcessTemplate(grants=[NewGrant(scope=here())] * 2)},
    ),
    "reserved type": (
        "process.events[0].name",
        {"process": ProcessTemplate(events=[EventType(name="process.mine")])},
    ),
    "pointer that is none": (
        "process.inputs",
        {"process": ProcessTemplate(inputs={"who": Pointer(at="from")})},
    ),
}


@pytest.mark.parametrize("case", list(BAD))
async def test_law_211_an_ill_formed_rule_leaves_nothing(kit: Kit, case: str) -> None:
    """A rule with a blank or ill-formed owner, key, source, name or schema, or with a process that
    could not be registered, is Invalid, names the field, and registers nothing. (211)"""
    field, wrong = BAD[case]
    async with kit.open() as store:
        async with denied(store, Invalid) as it:
            await store.triggers.register(rule(**{"key": "k", **wrong}))
        assert it.value.field.startswith(field), it.value.field
        await given(store, "k")
        await goes_on(store)


async def test_law_216_a_deleted_session_takes_its_rules_along(kit: Kit) -> None:
    """Deleting a session removes its rules, those of its frames too, in the same moment, and counts
    them; those of other sessions and of the host stay. (216)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await store.sessions.create("t")
        for owner in (None, here("s"), here("s", "f"), here("t")):
            await given(store, "k", owner=owner)
        await given(store, "l", owner=here("s"), enabled=False)
        deleted = await store.sessions.delete("s")
        assert (deleted.deleted, deleted.subscriptions) == (True, 3)
        assert await store.triggers.get("k", owner=here("s")) is None
        assert await keys(store, session="s") == []
        listed = await all_pages(lambda a: store.triggers.list(after=a))
        assert [subscription.owner for subscription in listed] == [None, here("t")]
        await goes_on(store, rules=2)
        assert (await store.sessions.delete("s")).subscriptions == 0
        with pytest.raises(SubscriptionUnknown):
            await store.triggers.enable("k", owner=here("s"))


async def test_law_217_a_rule_is_registered_once(kit: Kit) -> None:
    """The same rule again under the same owner and key answers the one that is there, on any
    handle, and changes nothing of it; a rule that was disabled stays so. (217)"""
    async with kit.open() as store, kit.open() as other:
        first = await store.triggers.register(FULL)
        assert (first.created, first.changed) == (True, True)
        for handle in (store, other):
            again = await handle.triggers.register(FULL)
            assert (again.created, again.changed) == (False, False)
            assert again.subscription == first.subscription
        reordered = msgspec.structs.replace(
            FULL, schema={"additionalProperties": True, "required": ["from"], "type": "object"}
        )
        assert (await other.triggers.register(reordered)).changed is False
        disabled = await store.triggers.disable("k", owner=FULL.owner)
        again = await other.triggers.register(FULL)
        assert (again.created, again.changed, again.subscription) == (False, False, disabled)
        assert (await got(store, "k", FULL.owner)) == disabled


async def test_law_j01_a_rule_is_what_was_registered(kit: Kit) -> None:
    """What is answered of a new rule is what was registered, the first revision of the first of its
    incarnations, and every reading says the same. (j01)"""
    async with kit.open() as store, kit.open() as other:
        made = (await store.triggers.register(FULL)).subscription
        assert made == Subscription(
            subscription=made.subscription,
            owner=Scope(session="s", frame="f"),
            key="k",
            incarnation=1,
            revision=1,
            enabled=True,
            name="Mail that asks",
            source_type="mail",
            source_key="inbox",
            schema={"type": "object", "required": ["from"], "additionalProperties": True},
            process=FULL.process,
            created_at_ms=made.created_at_ms,
            updated_at_ms=made.created_at_ms,
        )
        assert await got(other, "k", FULL.owner) == made
        assert (await other.triggers.list()).items == (made,)
        assert await store.triggers.get("k", owner=here("s")) is None
        assert await store.triggers.get("k") is None


@pytest.mark.parametrize("name", list(DIFFERENT))
async def test_law_j02_another_rule_is_the_next_revision(kit: Kit, name: str) -> None:
    """Another rule under the same owner and key is refused with SubscriptionMoved unless the
    current revision is named; with it, it becomes the next revision of the same rule, whatever it
    is that differs. (j02)"""
    async with kit.open() as store:
        first = (await store.triggers.register(FULL)).subscription
        other = changed(name)
        for expected in (None, 0, 2):
            async with denied(store, SubscriptionMoved) as it:
                await store.triggers.register(other, expected=expected)
            assert (it.value.owner, it.value.key) == ("s/f", "k")
            assert (it.value.expected, it.value.actual) == (expected, 1)
        answer = await store.triggers.register(other, expected=1)
        second = answer.subscription
        assert (answer.created, answer.changed) == (False, True)
        assert (second.subscription, second.incarnation) == (first.subscription, 1)
        assert (second.revision, second.created_at_ms) == (2, first.created_at_ms)
        for field in ("source_type", "source_key", "name", "schema", "process"):
            assert getattr(second, field) == getattr(other, field)
        assert await got(store, "k", FULL.owner) == second
        async with denied(store, SubscriptionMoved) as it:
            await store.triggers.register(FULL, expected=1)
        assert (it.value.expected, it.value.actual) == (1, 2)
        back = await store.triggers.register(FULL, expected=2)
        assert (back.changed, back.subscription.revision) == (True, 3)


async def test_law_j03_a_rule_goes_by_its_last_revision(kit: Kit) -> None:
    """What happens after a rule was changed is judged by the changed rule, and by nothing of the
    one before. (j03)"""
    async with kit.open() as store, kit.open() as other:
        await given(store, "k")
        await store.triggers.register(rule("k", source_key="outbox"), expected=1)
        assert (await other.triggers.ingest(mail("m1"))).deliveries == ()
        moved = await other.triggers.ingest(mail("m2", source_key="outbox"))
        assert [delivery.state for delivery in moved.deliveries] == ["started"]
        kind = ProcessTemplate(kind="tool")
        await store.triggers.register(rule("k", process=kind), expected=2)
        (delivery,) = (await other.triggers.ingest(mail("m3"))).deliveries
        process = await other.processes.get(delivery.process)
        assert process is not None
        assert process.kind == "tool"
        assert (await other.triggers.ingest(mail("m4", source_key="outbox"))).deliveries == ()


async def test_law_j04_a_moved_rule_is_not_changed_unseen(kit: Kit) -> None:
    """Enabling, disabling and deleting that name a revision are refused with SubscriptionMoved when
    it is not the current one, and change nothing; each change is another revision. (j04)"""
    async with kit.open() as store:
        first = (await given(store, "k"))[0]
        disabled = await store.triggers.disable("k", expected=1)
        assert (disabled.revision, disabled.subscription) == (2, first.subscription)
        triggers = store.triggers
        for call in (triggers.enable, triggers.disable, triggers.delete):
            for expected in (0, 1, 3):
                async with denied(store, SubscriptionMoved) as it:
                    await call("k", expected=expected)
                assert (it.value.owner, it.value.key) == (None, "k")
                assert (it.value.expected, it.value.actual) == (expected, 2)
        enabled = await store.triggers.enable("k", expected=2)
        assert (enabled.revision, enabled.enabled) == (3, True)
        await goes_on(store)
        await store.triggers.delete("k", expected=3)
        assert await store.triggers.get("k") is None


async def test_law_j05_what_is_so_already_is_no_change(kit: Kit) -> None:
    """Enabling what is enabled and disabling what is disabled answer the rule as it is; a rule that
    was deleted is deleted again with the same answer. (j05)"""
    async with kit.open() as store:
        first = (await given(store, "k"))[0]
        assert await store.triggers.enable("k") == first
        disabled = await store.triggers.disable("k")
        assert await store.triggers.disable("k") == disabled
        gone = await store.triggers.delete("k")
        assert gone.subscription == first.subscription
        assert await store.triggers.delete("k") == gone


async def test_law_j06_a_deleted_rule_may_come_back_as_another(kit: Kit) -> None:
    """A deleted rule is not listed, not found, and starts nothing; registered anew it is the next
    incarnation under an id of its own, whose deliveries are its own. (j06)"""
    async with kit.open() as store:
        first = (await given(store, "k"))[0]
        before = await store.triggers.ingest(mail("m1"))
        await store.triggers.delete("k")
        assert await store.triggers.get("k") is None
        assert (await store.triggers.list()).items == ()
        assert (await store.triggers.ingest(mail("m2"))).deliveries == ()
        for call in (store.triggers.enable, store.triggers.disable):
            async with denied(store, SubscriptionUnknown):
                await call("k")
        again = await store.triggers.register(rule("k"))
        revived = again.subscription
        assert (again.created, revived.incarnation, revived.enabled) == (True, 2, True)
        assert revived.subscription != first.subscription
        assert await got(store) == revived
        (delivery,) = await store.triggers.reserve(before.occurrence.occurrence)
        assert delivery.subscription == revived.subscription
        assert delivery.process != before.deliveries[0].process
        await goes_on(store)


async def test_law_j09_a_session_that_was_deleted_has_no_rules(kit: Kit) -> None:
    """A rule for a session that was deleted is refused with SessionDeleted; one for a session that
    is not there yet is taken. (j09)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await store.sessions.delete("s")
        for owner in (here("s"), here("s", "f")):
            async with denied(store, SessionDeleted) as it:
                await store.triggers.register(rule("k", owner=owner))
            assert it.value.session == "s"
        await given(store, "k", owner=here("later"))
        await goes_on(store)


async def test_law_j10_a_listing_tells_rules_apart(kit: Kit) -> None:
    """A filter asks for the session of the owner, the name, the source and whether a rule is
    enabled; all that is given must apply. The order is that of owners and keys, the host first, and
    pages go through all of it. (j10)"""
    async with kit.open() as store:
        await given(store, "c", "a", name="one")
        await given(store, "b", owner=here("s"), name="two")
        await given(store, "a", "d", owner=here("s", "f"), source_type="call")
        await given(store, "a", owner=here("t"), source_key="outbox", enabled=False)
        assert await keys(store) == ["a", "c", "b", "a", "d", "a"]
        assert await keys(store, session="s") == ["b", "a", "d"]
        assert await keys(store, name="one") == ["a", "c"]
        assert await keys(store, source_type="call") == ["a", "d"]
        assert await keys(store, source_key="outbox") == ["a"]
        assert await keys(store, source_type="mail", source_key="inbox") == ["a", "c", "b"]
        assert await keys(store, enabled=True) == ["a", "c", "b", "a", "d"]
        assert await keys(store, enabled=False) == ["a"]
        assert await keys(store, session="s", name="two", source_type="mail") == ["b"]
        assert await keys(store, session="s", name="one") == []


async def test_law_j11_of_concurrent_registrations_one_creates(kit: Kit) -> None:
    """Of equal registrations on different handles at the same time one creates the rule, and all
    answer it; of changes to the same revision one is made, and the others are told that the rule
    has moved. (j11)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three:
        handles = (one, two, three)
        answers = await asyncio.gather(
            *(handle.triggers.register(FULL) for handle in handles for _ in range(2))
        )
        assert sorted(answer.created for answer in answers) == [False] * 5 + [True]
        assert len({answer.subscription.subscription for answer in answers}) == 1
        changes = await asyncio.gather(
            *(
                handle.triggers.register(
                    msgspec.structs.replace(FULL, name=f"n{number}"), expected=1
                )
                for number, handle in enumerate(handles)
            ),
            return_exceptions=True,
        )
        won = [answer for answer in changes if not isinstance(answer, BaseException)]
        lost = [answer for answer in changes if isinstance(answer, BaseException)]
        assert [answer.subscription.revision for answer in won] == [2]
        assert [type(answer) for answer in lost] == [SubscriptionMoved] * 2
        assert await got(one, "k", FULL.owner) == won[0].subscription
