"""The snapshot dialogue: every rule of the protocol, every pair of state and event, and hostile peers."""

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
    IntegrityError,
    JsBackupError,
    NatsTimeout,
    TransferError,
    UnsupportedError,
    UsageError,
)
from jsbackup.model import StreamState
from jsbackup.protocol.api import ApiPrefix
from jsbackup.protocol.dialogue import (
    ChunkReceived,
    Event,
    LastChunkReceived,
    Message,
    Publish,
    SnapshotEnded,
    SnapshotStarted,
    TransferFailed,
)
from jsbackup.protocol.snapshot import TRANSITIONS, SnapshotReceiver, SnapshotState
from tests.protocol.schemas import follows

INBOX = "_INBOX.snap"
SIZE = 1024
ACK = "$JS.SNAPSHOT.ACK.ORDERS.Kq3v"
ANSWER = {
    "type": "io.nats.jetstream.api.v1.stream_snapshot_response",
    "config": {"name": "ORDERS", "subjects": ["a.>"]},
    "state": {
        "messages": 5,
        "bytes": 500,
        "first_seq": 1,
        "first_ts": "2026-11-21T07:41:00.123456789Z",
        "last_seq": 6,
        "last_ts": "2026-11-21T07:41:00.2Z",
        "num_deleted": 1,
        "consumer_count": 2,
    },
}
END, OK, NO_INTEREST = b"", b"NATS/1.0 204\r\n\r\n", b"NATS/1.0 408 No Interest\r\n\r\n"


def receiver(**options: Any) -> SnapshotReceiver:
    return SnapshotReceiver("ORDERS", INBOX, chunk_size=SIZE, **options)


def answer(**changes: Any) -> bytes:
    return json.dumps({**ANSWER, **changes}).encode()


def refusal(description: str, err_code: int = 10064, code: int = 500) -> bytes:
    error = {"code": code, "err_code": err_code, "description": description}
    return json.dumps({"type": ANSWER["type"], "error": error}).encode()


def full(index: int, size: int = SIZE, reply: str | None = None) -> Message:
    return Message(INBOX, reply or f"{ACK}.{size}.{index}", b"", bytes(size))


def last(size: int = 10) -> Message:
    return Message(INBOX, None, b"", bytes(size))


def end(headers: bytes = OK) -> Message:
    return Message(INBOX, None, headers, b"")


def failure(machine: SnapshotReceiver, call: Callable[[], object]) -> JsBackupError:
    """The error that `call` makes; proves that the dialogue is over and keeps saying so."""
    with pytest.raises(JsBackupError) as caught:
        call()
    error = caught.value
    assert not machine.done and machine.state is SnapshotState.FAILED and machine.failure is error
    assert machine.to_send() == []
    for again in (
        lambda: machine.receive(full(1)),
        lambda: machine.receive(end()),
        lambda: machine.receive_response(answer()),
        lambda: machine.release(ChunkReceived(1, b"", None)),
        machine.reconnected,
        lambda: machine.timed_out("anything"),
    ):
        with pytest.raises(JsBackupError) as caught:
            again()
        assert caught.value is error
    assert machine.state is SnapshotState.FAILED
    return error


def transfer_error(machine: SnapshotReceiver, message: Message) -> TransferError:
    error = failure(machine, lambda: machine.receive(message))
    assert isinstance(error, TransferError) and error.retry
    return error


# The table, walked: how each state is reached, and each event is brought about.

REACH: dict[SnapshotState, Callable[[SnapshotReceiver], object]] = {
    SnapshotState.REQUESTED: lambda m: None,
    SnapshotState.EARLY: lambda m: m.receive(full(1)),
    SnapshotState.EARLY_TAIL: lambda m: (m.receive(full(1)), m.receive(last())),
    SnapshotState.EARLY_END: lambda m: (m.receive(full(1)), m.receive(end())),
    SnapshotState.STREAMING: lambda m: (m.receive_response(answer()), m.receive(full(1))),
    SnapshotState.TAIL: lambda m: (m.receive_response(answer()), m.receive(full(1)), m.receive(last())),
    SnapshotState.DONE: lambda m: (m.receive_response(answer()), m.receive(full(1)), m.receive(end())),
}
CAUSE: dict[type[Event], Callable[[SnapshotReceiver], object]] = {
    SnapshotStarted: lambda m: m.receive_response(answer()),
    ChunkReceived: lambda m: m.receive(full(m.chunks_received + 1)),
    LastChunkReceived: lambda m: m.receive(last()),
    SnapshotEnded: lambda m: m.receive(end()),
    TransferFailed: lambda m: m.receive(end(NO_INTEREST)),
}


def test_the_table_speaks_of_all_states_and_events_and_nothing_else() -> None:
    assert {state for state, _ in TRANSITIONS} == set(SnapshotState) - {SnapshotState.FAILED}
    assert {event for _, event in TRANSITIONS} == set(CAUSE)
    assert all((state, TransferFailed) in TRANSITIONS for state in SnapshotState if state is not SnapshotState.FAILED)


@pytest.mark.parametrize("state", REACH, ids=lambda state: state.name)
@pytest.mark.parametrize("event", CAUSE, ids=lambda event: event.__name__)
def test_every_pair_of_state_and_event_does_what_the_table_says(state: SnapshotState, event: type[Event]) -> None:
    machine = receiver()
    REACH[state](machine)
    assert machine.state is state
    following = TRANSITIONS.get((state, event))
    if following is None or following is SnapshotState.FAILED:
        with pytest.raises(TransferError):
            CAUSE[event](machine)
        assert machine.state is SnapshotState.FAILED
    else:
        CAUSE[event](machine)
        assert machine.state is following


# The rules, one by one.


def test_a_whole_snapshot() -> None:
    machine = receiver()
    (started,) = machine.receive_response(answer())
    assert started == SnapshotStarted(
        {"name": "ORDERS", "subjects": ["a.>"]},
        StreamState(
            messages=5,
            bytes=500,
            first_seq=1,
            first_ns=1795246860123456789,
            last_seq=6,
            last_ns=1795246860200000000,
            consumers=2,
            deleted=1,
        ),
    )
    assert machine.receive(full(1)) == [ChunkReceived(1, bytes(SIZE), f"{ACK}.1024.1")]
    assert machine.receive(full(2)) == [ChunkReceived(2, bytes(SIZE), f"{ACK}.1024.2")]
    assert machine.receive(last(10)) == [LastChunkReceived(3, bytes(10), None)]
    assert machine.receive(end()) == [SnapshotEnded()]
    assert machine.done and machine.failure is None


def test_chunks_and_even_the_end_may_overtake_the_answer() -> None:
    machine = receiver()
    assert isinstance(machine.receive(full(1))[0], ChunkReceived)
    assert isinstance(machine.receive(last())[0], LastChunkReceived)
    assert machine.receive(end()) == []
    assert not machine.done
    started, ended = machine.receive_response(answer())
    assert isinstance(started, SnapshotStarted) and ended == SnapshotEnded()
    assert machine.done


def test_an_answer_may_come_in_the_middle() -> None:
    machine = receiver()
    machine.receive(full(1))
    machine.receive_response(answer())
    machine.receive(full(2))
    assert machine.receive(end()) == [SnapshotEnded()]


def test_the_end_of_a_snapshot_that_fits_in_one_short_chunk_has_no_header() -> None:
    machine = receiver()
    machine.receive_response(answer())
    machine.receive(last())
    machine.receive(end(b""))
    assert machine.done


def test_full_chunks_of_servers_up_to_2_12_4_may_be_short_and_even_empty() -> None:
    machine = receiver()
    machine.receive_response(answer())
    for index, size in enumerate((10, SIZE, 0, 3), 1):
        (chunk,) = machine.receive(full(index, size))
        assert type(chunk) is ChunkReceived and len(chunk.data) == size
    machine.receive(end())
    assert machine.done and machine.bytes_received == 1037


def test_an_acknowledgement_has_to_be_earned_and_is_given_once() -> None:
    machine = receiver()
    machine.receive_response(answer())
    first, second = (machine.receive(full(index))[0] for index in (1, 2))
    assert isinstance(first, ChunkReceived) and isinstance(second, ChunkReceived)
    assert machine.to_send() == [] and machine.unacked_bytes == 2048
    machine.release(second)
    machine.release(first)
    assert machine.to_send() == [Publish(f"{ACK}.1024.2"), Publish(f"{ACK}.1024.1")]
    assert machine.to_send() == [] and machine.unacked_bytes == 0
    with pytest.raises(UsageError, match="chunk 1 is not there"):
        machine.release(first)
    assert machine.state is SnapshotState.STREAMING and machine.to_send() == []


def test_the_last_chunk_and_chunks_after_the_end_need_no_acknowledgement() -> None:
    machine = receiver()
    machine.receive_response(answer())
    chunks = [*machine.receive(full(1)), *machine.receive(last())]
    machine.receive(end())
    for chunk in chunks:
        assert isinstance(chunk, ChunkReceived)
        machine.release(chunk)
    assert machine.to_send() == [] and machine.unacked_bytes == 0


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (f"{ACK}.1024.3", "expected chunk 2, got 3"),
        (f"{ACK}.1024.1", "expected chunk 2, got 1"),
        (f"{ACK}.1024.0", "expected chunk 2, got 0"),
        (f"{ACK}.1023.2", "chunk 2 has 1024 bytes of 1023"),
        ("$JS.SNAPSHOT.ACK.ORDERS.other.1024.2", "belongs to another snapshot"),
    ],
)
def test_lost_repeated_and_foreign_chunks_are_a_hole(reply: str, problem: str) -> None:
    machine = receiver()
    machine.receive_response(answer())
    machine.receive(full(1))
    assert problem in transfer_error(machine, full(2, reply=reply)).message


@pytest.mark.parametrize(
    "reply",
    [
        "_INBOX.x",
        "$JS.SNAPSHOT.ACK.ORDERS.Kq3v.1024",
        "$JS.SNAPSHOT.ACK.ORDERS.Kq3v.1024.1.1",
        "$JS.SNAPSHOT.ACK.OTHER.Kq3v.1024.1",
        "$JS.SNAPSHOT.ACK.ORDERS..1024.1",
        "$JS.SNAPSHOT.ACK.ORDERS.Kq3v.1024.",
        "$JS.SNAPSHOT.ACK.ORDERS.Kq3v.1024.-1",
        "$JS.SNAPSHOT.ACK.ORDERS.Kq3v.1024.+1",
        "$JS.SNAPSHOT.ACK.ORDERS.Kq3v.1024.١",
        "$JS.SNAPSHOT.ACK.ORDERS.Kq3v.1024.1\n",
        f"$JS.SNAPSHOT.ACK.ORDERS.Kq3v.1024.{'9' * 5000}",
        "$JS.SNAPSHOT.NAK.ORDERS.Kq3v.1024.1",
        "$JS.API.STREAM.DELETE.ORDERS.Kq3v.1024.1",
    ],
)
def test_acknowledgements_go_to_subjects_of_this_snapshot_only(reply: str) -> None:
    machine = receiver()
    error = transfer_error(machine, full(1, reply=reply))
    assert error.message.isprintable() and len(error.message) < 400


@pytest.mark.parametrize("name", ["ÖRDERS", "注文", "a/b", "$KV-x", "x" * 255])
def test_names_of_any_characters_are_one_token(name: str) -> None:
    machine = SnapshotReceiver(name, INBOX, chunk_size=SIZE)
    machine.receive_response(answer(config={"name": name}))
    machine.receive(full(1, reply=f"$JS.SNAPSHOT.ACK.{name}.Kq3v.1024.1"))
    machine.receive(end())
    assert machine.done


def test_a_chunk_larger_than_asked_for_is_a_breach() -> None:
    for message in (full(1, SIZE + 1), last(SIZE + 1)):
        assert "more than the 1024" in transfer_error(receiver(), message).message


def test_nothing_but_the_end_may_follow_the_last_chunk() -> None:
    for message in (full(2), last()):
        machine = receiver()
        machine.receive_response(answer())
        machine.receive(last())
        transfer_error(machine, message)


def test_a_server_that_does_not_wait_for_acknowledgements_is_stopped() -> None:
    machine = receiver(window_size=SIZE)
    machine.receive_response(answer())
    count = machine.flow_limit_bytes // SIZE
    for index in range(1, count + 1):
        machine.receive(full(index))
    assert machine.unacked_bytes == machine.flow_limit_bytes
    transfer_error(machine, full(count + 1))


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        (NO_INTEREST, "408 No Interest"),
        (b"NATS/1.0 408 No Flow Response\r\n\r\n", "408 No Flow Response"),
        (b"NATS/1.0 500 \r\n\r\n", "status 500"),
        (b"NATS/1.0 500 stream msgs is closed\r\n\r\n", "500 stream msgs is closed"),
        (b"NATS/1.0 503\r\n\r\n", "503"),
        (b"NATS/1.0 200\r\n\r\n", "200"),
    ],
)
def test_an_end_with_another_status_is_a_failure(headers: bytes, text: str) -> None:
    machine = receiver()
    machine.receive_response(answer())
    machine.receive(full(1))
    assert text in transfer_error(machine, end(headers)).message


def test_a_header_without_a_status_changes_nothing() -> None:
    machine = receiver()
    machine.receive_response(answer())
    machine.receive(Message(INBOX, f"{ACK}.1024.1", b"NATS/1.0\r\nA: b\r\n\r\n", bytes(SIZE)))
    machine.receive(end(b"NATS/1.0\r\nA: b\r\n\r\n"))
    assert machine.done


def test_a_status_beside_data_is_a_breach() -> None:
    for reply in (None, f"{ACK}.1.1"):
        transfer_error(receiver(), Message(INBOX, reply, OK, b"x"))


def test_a_header_that_is_none_is_a_breach() -> None:
    machine = receiver()
    error = failure(machine, lambda: machine.receive(end(b"HTTP/1.1 200 OK\r\n\r\n")))
    assert isinstance(error, FormatError)


@pytest.mark.parametrize("headers", [OK, b""])
def test_an_end_before_the_first_byte_is_no_success(headers: bytes) -> None:
    machine = receiver()
    machine.receive_response(answer())
    assert "before its first byte" in transfer_error(machine, end(headers)).message


@pytest.mark.parametrize("state", [s for s in REACH if s is not SnapshotState.DONE], ids=lambda state: state.name)
def test_a_reconnection_fails_a_running_snapshot(state: SnapshotState) -> None:
    machine = receiver()
    REACH[state](machine)
    error = failure(machine, machine.reconnected)
    assert isinstance(error, TransferError) and error.retry


def test_a_silence_fails_a_running_snapshot() -> None:
    machine = receiver()
    REACH[SnapshotState.STREAMING](machine)
    error = failure(machine, lambda: machine.timed_out("the next chunk"))
    assert isinstance(error, NatsTimeout) and "the next chunk did not come in time" in error.message


def test_what_is_done_stays_done_whatever_the_connection_does() -> None:
    machine = receiver()
    REACH[SnapshotState.DONE](machine)
    machine.reconnected()
    machine.timed_out("anything")
    assert machine.done


def test_a_failure_takes_back_acknowledgements_that_were_not_sent() -> None:
    machine = receiver()
    machine.receive_response(answer())
    (chunk,) = machine.receive(full(1))
    assert isinstance(chunk, ChunkReceived)
    machine.release(chunk)
    transfer_error(machine, end(NO_INTEREST))


# Refusals.


def test_a_snapshot_that_is_already_running_is_told_apart_and_may_be_tried_again() -> None:
    machine = receiver()
    call = lambda: machine.receive_response(refusal("snapshot failed: snapshot in progress"))  # noqa: E731
    error = failure(machine, call)
    assert isinstance(error, TransferError) and error.retry and isinstance(error.__cause__, ApiError)


def test_a_stream_in_memory_on_a_server_before_2_15_is_unsupported() -> None:
    machine = receiver()
    error = failure(machine, lambda: machine.receive_response(refusal("snapshot failed: no impl")))
    assert isinstance(error, UnsupportedError) and "memory" in error.message


def test_bad_messages_that_the_server_s_check_found_are_damage() -> None:
    machine = receiver(check=True)
    text = "snapshot failed: snapshot check detected 3 bad messages"
    error = failure(machine, lambda: machine.receive_response(refusal(text)))
    assert isinstance(error, IntegrityError) and "3 bad messages" in error.message


@pytest.mark.parametrize(
    ("description", "err_code"),
    [("stream not found", 10059), ("snapshot failed: disk on fire", 10064), ("snapshot in progress", 10008)],
)
def test_any_other_refusal_is_the_server_s_own_error(description: str, err_code: int) -> None:
    machine = receiver()
    error = failure(machine, lambda: machine.receive_response(refusal(description, err_code)))
    assert isinstance(error, ApiError) and error.err_code == err_code
    assert error.message.startswith("snapshot of ORDERS: ")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        answer(type="io.nats.jetstream.api.v1.stream_info_response"),
        answer(config=None),
        answer(config={"name": "OTHER"}),
        answer(state=None),
        answer(state={}),
        answer(state={**ANSWER["state"], "last_seq": -1}),  # type: ignore[dict-item]
    ],
)
def test_an_answer_that_makes_no_sense_is_a_format_error(payload: bytes) -> None:
    machine = receiver()
    error = failure(machine, lambda: machine.receive_response(payload))
    assert isinstance(error, FormatError)


# The request.


def test_the_request_asks_for_what_the_server_would_clamp_to() -> None:
    def sizes(chunk: int, window: int | None) -> tuple[int, int | None]:
        request = SnapshotReceiver("ORDERS", INBOX, chunk_size=chunk, window_size=window).request(ApiPrefix())
        follows(request.payload, "stream_snapshot_request")
        body = json.loads(request.payload)
        return body["chunk_size"], body.get("window_size")

    assert sizes(0, 0) == (1024, 1024)
    assert sizes(1 << 30, 1 << 40) == (1 << 20, 32 << 20)
    assert sizes(1 << 20, 1) == (1 << 20, 1 << 20)
    assert sizes(131072, None) == (131072, None)


def test_behind_a_domain_the_request_moves_and_the_acknowledgements_do_not() -> None:
    machine = receiver()
    assert machine.request(ApiPrefix("$JS.hub.API")).subject == "$JS.hub.API.STREAM.SNAPSHOT.ORDERS"
    (chunk,) = machine.receive(full(1))
    assert isinstance(chunk, ChunkReceived)
    machine.release(chunk)
    assert machine.to_send()[0].subject.startswith("$JS.SNAPSHOT.ACK.")


@pytest.mark.parametrize(("stream", "inbox"), [("a.b", INBOX), ("", INBOX), ("ORDERS", "_INBOX.>"), ("ORDERS", "")])
def test_names_and_inboxes_are_checked_before_anything_is_sent(stream: str, inbox: str) -> None:
    with pytest.raises(UsageError):
        SnapshotReceiver(stream, inbox)


# Hostile peers.

REPLIES = st.one_of(
    st.none(),
    st.just(""),
    st.builds("{}.{}.{}".format, st.just(ACK), st.integers(-1, SIZE + 1), st.integers(-1, 5)),
    st.text(max_size=30),
)
HEADERS = st.one_of(st.just(b""), st.sampled_from([OK, NO_INTEREST, b"NATS/1.0\r\n\r\n"]), st.binary(max_size=20))
MESSAGES = st.builds(
    Message, st.just(INBOX), REPLIES, HEADERS, st.one_of(st.just(b""), st.binary(max_size=8), st.just(bytes(SIZE)))
)
ANSWERS = st.one_of(
    st.just(answer()), st.just(refusal("snapshot failed: snapshot in progress")), st.binary(max_size=20)
)
Step = Callable[[SnapshotReceiver], list[Event] | None]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda message: lambda m: m.receive(message), MESSAGES),
    st.just(lambda m: m.receive(full(m.chunks_received + 1))),
    st.just(lambda m: m.receive(last())),
    st.just(lambda m: m.receive(end())),
    st.builds(lambda payload: lambda m: m.receive_response(payload), ANSWERS),
    st.builds(lambda index: lambda m: m.release(ChunkReceived(index, b"", None)), st.integers(0, 5)),
    st.just(lambda m: m.reconnected()),
    st.just(lambda m: m.timed_out("it")),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=12))
def test_no_sequence_of_inputs_makes_another_error_or_revives_a_failed_dialogue(steps: list[Step]) -> None:
    machine = receiver()
    failed: JsBackupError | None = None
    taken = 0
    for step in steps:
        before = machine.state
        try:
            for event in step(machine) or []:
                if isinstance(event, ChunkReceived):
                    taken += len(event.data)
        except JsBackupError as error:
            if failed is not None:
                assert error is failed
            elif machine.failure is not None:
                failed = error
            else:
                assert isinstance(error, UsageError) and machine.state is before
        assert (machine.state is SnapshotState.FAILED) is (failed is not None)
        assert machine.bytes_received == taken
        assert 0 <= machine.unacked_bytes <= machine.bytes_received
        assert failed is None or machine.to_send() == []
