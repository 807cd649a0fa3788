"""What a restore leaves at the target, and which error, where the server refuses, lies or goes away midway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from jsbackup.engine.read import whole_stream
from jsbackup.engine.restore import remove_unfinished
from jsbackup.engine.restore.execution import Execution
from jsbackup.engine.restore.proof import ProofLevel
from jsbackup.engine.restore.run import RestoredStream, RestoreRun, RestoreSettings
from jsbackup.engine.restore.send_archive import StoredSupply
from jsbackup.engine.restore.stream_restore import StartingPoint
from jsbackup.errors import DigestMismatch, JsBackupError, PlanRefused, TargetConflict, TransferError
from jsbackup.failure import FailedProof, Failure
from jsbackup.model import ArchivedConsumer, Fidelity, JsonObject, StreamState
from jsbackup.planning.interrupted import is_marked, with_marker
from jsbackup.planning.model import Action, PlannedConsumer, RestoreOptions, RestorePlan, SendAs, Target
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import ArchiveFormat, Captured, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.removal import keeps_its_messages
from tests.engine.restore_scenes import NO_ROOM, Scene
from tests.engine.restores import Restore, connection_to
from tests.engine.scripted_streams import API, CREATED, ScriptedStream, refusal
from tests.engine.snapshots import CONFIG, MESSAGES
from tests.harness.batches import batch_of
from tests.harness.peer import ScriptedPeer
from tests.harness.sending import narrow
from tests.planning.test_plan import existing

FAR_SECONDS = 100.0
CHUNK = 4096  # five of them: the largest message of the server
LABEL = "a backup"
BACKUP = "20261121T094301Z-e94444"


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch, CHUNK)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remove_unfinished, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(remove_unfinished, "_APPEAR_SECONDS", 0.0)
    monkeypatch.setattr(remove_unfinished, "_SERVER_SECONDS", 3.0)  # only a test that fails takes so long


def stored(objects: Objects, name: str) -> StreamBackup:
    writer = SegmentWriter(objects, f"segments/{name}-00000000")
    writer.add(batch_of(MESSAGES))
    refs = tuple(writer.finish())
    totals = total_of(refs)
    state = StreamState(
        messages=len(MESSAGES),
        bytes=totals.bytes,
        first_seq=MESSAGES[0].sequence,
        first_ns=MESSAGES[0].timestamp_ns,
        last_seq=MESSAGES[-1].sequence,
        last_ns=MESSAGES[-1].timestamp_ns,
    )
    captured = Captured.of(totals, CREATED, CREATED)
    config = {**CONFIG, "name": name}
    return StreamBackup(
        *(name, "00000000", config, CREATED, state, captured, ArchiveFormat.V2), digest=totals.digest, segments=refs
    )


Script = Callable[[Scene], Awaitable[None]]
Outcome = tuple[list[RestoredStream], list[Failure]]


def restored(
    script: Script,
    *names: str,
    settings: dict[str, Any] | None = None,
    stages: int = 1,
    changed: dict[str, JsonObject] | None = None,
    planned: dict[str, StreamInfo] | None = None,
    **fields: Any,
) -> Outcome:
    """What the restore of these streams comes to (of ORDERS, if none are named), planned with `fields`, in so many
    stages, with these settings `changed`, when the target had what is `planned`.
    """
    objects = Objects(MemoryStore())

    def action(name: str) -> Action:
        entry = stored(objects, name)
        config = {**entry.config, **(changed or {}).get(name, {})}
        return Action(entry, name, SendAs.V2, **{"config": config, "replaces": False, **fields})

    @asynccontextmanager
    async def origin() -> AsyncIterator[StoredSupply]:
        yield StoredSupply(objects)

    async def main() -> Outcome:
        async with ScriptedPeer(max_payload=CHUNK) as peer:
            run = RestoreRun(
                connection_to(peer.url),
                RestoreOptions(),
                RestoreSettings(jobs=1, **(settings or {})),
                random=bytes,
            )
            start = StartingPoint(LABEL, Target((2, 15), False, planned or {}), marking=True, backup=BACKUP)
            actions = list(map(action, names or ("ORDERS",)))
            plan = RestorePlan("b", tuple(tuple(actions[at::stages]) for at in range(stages)))
            task = asyncio.create_task(Execution(run, origin, start).all(plan))
            try:
                await script(Scene(peer))
                return await asyncio.wait_for(task, FAR_SECONDS)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(main())


def failure_of(script: Script, **options: Any) -> JsBackupError:
    results, failures = restored(script, **options)
    assert (results, [failure.name for failure in failures]) == ([], ["ORDERS"])
    return failures[0].error


# --------------------------------------------------------------------------------------------------- what goes well


def test_a_stream_is_marked_until_it_is_complete_and_proved_by_reading_it_back() -> None:
    async def script(scene: Scene) -> None:
        restore = await scene.expect_restore()
        assert restore.asked.json["config"] == with_marker(CONFIG, LABEL)
        stream = await scene.carry_out(restore)
        await stream.give_snapshot()
        assert not is_marked(stream.config)

    (result,), failures = restored(script)
    assert (result.verified, result.incomplete, result.messages, failures) == (True, False, len(MESSAGES), [])


# --------------------------------------------------------------------------------------------- sending before proving


@pytest.mark.parametrize("stages", [1, 3])
def test_all_streams_can_be_used_before_any_is_proved(stages: int) -> None:
    names = ("ORDERS", "OTHER", "THIRD")

    async def script(scene: Scene) -> None:
        sent = [await scene.carry_out(await scene.expect_restore(name)) for name in names]
        first = await sent[0].expect_snapshot()
        assert not any(is_marked(stream.config) for stream in sent)
        await sent[0].answer_snapshot(first)
        for stream in sent[1:]:  # in the order in which they were sent
            await stream.give_snapshot()

    results, failures = restored(script, *names, stages=stages)
    assert [(result.name, result.verified) for result in results] == [(name, True) for name in names]
    assert failures == []
    assert all(result.usable_ns for result in results)


@pytest.mark.parametrize(
    "setting",
    [
        {"retention": "workqueue"},
        {"max_msgs": len(MESSAGES)},
    ],
)
def test_a_stream_that_changes_in_use_is_proved_before_the_next_is_sent(setting: JsonObject) -> None:
    async def script(scene: Scene) -> None:
        await (await scene.carry_out(await scene.expect_restore())).give_snapshot()
        await (await scene.carry_out(await scene.expect_restore("OTHER"))).give_snapshot()

    changed = {"ORDERS": setting}
    results, failures = restored(script, "ORDERS", "OTHER", changed=changed)
    assert ([result.verified for result in results], failures) == ([True, True], [])


@pytest.mark.parametrize(
    ("config", "keeps"),
    [
        ({}, True),
        ({"max_age": 30 * 24 * 3600 * 10**9, "max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}, True),
        ({"max_age": 3600 * 10**9}, False),
        ({"max_msgs": 1000, "max_bytes": 10**6}, True),
        ({"max_msgs": 150}, False),
        ({"max_bytes": 15_000}, False),
        ({"max_msgs": 150, "discard": "new"}, True),
        ({"allow_msg_ttl": True}, False),
        ({"allow_msg_schedules": True}, False),
    ],
)
def test_only_the_proof_of_a_stream_that_keeps_its_messages_can_wait(config: JsonObject, keeps: bool) -> None:
    state = StreamState(messages=100, bytes=10_000, first_seq=1, last_seq=100)
    assert keeps_its_messages({"retention": "limits", "discard": "old", **config}, state) is keeps


def test_a_proof_that_fails_after_the_others_were_sent_fails_its_stream_alone() -> None:
    streams: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        streams.append(await scene.carry_out(await scene.expect_restore(), MESSAGES[1:]))
        streams.append(await scene.carry_out(await scene.expect_restore("OTHER")))
        for stream in (streams[0], streams[0], streams[1]):  # twice: for its digest, then message by message
            await stream.give_snapshot()

    (result,), (failure,) = restored(script, "ORDERS", "OTHER")
    assert (result.name, result.verified, failure.name) == ("OTHER", True, "ORDERS")
    assert type(failure.error) is DigestMismatch and "1 missing" in failure.error.message
    assert isinstance(failure, FailedProof) and failure.usable_ns and failure.wrong
    assert [stream.removals for stream in streams] == [0, 0]


def test_a_connection_that_is_lost_during_a_proof_costs_no_proof() -> None:
    async def script(scene: Scene) -> None:
        orders = await scene.carry_out(await scene.expect_restore())
        other = await scene.carry_out(await scene.expect_restore("OTHER"))
        await orders.expect_snapshot()
        scene.peer.drop()
        await orders.give_snapshot()
        await other.give_snapshot()

    results, failures = restored(script, "ORDERS", "OTHER")
    assert ([result.verified for result in results], failures) == ([True, True], [])


@pytest.mark.slow
def test_streams_that_could_not_be_proved_because_the_server_went_away_are_said_to_be_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole_stream, "_FIRST_PAUSE_SECONDS", 0.0)

    async def script(scene: Scene) -> None:
        orders = await scene.carry_out(await scene.expect_restore())
        await scene.carry_out(await scene.expect_restore("OTHER"))
        await orders.expect_snapshot()
        await scene.peer.__aexit__(None, None, None)

    results, failures = restored(script, "ORDERS", "OTHER")
    assert (results, [failure.name for failure in failures]) == ([], ["ORDERS", "OTHER"])
    for failure in failures:  # one that was being proved, and one that waited
        assert failure.error.message.startswith("restored and could be used, but was not verified: ")
        assert (failure.error.hint or "").endswith(f"Later, 'jsbackup diff {BACKUP} live' compares it with the backup.")
        assert isinstance(failure, FailedProof) and failure.usable_ns and not failure.wrong


def test_a_restore_that_is_interrupted_says_what_can_be_used_and_is_not_proved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    streams: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        streams.append(await scene.carry_out(await scene.expect_restore()))
        streams.append(await scene.carry_out(await scene.expect_restore("OTHER")))
        await streams[0].expect_snapshot()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restored(script, "ORDERS", "OTHER")
    assert "2 streams are restored and can be used, but not verified: ORDERS, OTHER" in caplog.text
    assert [(stream.removals, is_marked(stream.config)) for stream in streams] == [(0, False), (0, False)]


def test_only_whole_proofs_wait() -> None:
    objects = Objects(MemoryStore())
    later = {level: StoredSupply(objects, level=level).proves_later for level in ProofLevel}
    assert [level for level, waits in later.items() if waits] == [ProofLevel.FULL]


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("reason", [NO_ROOM, (10058, "stream name already in use")])
def test_a_refused_restore_leaves_everything_alone_and_the_others_go_on(reason: tuple[int, str]) -> None:
    """A name that someone else took between the plan and now is among the reasons."""
    streams: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        refused = await scene.expect_restore()
        streams.append(scene.stream())
        await refused.refuse(refused.asked, "stream_restore_response", *reason)
        other = await scene.carry_out(await scene.expect_restore("OTHER"))
        await other.give_snapshot()

    # A stage is begun at its front.
    (result,), (failure,) = restored(script, "ORDERS", "OTHER")
    assert (result.name, result.verified) == ("OTHER", True)
    assert type(failure.error) is TargetConflict and reason[1] in failure.error.message
    assert not isinstance(failure, FailedProof)  # it is not said to be restored
    assert (streams[0].removals, streams[0].descriptions) == (0, 0)


def test_of_a_restore_that_is_refused_midway_nothing_is_left() -> None:
    streams: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        restore = await scene.expect_restore()
        streams.append(scene.create(restore))
        await scene.refuse_a_chunk(restore, 1 + CHUNK)
        await scene.end_of(restore)

    error = failure_of(script)
    assert type(error) is TargetConflict and NO_ROOM[1] in error.message
    assert streams[0].removals == 1


def test_a_stream_that_somebody_else_made_meanwhile_stays() -> None:
    streams: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        restore = await scene.expect_restore()
        streams.append(scene.create(restore, somebody_else=True))
        await scene.refuse_a_chunk(restore, 1 + CHUNK)
        await scene.end_of(restore)

    assert type(failure_of(script)) is TargetConflict
    assert (streams[0].removals, streams[0].gone) == (0, False)
    assert streams[0].descriptions > 0


def test_after_a_lost_connection_nothing_is_left_and_the_other_streams_are_restored_over_a_new_one() -> None:
    streams: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        lost = await scene.expect_restore()
        streams.append(scene.create(lost))
        await lost.accept()
        await lost.take(1 + CHUNK)
        scene.peer.drop()
        await scene.end_of(lost)
        other = await scene.carry_out(await scene.expect_restore("OTHER"))
        await other.give_snapshot()

    (result,), (failure,) = restored(script, "ORDERS", "OTHER")
    assert (result.name, result.verified, failure.name) == ("OTHER", True, "ORDERS")
    assert type(failure.error) is TransferError and "was lost" in failure.error.message
    assert streams[0].removals == 1


# -------------------------------------------------------------------------------------- a server that says it is done


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (MESSAGES[1:], f"1 missing ({MESSAGES[0].sequence}), 0 added, 0 changed"),
        ([*MESSAGES[:9], MESSAGES[9]._replace(data=b"x"), *MESSAGES[10:]], f"1 changed ({MESSAGES[9].sequence})"),
        (MESSAGES[:-1], f"1 missing ({MESSAGES[-1].sequence})"),
    ],
)
def test_a_server_that_says_it_is_done_and_holds_something_else_is_found_out(held: Any, words: str) -> None:
    """The stream stays: its publishers and consumers may be at work."""
    streams: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        stream = await scene.carry_out(await scene.expect_restore(), held)
        streams.append(stream)
        for _ in range(2):  # for its digest, then message by message
            await stream.give_snapshot()

    error = failure_of(script)
    assert type(error) is DigestMismatch and words in error.message
    assert streams[0].removals == 0


# --------------------------------------------------------------------------------------------------------- consumers

CONSUMER = PlannedConsumer(
    ArchivedConsumer("c", {"name": "c", "durable_name": "c", "deliver_policy": "all"}, None), Fidelity.CONFIG_ONLY
)


def test_a_consumer_that_neither_came_nor_can_be_created_makes_the_restore_incomplete() -> None:
    streams: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        stream = await scene.carry_out(await scene.expect_restore())
        streams.append(stream)
        heard = await scene.peer.expect(f"{API}.CONSUMER.CREATE.ORDERS.c")
        await scene.peer.answer(heard, refusal("consumer_create_response", 10026, "maximum consumers limit reached"))
        await stream.give_snapshot()

    (result,), failures = restored(script, consumers=(CONSUMER,))
    assert (result.verified, result.incomplete, failures) == (True, True, [])
    assert "consumer c is missing" in result.notes[0]
    assert streams[0].removals == 0


# --------------------------------------------------------------------------------------------------------- leftovers


def leftover(scene: Scene, config: JsonObject, messages: Any) -> ScriptedStream:
    stream = scene.stream()
    stream.gone, stream.config = False, config
    stream.write(messages)
    return stream


def test_a_leftover_makes_way_for_the_restore() -> None:
    async def script(scene: Scene) -> None:
        old = leftover(scene, with_marker(CONFIG, LABEL), MESSAGES[:5])
        restore = await scene.expect_restore()
        assert old.removals == 1
        await (await scene.carry_out(restore)).give_snapshot()

    (result,), _ = restored(script, leftover=True)
    assert result.verified
    assert "removed a leftover of 5 messages" in result.notes[0]


@pytest.mark.parametrize(
    ("config", "messages", "words"),
    [
        (CONFIG, MESSAGES[:5], "was created after the plan was made"),
        (with_marker(CONFIG, LABEL), [*MESSAGES[:5], MESSAGES[5]._replace(timestamp_ns=7)], "and has newer messages"),
    ],
)
def test_what_was_a_leftover_when_it_was_planned_and_is_more_now_stays(
    config: JsonObject, messages: Any, words: str
) -> None:
    streams: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        streams.append(leftover(scene, config, messages))
        await scene.peer.silence(0.05)

    error = failure_of(script, leftover=True)
    assert type(error) is TargetConflict and words in error.message
    assert streams[0].removals == 0


# --------------------------------------------------------------------------------------------------------- replacing


class Replacing:
    """The scene of a replacement, until the copy beside the stream is proved."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.old = leftover(scene, CONFIG, MESSAGES[:5])
        self.copies: list[str] = []
        names = {"total": 1, "offset": 0, "limit": 1024}
        scene.peer.always(
            f"{API}.STREAM.NAMES",
            lambda heard: {
                "type": "io.nats.jetstream.api.v1.stream_names_response",
                **names,
                "total": len(self.copies),
                "streams": self.copies,
            },
        )

    async def make_copy(self, messages: Any = MESSAGES) -> ScriptedStream:
        restore = Restore(self.scene.peer, await self.scene.peer.expect(f"{API}.STREAM.RESTORE.*"))
        assert restore.stream.startswith("ORDERS-jsbackup-")
        assert restore.asked.json["config"]["subjects"] != CONFIG["subjects"]
        self.copies.append(restore.stream)
        return await self.scene.carry_out(restore, messages)


def test_a_stream_is_deleted_only_when_its_copy_is_proved_and_the_copy_when_the_stream_is() -> None:
    copies: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        replacing = Replacing(scene)
        copy = await replacing.make_copy()
        copies.append(copy)
        snapshot = await copy.expect_snapshot()
        assert replacing.old.removals == 0
        await copy.answer_snapshot(snapshot)
        restore = await scene.expect_restore()
        assert (replacing.old.removals, copy.removals) == (1, 0)
        await (await scene.carry_out(restore)).give_snapshot()

    (result,), failures = restored(script, replaces=True)
    assert (result.verified, failures) == (True, [])
    assert copies[0].removals == 1


def test_a_copy_that_is_not_what_was_sent_replaces_nothing() -> None:
    olds: list[ScriptedStream] = []
    copies: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        replacing = Replacing(scene)
        olds.append(replacing.old)
        copies.append(await replacing.make_copy(MESSAGES[:-1]))
        for _ in range(2):
            await copies[0].give_snapshot()

    assert type(failure_of(script, replaces=True)) is DigestMismatch
    assert (olds[0].removals, copies[0].removals) == (0, 1)


def test_a_stream_that_was_published_to_since_it_was_planned_is_not_replaced() -> None:
    streams: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        replacing = Replacing(scene)
        streams.append(replacing.old)
        streams.append(await replacing.make_copy())
        await streams[1].give_snapshot()

    planned = replace(existing("ORDERS"), state=StreamState(last_seq=MESSAGES[4].sequence - 1))
    error = failure_of(script, replaces=True, planned={"ORDERS": planned})
    assert type(error) is PlanRefused and "1 message was stored in it meanwhile" in error.message
    assert [stream.removals for stream in streams] == [0, 1]


def test_a_copy_that_somebody_removed_replaces_nothing() -> None:
    olds: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        replacing = Replacing(scene)
        olds.append(replacing.old)
        copy = await replacing.make_copy()
        replacing.copies.clear()
        await copy.give_snapshot()

    error = failure_of(script, replaces=True)
    assert type(error) is TargetConflict and "was removed meanwhile" in error.message
    assert olds[0].removals == 0


@pytest.mark.parametrize(("level", "kept"), [(ProofLevel.FULL, "proved and kept"), (ProofLevel.QUICK, "kept")])
def test_a_stream_that_cannot_be_restored_after_it_was_deleted_is_kept_as_its_copy(
    level: ProofLevel, kept: str
) -> None:
    olds: list[ScriptedStream] = []
    copies: list[ScriptedStream] = []

    async def script(scene: Scene) -> None:
        replacing = Replacing(scene)
        olds.append(replacing.old)
        copies.append(await replacing.make_copy())
        await copies[0].give_snapshot()
        restore = await scene.expect_restore()
        await restore.refuse(restore.asked, "stream_restore_response", *NO_ROOM)

    error = failure_of(script, replaces=True, settings={"proof": level})
    assert type(error) is TargetConflict
    assert f"Its replacement is {kept} as stream {copies[0].name}." in (error.hint or "")
    assert (olds[0].removals, copies[0].removals) == (1, 0)
