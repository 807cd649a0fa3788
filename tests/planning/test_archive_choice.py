"""How a stream is sent: v1 where it is faster, v2 where only that works, undecoded where nothing else is possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jsbackup.planning.archive_choice import choose_wire, is_kept_in_memory
from jsbackup.planning.model import Consumers, RestoreOptions, SendAs, Target
from jsbackup.planning.rules import Rule
from jsbackup.repository.manifest import ArchiveFormat, Source
from tests.planning.test_plan import NEW, OLD, consumer, existing, stream

MEMORY = {"storage": "memory"}


def chosen(
    version: tuple[int, ...] = NEW,
    config: dict[str, Any] | None = None,
    *,
    archive: ArchiveFormat = ArchiveFormat.V1,
    there: bool = False,
    source: str = "2.15.1",
    **options: Any,
) -> tuple[SendAs, Rule | None]:
    consumers = options.pop("of", ())
    entry = replace(stream("S", consumers=consumers, **(config or {})), archive_format=archive)
    state = replace(existing("S").state, messages=5)
    streams = {"S": replace(existing("S"), state=state)} if there else {}
    target = Target(version, False, streams)
    wire, reason, problem = choose_wire(
        entry, "S", entry.config, Source(source), target=target, options=RestoreOptions(**options)
    )
    assert reason
    return wire, None if problem is None else problem.rule


def test_a_file_stream_goes_as_v1_unless_a_consumer_in_memory_has_a_state() -> None:
    kept = consumer("c", mem_storage=True)
    assert is_kept_in_memory(kept) and not is_kept_in_memory(replace(kept, state=None))
    assert chosen() == chosen(OLD) == chosen(OLD, of=(kept,)) == (SendAs.V1, None)
    assert chosen(of=(kept,)) == (SendAs.V2, None)
    assert chosen(of=(kept,), consumers=Consumers.NONE) == (SendAs.V1, None)


def test_a_stream_in_memory_goes_as_v2_which_older_servers_do_not_take() -> None:
    assert chosen(NEW, MEMORY) == (SendAs.V2, None)
    assert chosen(OLD, MEMORY) == (SendAs.V2, Rule.MEMORY_STREAM)


def test_a_configuration_is_made_by_the_api_and_replaces_no_messages() -> None:
    assert chosen(archive=ArchiveFormat.CONFIG) == (SendAs.API, None)
    assert chosen(archive=ArchiveFormat.CONFIG, there=True) == (SendAs.API, Rule.CONFIG_ONLY_REPLACES)


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ({}, None),
        ({"there": True}, Rule.OPAQUE_REPLACES),
        ({"consumers": Consumers.NONE}, Rule.OPAQUE_CONSUMERS),
        ({"source": "2.16.0"}, Rule.OPAQUE_NEWER),
        ({"source": "unknown"}, None),
    ],
)
def test_an_undecoded_stream_is_sent_as_it_came_or_not_at_all(how: dict[str, Any], rule: Rule | None) -> None:
    assert chosen(archive=ArchiveFormat.OPAQUE, **how) == (SendAs.OPAQUE, rule)
