"""What a plan says of masks and filters after it has read a part of a stream, or all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.engine.restore import sampling
from jsbackup.engine.restore.sampling import sample_stored
from jsbackup.planning.model import Action, RestoreOptions, RestorePlan, SendAs
from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.objects import Objects
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.reshape import Reshape
from tests.harness.backups import make_manifest, make_repository, store_stream
from tests.harness.batches import Message

MESSAGES = [
    Message(number, number, f"users.{number % 2}", None, b'{"email": "a@example.org", "n": %d}' % number)
    for number in range(1, 41)
]
ENDS = " (the first 5 and the last 5 of 40)"


def _sampled(*masks: str, may_miss: bool = False) -> tuple[list[Finding], list[Finding]]:
    """Return the findings about the stream, and the refusals of the plan."""
    repository = make_repository(MemoryStore())
    objects = Objects(repository.store)
    entry = store_stream(objects, "USERS", MESSAGES)
    entry = replace(entry, config={**entry.config, "subjects": ["users.>"]})
    manifest = replace(make_manifest(repository), streams=(entry,))
    reshape = Reshape(masks=Masks.parse(list(masks)))
    action = Action(entry, "USERS", SendAs.V1, entry.config, replaces=False, reshape=reshape, may_miss=may_miss)
    options = RestoreOptions(reshape=reshape, allow_nothing=may_miss)
    plan = sample_stored(objects, manifest, RestorePlan("b", ((action,),)), options)
    return list(plan.actions[0].warnings), list(plan.refusals)


@pytest.fixture
def of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_WHOLE_BYTES", 1)
    monkeypatch.setattr(sampling, "_ALL_BYTES", 1)
    monkeypatch.setattr(sampling, "_MESSAGES", 5)


@pytest.mark.usefixtures("of_a_part")
def test_a_sample_says_what_each_mask_did_to_how_many_messages() -> None:
    right, wrong, other = "users.>:$.email=redact", "users.0:$.mail=redact", "users.7:$.email=redact"
    found, refusals = _sampled(right, wrong, other)
    assert [one.reason for one in found] == [
        f"{right} masks 10 values in 10 of the 10 examined messages{ENDS}",
        f"{wrong} masks nothing in the 5 that it selects of the 10 examined messages{ENDS}",
        f"{other} selects none of the 10 examined messages{ENDS}",
    ]
    assert {one.rule for one in found} == {Rule.SAMPLED} and not refusals
    assert found[1].hint.startswith("The restore is refused if that holds for all messages")
    assert _sampled(wrong, may_miss=True)[0][0].hint == ""


@pytest.mark.usefixtures("of_a_part")
def test_a_sample_counts_the_messages_that_no_mask_selects() -> None:
    found, _ = _sampled("users.0:$.email=redact")
    assert found[-1].reason == "5 of the 10 examined messages stay unmasked: no mask selects their subjects" + ENDS


def test_a_stream_that_is_read_completely_is_refused_as_the_restore_would_be() -> None:
    found, refusals = _sampled("users.>:$.mail=redact")
    assert not found and [one.rule for one in refusals] == [Rule.MASK_MISSED]
    assert not _sampled("users.>:$.email=redact")[1]
