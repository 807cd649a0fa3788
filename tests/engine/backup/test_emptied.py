"""Whether a server has lost what backups have of it."""

from __future__ import annotations

from dataclasses import replace

from jsbackup.engine.backup.backup import find_vanished
from jsbackup.engine.backup.run import RecordedRestores
from jsbackup.repository.manifest import Captured
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import make_repository
from tests.harness.many import nth_manifest


def test_a_stream_that_has_messages_is_not_lost_whatever_clocks_say() -> None:
    """By a clock behind the server's all messages are newer than the backup before, and no stream goes on from one."""
    repository = make_repository(MemoryStore())
    restores = RecordedRestores(repository.documents)
    before, made = nth_manifest(0), nth_manifest(1)
    repository.commit(before)
    (stream,) = made.streams
    stream = replace(stream, state=replace(stream.state, first_ns=2**62))
    results = [StoredStream(stream)]
    kept, gone, note = find_vanished(repository, made, results, {}, restores=restores)
    assert (note, gone, [one.incomplete for one in kept]) == ("", (), [False])

    nothing = Captured(0, 0, 0, 0, "2026-11-21T01:45:00Z", "2026-11-21T01:45:00Z")
    empty = replace(made, streams=(replace(stream, captured=nothing, segments=()),))
    emptied = [StoredStream(one) for one in empty.streams]
    marked, _, note = find_vanished(repository, empty, emptied, {}, restores=restores)
    assert "nothing is left" in note and "has none now" in marked[0].stream.remarks[0]
