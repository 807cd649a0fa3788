"""A mask or a selection that has no effect is a refusal, unless that is allowed; otherwise its effect is a finding."""

from __future__ import annotations

from dataclasses import replace

from jsbackup.planning.rules import Rule
from jsbackup.planning.selection.masking import (
    NO_MASK,
    about_masks,
    about_nothing_kept,
    against_payload_masks,
    obfuscated_entry,
    unseen,
)
from jsbackup.repository.manifest import Fact, FactKind
from jsbackup.transforms.mask import Mask, MaskCount
from jsbackup.transforms.obfuscate.names import ObfuscatedNames
from tests.planning.test_plan import stream

MAIL = Mask.parse("orders.>:$.mail=redact")
USER = Mask.parse("orders.new:header(X-User)=redact")
ORDERS = {"name": "ORDERS", "subjects": ["orders.>"]}


def rules(count: MaskCount, *masks: Mask, may_miss: bool = False) -> list[Rule]:
    return [found.rule for found in about_masks("ORDERS", ORDERS, masks or (MAIL,), count, may_miss=may_miss)]


def test_what_masks_have_done_is_said_for_each_of_them() -> None:
    count = MaskCount(values={0: 3}, seen={0: 5, 1: 2}, hit={0: 3})
    assert rules(count, MAIL, USER) == [Rule.MASKED, Rule.MASK_MISSED]
    assert rules(count, MAIL, USER, may_miss=True) == [Rule.MASKED, Rule.MASKED_NOTHING]
    (found,) = about_masks(
        "ORDERS", ORDERS, [MAIL], MaskCount({0: 3000}, seen={0: 5000}, hit={0: 2500}), may_miss=False
    )
    assert "3,000 values" in found.reason and "2,500 of the 5,000 messages" in found.reason


def test_a_mask_that_met_no_message_of_a_stream_says_nothing_there() -> None:
    assert rules(MaskCount()) == []


def test_messages_that_masks_left_as_they_were_are_counted() -> None:
    assert rules(MaskCount(unmasked=4)) == [Rule.UNMASKED]
    other = {"name": "ORDERS", "subjects": ["other.>"]}
    (found,) = about_masks("ORDERS", other, [MAIL], MaskCount(unmasked=4), may_miss=False)
    assert (found.rule, found.reason) == (Rule.UNMASKED, NO_MASK)
    assert rules(MaskCount(dropped=1)) == [Rule.UNMASKABLE]
    assert rules(MaskCount(kept=1, spared=2)) == [Rule.MASK_SPARED, Rule.UNMASKABLE]


def test_a_mask_is_unseen_only_if_no_stream_has_a_message_for_it() -> None:
    assert unseen([MAIL, USER], [MaskCount(seen={0: 1}), MaskCount()]) == [USER]
    assert unseen([MAIL, USER], [MaskCount(dropped=1)]) == []  # it may have been one of those that cannot be read
    assert unseen([MAIL], []) == [MAIL]


def test_payloads_that_clients_or_servers_need_are_not_dropped() -> None:
    def refused(stream: str, text: str, **config: object) -> list[Rule]:
        return [one.rule for one in against_payload_masks(stream, {"name": stream, **config}, [Mask.parse(text)])]

    assert refused("OBJ_b", "$O.b.>:payload=drop", subjects=["$O.b.C.>", "$O.b.M.>"]) == [Rule.MASK_STATE]
    assert refused("OBJ_b", "$O.b.>:payload=zero", subjects=["$O.b.C.>", "$O.b.M.>"]) == []
    assert refused("COPY", "$O.b.>:payload=drop", mirror={"name": "OBJ_b"}) == [Rule.MASK_STATE]
    assert refused("$MQTT_sess", "$MQTT.>:payload=zero", subjects=["$MQTT.sess.>"]) == [Rule.MASK_STATE]
    assert refused("$MQTT_sess", "orders.>:payload=zero", subjects=["$MQTT.sess.>"]) == []


def test_a_selection_that_keeps_nothing_is_refused_unless_the_stream_may_be_empty() -> None:
    refused, warned = (about_nothing_kept("S", 1200, may_be_empty=allowed) for allowed in (False, True))
    assert (refused.rule, warned.rule) == (Rule.KEEPS_NOTHING, Rule.NOTHING_KEPT)
    assert refused.code and not warned.code
    assert "1,200" in refused.reason and "1,200" in warned.reason


def test_an_obfuscated_stream_only_says_that_its_backup_was_not_complete() -> None:
    entry, names = stream("ORDERS"), ObfuscatedNames(bytes(32))
    assert obfuscated_entry(entry, names).remarks == ()
    fact = Fact(FactKind.LOST_SINCE, "b", detail="words", extra={"of": "a later tool"})
    for odd in (replace(entry, warnings=("words",)), replace(entry, facts=(fact,))):
        made = obfuscated_entry(odd, names)
        assert (made.remarks, made.facts) == (("what was backed up was not complete",), ())
