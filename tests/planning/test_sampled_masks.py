"""What a preview says of masks and filters after it has read a part of a stream, or all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.planning import stored_facts
from jsbackup.planning.model import RestoreOptions, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.stored_facts import counted, first_decision
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.reshape import Reshape
from tests.harness.backups import make_manifest, make_repository, store_stream
from tests.harness.batches import Message
from tests.planning.test_plan import NEW

MESSAGES = [
    Message(number, number, f"users.{number % 2}", None, b'{"email": "a@example.org", "n": %d}' % number)
    for number in range(1, 41)
]
SAMPLE = "in a sample of 5 of 40 messages: "


def _sampled(*masks: str, may_miss: bool = False) -> tuple[list[Finding], list[Finding]]:
    """Return what is found about masks: warnings, and refusals."""
    repository = make_repository(MemoryStore())
    entry = store_stream(repository.objects, "USERS", MESSAGES)
    entry = replace(entry, config={**entry.config, "subjects": ["users.>"]})
    manifest = replace(make_manifest(repository), streams=(entry,))
    options = RestoreOptions(reshape=Reshape(masks=Masks.parse(list(masks))), allow_nothing=may_miss)
    decision = first_decision(repository.objects, manifest, Target(NEW, False, {}), options)
    plan = counted(repository.objects, decision).plan
    assert counted(repository.objects, decision).facts.findings == tuple(
        found for found in plan.actions[0].warnings if found.rule is Rule.SAMPLED
    )
    masking = (Rule.SAMPLED, Rule.MASKED, Rule.UNMASKED)
    return [found for found in plan.actions[0].warnings if found.rule in masking], list(plan.refusals)


@pytest.fixture
def of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_facts, "_WHOLE_BYTES", 1)
    monkeypatch.setattr(stored_facts, "_ALL_BYTES", 1)
    monkeypatch.setattr(stored_facts, "_MESSAGES", 5)


@pytest.mark.usefixtures("of_a_part")
def test_a_sample_says_what_each_mask_did_to_how_many_messages() -> None:
    right, wrong, other = "users.1:$.email=redact", "users.0:$.mail=redact", "users.>:$.none=redact"
    found, refusals = _sampled(right, wrong, other, "users.7:$.email=redact")
    assert [one.reason.removeprefix(SAMPLE) for one in found] == [
        f"{right} masks 3 values in the 3 messages that it applies to",
        f"--mask {wrong} masks nothing in the 2 messages that it applies to",
        f"--mask {other} masks nothing in the 5 messages that it applies to",
        "--mask users.7:$.email=redact: it applies to none of the kept messages",
    ]
    assert {one.rule for one in found} == {Rule.SAMPLED} and not refusals
    assert found[1].hint.startswith("The restore is refused if that holds for all messages")
    assert _sampled(wrong, may_miss=True)[0][0].hint == ""


def test_a_stream_that_is_read_completely_is_refused_as_the_restore_would_be() -> None:
    found, refusals = _sampled("users.>:$.mail=redact")
    assert not found and [one.rule for one in refusals] == [Rule.MASK_MISSED]
    assert [one.rule for one in _sampled("users.>:$.email=redact")[0]] == [Rule.MASKED]
