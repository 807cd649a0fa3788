"""The restore dialogue: every rule of the protocol, every pair of state and event, and hostile peers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import (
    ApiError,
    FormatError,
    JsBackupError,
    NatsTimeout,
    TargetConflict,
    TransferError,
    UsageError,
)
from jsbackup.model import StreamState
from jsbackup.protocol.api import ApiPrefix
from jsbackup.protocol.dialogue import (
    ChunkAcknowledged,
    ChunkSent,
    EndSent,
    Event,
    Message,
    Publish,
    RestoreAccepted,
    RestoreAnswered,
    RestoreDone,
    TransferFailed,
)
from jsbackup.protocol.restore import TRANSITIONS, RestoreSender, RestoreState, chunk_limit

SUBJECT = "$JS.SNAPSHOT.RESTORE.ORDERS.Kq3v"
CREATE = "io.nats.jetstream.api.v1.stream_create_response"
CONFIG = {"name": "ORDERS", "subjects": ["a.>"], "retention": "limits", "storage": "file", "num_replicas": 1}
STATE = StreamState(messages=5, bytes=500, first_seq=1, last_seq=5, consumers=2)
CHUNK = b"c" * 10


def sender(**options: Any) -> RestoreSender:
    return RestoreSender(CONFIG, STATE, **({"max_chunk": 10, "window_size": 25} | options))


def accepted(subject: object = SUBJECT) -> bytes:
    kind = "io.nats.jetstream.api.v1.stream_restore_response"
    return json.dumps({"type": kind, "deliver_subject": subject}).encode()


def restored(**changes: Any) -> bytes:
    state = {"messages": 5, "bytes": 500, "first_seq": 1, "last_seq": 5, "consumer_count": 2}
    document = {"type": CREATE, "config": CONFIG, "created": "2026-11-21T07:41:00Z", "state": state, **changes}
    return json.dumps(document).encode()


def refusal(err_code: int, description: str, kind: str = CREATE) -> bytes:
    error = {"code": 500, "err_code": err_code, "description": description}
    return json.dumps({"type": kind, "error": error}).encode()


def reply(to: str, data: bytes = b"", headers: bytes = b"") -> Message:
    return Message(to, None, headers, data)


NOBODY = b"NATS/1.0 503\r\n\r\n"


def opened(**options: Any) -> RestoreSender:
    machine = sender(**options)
    machine.receive_response(accepted())
    return machine


def ending() -> RestoreSender:
    machine = opened()
    machine.send(CHUNK, "r.1")
    machine.finish("r.end")
    machine.to_send()
    return machine


def failure(machine: RestoreSender, call: Callable[[], object]) -> JsBackupError:
    """The error that `call` makes; proves that the dialogue is over and keeps saying so."""
    with pytest.raises(JsBackupError) as caught:
        call()
    error = caught.value
    assert not machine.done and machine.state is RestoreState.FAILED and machine.failure is error
    assert machine.to_send() == [] and machine.room == 0
    for again in (
        lambda: machine.receive(reply("r.1")),
        lambda: machine.receive_response(accepted()),
        lambda: machine.send(CHUNK, "r.9"),
        lambda: machine.finish("r.end"),
        machine.reconnected,
        lambda: machine.timed_out("anything"),
    ):
        with pytest.raises(JsBackupError) as caught:
            again()
        assert caught.value is error
    assert machine.state is RestoreState.FAILED
    return error


# The table, walked: how each state is reached, and each event is brought about.

REACH: dict[RestoreState, Callable[[RestoreSender], object]] = {
    RestoreState.REQUESTED: lambda m: None,
    RestoreState.OPEN: lambda m: (m.receive_response(accepted()), m.send(CHUNK, "r.1")),
    RestoreState.ENDING: lambda m: (REACH[RestoreState.OPEN](m), m.finish("r.end")),
    RestoreState.ANSWERED: lambda m: (REACH[RestoreState.OPEN](m), m.send(CHUNK, "r.2"), m.finish("r.end"), _answer(m)),
    RestoreState.DONE: lambda m: (REACH[RestoreState.ENDING](m), m.receive(reply("r.1")), _answer(m)),
}
CAUSE: dict[type[Event], Callable[[RestoreSender], object]] = {
    RestoreAccepted: lambda m: m.receive_response(accepted()),
    ChunkSent: lambda m: m.send(CHUNK[:1], "r.3"),
    ChunkAcknowledged: lambda m: m.receive(reply("r.1")),
    EndSent: lambda m: m.finish("r.end"),
    RestoreAnswered: lambda m: _answer(m),
    RestoreDone: lambda m: (
        [_answer(m) for _ in range(m.state is not RestoreState.ANSWERED)]
        + [m.receive(reply(f"r.{index}")) for index in range(1, 3) if f"r.{index}" in m._unacked]
    ),
    TransferFailed: lambda m: m.receive(reply("r.1", headers=NOBODY)),
}
SENT_BY_US = (ChunkSent, EndSent)


def _answer(machine: RestoreSender) -> list[Event]:
    return machine.receive(reply("r.end", restored()))


def test_the_table_speaks_of_all_states_and_events_and_nothing_else() -> None:
    assert {state for state, _ in TRANSITIONS} == set(RestoreState) - {RestoreState.FAILED}
    assert {event for _, event in TRANSITIONS} == set(CAUSE)
    assert all((state, TransferFailed) in TRANSITIONS for state in RestoreState if state is not RestoreState.FAILED)


@pytest.mark.parametrize("state", REACH, ids=lambda state: state.name)
@pytest.mark.parametrize("event", CAUSE, ids=lambda event: event.__name__)
def test_every_pair_of_state_and_event_does_what_the_table_says(state: RestoreState, event: type[Event]) -> None:
    machine = sender()
    REACH[state](machine)
    assert machine.state is state
    following = TRANSITIONS.get((state, event))
    if following is None and event in SENT_BY_US:
        with pytest.raises(UsageError):
            CAUSE[event](machine)
        assert machine.state is state
    elif following is None or following is RestoreState.FAILED:
        with pytest.raises(TransferError):
            CAUSE[event](machine)
        assert machine.state is RestoreState.FAILED
    else:
        CAUSE[event](machine)
        assert machine.state is following


# The rules, one by one.


def test_a_whole_restore() -> None:
    machine = sender()
    assert machine.receive_response(accepted()) == [RestoreAccepted()]
    machine.send(b"one", "r.1")
    machine.send(b"two", "r.2")
    assert machine.to_send() == [Publish(SUBJECT, "r.1", b"one"), Publish(SUBJECT, "r.2", b"two")]
    assert machine.receive(reply("r.1")) == [ChunkAcknowledged()]
    machine.finish("r.end")
    assert machine.to_send() == [Publish(SUBJECT, "r.end", b"")]
    assert machine.receive(reply("r.2")) == [ChunkAcknowledged()]
    (done,) = machine.receive(reply("r.end", restored()))
    assert isinstance(done, RestoreDone) and done.info.state.messages == 5 and done.info.name == "ORDERS"
    assert machine.done and (machine.chunks_sent, machine.bytes_sent, machine.bytes_acknowledged) == (2, 6, 6)


def test_the_final_answer_waits_for_acknowledgements_that_it_overtook() -> None:
    machine = ending()
    assert _answer(machine) == []
    assert not machine.done
    chunk, done = machine.receive(reply("r.1"))
    assert chunk == ChunkAcknowledged() and isinstance(done, RestoreDone)
    assert machine.done


def test_chunks_are_counted_against_the_window() -> None:
    machine = opened()
    assert machine.room == 10
    for index in (1, 2):
        machine.send(CHUNK, f"r.{index}")
    assert machine.room == 5 and machine.unacked_bytes == 20
    with pytest.raises(UsageError, match="a chunk of 6 bytes where 1 to 5 may be sent"):
        machine.send(b"x" * 6, "r.3")
    machine.send(b"x" * 5, "r.3")
    assert machine.room == 0
    machine.receive(reply("r.2"))
    assert machine.room == 10 and machine.unacked_bytes == 15


def test_one_chunk_may_always_be_sent_however_small_the_window() -> None:
    machine = opened(window_size=1)
    assert machine.room == 10
    machine.send(CHUNK, "r.1")
    assert machine.room == 0
    machine.receive(reply("r.1"))
    assert machine.room == 10


@pytest.mark.parametrize("chunk", [b"", b"x" * 11])
def test_an_empty_chunk_would_be_the_end_and_a_large_one_is_refused(chunk: bytes) -> None:
    machine = opened()
    with pytest.raises(UsageError):
        machine.send(chunk, "r.1")
    assert machine.state is RestoreState.OPEN and machine.to_send() == []


def test_every_chunk_needs_a_reply_subject_of_its_own() -> None:
    machine = opened()
    machine.send(b"x", "r.1")
    for subject in ("r.1", "", "r.*", "r 1"):
        with pytest.raises(UsageError):
            machine.send(b"x", subject)
    with pytest.raises(UsageError, match="in use"):
        machine.finish("r.1")
    machine.receive(reply("r.1"))
    machine.send(b"x", "r.1")
    assert len(machine.to_send()) == 2


def test_nothing_is_sent_before_the_answer_or_after_the_end() -> None:
    machine = sender()
    for call in (lambda: machine.send(CHUNK, "r.1"), lambda: machine.finish("r.end")):
        with pytest.raises(UsageError, match="in state REQUESTED"):
            call()
    machine = ending()
    for call in (lambda: machine.send(CHUNK, "r.2"), lambda: machine.finish("r.end")):
        with pytest.raises(UsageError, match="in state ENDING"):
            call()
    assert machine.state is RestoreState.ENDING


def test_an_archive_without_a_byte_is_not_finished() -> None:
    with pytest.raises(UsageError, match="without a byte"):
        opened().finish("r.end")


def test_no_responders_means_that_the_server_gave_up() -> None:
    machine = opened()
    machine.send(CHUNK, "r.1")
    error = failure(machine, lambda: machine.receive(reply("r.1", headers=NOBODY)))
    assert isinstance(error, TransferError) and error.retry and "gave up" in error.message


def test_no_responders_to_the_end_means_the_same() -> None:
    machine = ending()
    failure(machine, lambda: machine.receive(reply("r.end", headers=NOBODY)))


def test_another_status_is_a_failure_too() -> None:
    machine = opened()
    machine.send(CHUNK, "r.1")
    message = reply("r.1", headers=b"NATS/1.0 408 Timeout\r\n\r\n")
    assert "408 Timeout" in failure(machine, lambda: machine.receive(message)).message


def test_an_error_may_answer_a_chunk() -> None:
    machine = opened()
    machine.send(CHUNK, "r.1")
    payload = refusal(10062, "restore failed: archive/tar: invalid tar header")
    error = failure(machine, lambda: machine.receive(reply("r.1", payload)))
    assert isinstance(error, ApiError) and error.err_code == 10062 and "invalid tar header" in error.message


def test_an_error_may_answer_the_end() -> None:
    machine = ending()
    payload = refusal(10062, "restore failed: unexpected EOF")
    error = failure(machine, lambda: machine.receive(reply("r.end", payload)))
    assert isinstance(error, ApiError)


def test_a_disk_that_is_full_is_said_in_plain_text_by_servers_that_stage() -> None:
    machine = opened()
    machine.send(CHUNK, "r.1")
    message = reply("r.1", b"-ERR 'storage failure during restore'")
    error = failure(machine, lambda: machine.receive(message))
    assert isinstance(error, TransferError) and "storage failure" in error.message


def test_limits_that_are_reached_on_the_way_are_a_conflict_at_the_target() -> None:
    machine = ending()
    payload = refusal(10047, "insufficient storage resources available")
    error = failure(machine, lambda: machine.receive(reply("r.end", payload)))
    assert isinstance(error, TargetConflict)


@pytest.mark.parametrize(
    "message",
    [
        reply("r.2"),
        reply("r.end"),
        reply("r.1", restored()),
        reply("r.1", b"{}"),
        reply("r.1", b"[]"),
        reply("r.1", b"\xff"),
        reply("r.1", b"", b"HTTP/1.1 200\r\n\r\n"),
    ],
)
def test_replies_that_make_no_sense_are_a_breach(message: Message) -> None:
    machine = opened()
    machine.send(CHUNK, "r.1")
    failure(machine, lambda: machine.receive(message))


def test_a_chunk_is_acknowledged_once() -> None:
    machine = opened()
    machine.send(CHUNK, "r.1")
    machine.receive(reply("r.1"))
    failure(machine, lambda: machine.receive(reply("r.1")))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        restored(type="io.nats.jetstream.api.v1.stream_restore_response"),
        restored(config={"name": "OTHER"}),
        restored(config=None),
        restored(state={}),
        restored(created="yesterday"),
    ],
)
def test_a_final_answer_that_makes_no_sense_is_a_format_error(payload: bytes) -> None:
    machine = ending()
    error = failure(machine, lambda: machine.receive(reply("r.end", payload)))
    assert isinstance(error, FormatError)


@pytest.mark.parametrize("state", [s for s in REACH if s is not RestoreState.DONE], ids=lambda state: state.name)
def test_a_reconnection_fails_a_running_restore(state: RestoreState) -> None:
    machine = sender()
    REACH[state](machine)
    error = failure(machine, machine.reconnected)
    assert isinstance(error, TransferError) and error.retry


def test_a_silence_fails_a_running_restore() -> None:
    machine = ending()
    error = failure(machine, lambda: machine.timed_out("the final answer"))
    assert isinstance(error, NatsTimeout)


def test_what_is_done_stays_done_whatever_the_connection_does() -> None:
    machine = sender()
    REACH[RestoreState.DONE](machine)
    machine.reconnected()
    machine.timed_out("anything")
    assert machine.done and machine.room == 0


# The request and its answer.


def test_the_request_names_the_stream_of_the_config() -> None:
    request = sender().request(ApiPrefix("$JS.hub.API"))
    assert request.subject == "$JS.hub.API.STREAM.RESTORE.ORDERS"
    assert json.loads(request.payload)["config"] == CONFIG


@pytest.mark.parametrize("config", [{}, {"name": None}, {"name": "a.b"}, {"name": 7}])
def test_a_config_without_a_name_is_refused_before_anything_is_sent(config: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        RestoreSender(config, STATE)


@pytest.mark.parametrize("sizes", [{"max_chunk": 0}, {"window_size": 0}])
def test_sizes_are_positive(sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        sender(**sizes)


@pytest.mark.parametrize("err_code", [10058, 10130, 10065, 10047, 10028, 10027])
def test_what_is_in_the_way_at_the_target_is_a_conflict(err_code: int) -> None:
    machine = sender()
    payload = refusal(err_code, "in the way", "io.nats.jetstream.api.v1.stream_restore_response")
    error = failure(machine, lambda: machine.receive_response(payload))
    assert isinstance(error, TargetConflict) and isinstance(error.__cause__, ApiError)


@pytest.mark.parametrize("err_code", [10039, 10074, 10052, 10025])
def test_any_other_refusal_is_the_server_s_own_error(err_code: int) -> None:
    machine = sender()
    error = failure(machine, lambda: machine.receive_response(refusal(err_code, "no")))
    assert isinstance(error, ApiError) and error.err_code == err_code


@pytest.mark.parametrize(
    "subject",
    [
        None,
        7,
        "",
        "a.b",
        "$JS.API.STREAM.DELETE.ORDERS",
        "$JS.SNAPSHOT.RESTORE.OTHER.Kq3v",
        "$JS.SNAPSHOT.RESTORE.ORDERS",
        "$JS.SNAPSHOT.RESTORE.ORDERS.",
        "$JS.SNAPSHOT.RESTORE.ORDERS.*",
        "$JS.SNAPSHOT.RESTORE.ORDERS.>",
        "$JS.SNAPSHOT.RESTORE.ORDERS.a.b",
        "$JS.SNAPSHOT.RESTORE.ORDERS.a b",
        "$JS.SNAPSHOT.RESTORE.ORDERS.a\r\nPUB x 0\r\n",
    ],
)
def test_chunks_go_to_restore_subjects_of_this_stream_only(subject: object) -> None:
    machine = sender()
    error = failure(machine, lambda: machine.receive_response(accepted(subject)))
    assert error.message.isprintable()


def test_chunks_fit_into_the_server_s_max_payload() -> None:
    assert chunk_limit(1024) == 1024
    assert chunk_limit(1 << 20) == 256 * 1024
    assert chunk_limit(0) == 1


# Hostile peers and careless drivers.

PAYLOADS = st.one_of(
    st.just(b""),
    st.just(restored()),
    st.just(refusal(10062, "restore failed: x")),
    st.just(b"-ERR 'x'"),
    st.binary(max_size=10),
)
SUBJECTS = st.sampled_from(["r.1", "r.2", "r.end", "r.x", "", "r.*"])
Step = Callable[[RestoreSender], object]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.just(lambda m: m.receive_response(accepted())),
    st.builds(lambda payload: lambda m: m.receive_response(payload), PAYLOADS),
    st.builds(lambda size, to: lambda m: m.send(bytes(size), to), st.integers(0, 12), SUBJECTS),
    st.builds(lambda to: lambda m: m.finish(to), SUBJECTS),
    st.builds(
        lambda to, data, headers: lambda m: m.receive(reply(to, data, headers)),
        SUBJECTS,
        PAYLOADS,
        st.sampled_from([b"", b"", b"", NOBODY, b"NATS/1.0\r\n\r\n", b"?"]),
    ),
    st.builds(lambda to: lambda m: m.receive(reply(to)), SUBJECTS),
    st.just(lambda m: m.reconnected()),
    st.just(lambda m: m.timed_out("it")),
)


@settings(max_examples=300)
@given(st.booleans(), st.lists(STEPS, max_size=12))
def test_no_sequence_of_inputs_makes_another_error_or_revives_a_failed_dialogue(start: bool, steps: list[Step]) -> None:
    machine = opened() if start else sender()
    failed: JsBackupError | None = None
    for step in steps:
        before = machine.state
        try:
            step(machine)
        except JsBackupError as error:
            if failed is not None:
                assert error is failed
            elif machine.failure is not None:
                failed = error
            else:
                assert isinstance(error, UsageError) and machine.state is before
        assert (machine.state is RestoreState.FAILED) is (failed is not None)
        assert 0 <= machine.unacked_bytes <= machine.window_size + machine.max_chunk
        assert failed is None or (machine.to_send() == [] and machine.room == 0)
        assert not machine.done or machine.unacked_bytes == 0


def test_a_cluster_that_made_an_empty_stream_instead_may_be_asked_again() -> None:
    machine = sender()
    created = json.dumps({"type": CREATE, "config": {"name": machine.stream}, "did_create": True}).encode()
    error = failure(machine, lambda: machine.receive_response(created))
    assert isinstance(error, TransferError) and error.retry
    assert "empty stream" in error.message
