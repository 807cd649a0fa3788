"""The witness is worth something only if it is silent about what is equal and speaks about every planted difference."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.api import PATIENCE_SECONDS, Refused, call, connected
from tests.harness.awkward import BUILDERS, fill, keys
from tests.harness.awkward_bench import LONG_NS, Storage
from tests.harness.oracle import ObservedMessage, ObservedStream, compare, normal_config, observe, time_ns
from tests.harness.oracle_drain import drain
from tests.harness.oracle_features import config_can_go, consumer_can_go
from tests.harness.servers import MINORS, NEWEST, VERSIONS, NatsServer

pytestmark = pytest.mark.nats

Observed = dict[str, ObservedStream]


async def _filled(url: str, version: str, only: tuple[str, ...] | None = None, storage: Storage = "file") -> Observed:
    async with connected(url) as nc:
        specs = await fill(nc, version, only, storage=storage)
        observed = await observe(nc)
        assert {spec.name for spec in specs} == observed.keys()
        for spec in specs:
            assert set(spec.consumers) == observed[spec.name].consumers.keys()
        assert compare(observed, await observe(nc)) == []
        return observed


@pytest.fixture(scope="module")
def small() -> Observed:
    with NatsServer(NEWEST) as server:
        return asyncio.run(_filled(server.url, NEWEST, ("GAPS", "PULL", "PAUSED", "OPTIONS", "HEADERS")))


@dataclasses.dataclass(frozen=True, slots=True)
class Newest:
    """All file streams of the newest server, and how many blocks each had on disk."""

    streams: Observed
    blocks: dict[str, int]


@pytest.fixture(scope="module")
def newest() -> Newest:
    with NatsServer(NEWEST) as server:
        streams = asyncio.run(_filled(server.url, NEWEST))
        folders = server.store_directory.glob("jetstream/*/streams/*")
        return Newest(streams, {one.name: len(list(one.glob("msgs/*.blk"))) for one in folders})


# File streams of the newest one are those of the fixture. Large ones are read as they are on the oldest.
@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("version", "storage"),
    [(MINORS[0], "file"), (MINORS[0], "memory"), (NEWEST, "memory")],  # each is filled and read in test_round_trip.py
)
def test_every_awkward_stream_is_equal_to_itself(version: str, storage: Storage) -> None:
    chosen = [key for key in keys(version, storage=storage) if version == MINORS[0] or not key.startswith("BIG")]
    with NatsServer(version) as server:
        observed = asyncio.run(_filled(server.url, version, tuple(chosen), storage=storage))
    assert len(observed) == len(chosen)
    assert all(stream.config["storage"] == storage for stream in observed.values())


def test_both_groups_live_on_one_server() -> None:
    async def main(url: str) -> list[str]:
        async with connected(url) as nc:
            await fill(nc, NEWEST, ("KV", "SOURCES", "LONG_NAMES"))
            await fill(nc, NEWEST, ("KV", "SOURCES", "LONG_NAMES"), storage="memory")
            return sorted(await observe(nc))

    with NatsServer(NEWEST) as server:
        names = asyncio.run(main(server.url))
    assert len(names) == 10
    assert {"KV_history", "KV_M_history", "SOURCES", "M_SOURCES"} <= set(names)


@pytest.mark.by_turns
def test_awkward_streams_are_as_awkward_as_they_say(newest: Newest) -> None:
    """The traits that tests rely on, on the newest server."""
    seen, blocks = newest.streams, newest.blocks
    assert len(seen) == len(keys(NEWEST))
    assert blocks["BIG"] >= 3
    assert blocks["COMPRESSED"] >= 2
    assert seen["DELETED_TAIL"].messages[-1].sequence < seen["DELETED_TAIL"].state["last_seq"]
    assert seen["EMPTIED"].state["last_seq"] == 25
    assert not seen["EMPTIED"].messages
    assert max(len(message.data) for message in seen["PAYLOADS"].messages) == 1 << 20
    assert {message.header_block for message in seen["HEADERS"].messages} > {None, b"NATS/1.0\r\n\r\n"}
    assert any(b"\xf6" in message.subject for message in seen["NOT_UTF8"].messages)
    markers = [message.header_block or b"" for message in seen["TTL_MARKERS"].messages]
    assert sum(b"Nats-Marker-Reason: MaxAge" in block for block in markers) == 3
    assert seen["SOURCES"].messages[0].header_block is not None
    assert seen["FIRST_SEQ"].state["first_seq"] == 5_000_000_000
    redelivered = [info for stream in seen.values() for info in stream.consumers.values() if info["num_redelivered"]]
    assert len(redelivered) >= 6
    assert all(info["paused"] for info in seen["PAUSED"].consumers.values())


# --- planted differences ---


def _message(stream: ObservedStream, index: int, **changes: Any) -> ObservedStream:
    messages = list(stream.messages)
    messages[index] = dataclasses.replace(messages[index], **changes)
    return dataclasses.replace(stream, messages=tuple(messages))


def _consumer(stream: ObservedStream, name: str, **changes: Any) -> ObservedStream:
    return dataclasses.replace(stream, consumers={**stream.consumers, name: {**stream.consumers[name], **changes}})


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _first(stream: ObservedStream) -> ObservedMessage:
    return stream.messages[0]


PLANTED: dict[str, tuple[str, Callable[[ObservedStream], ObservedStream], str]] = {
    "one bit of a payload": ("GAPS", lambda s: _message(s, 3, data=_flipped(s.messages[3].data)), "message.data"),
    "an empty payload": ("GAPS", lambda s: _message(s, 3, data=b""), "message.data"),
    "one nanosecond": ("GAPS", lambda s: _message(s, 0, time_ns=_first(s).time_ns + 1), "message.time"),
    "a subject": ("GAPS", lambda s: _message(s, -1, subject=b"gaps.x"), "message.subject"),
    "headers gone": ("HEADERS", lambda s: _message(s, 0, header_block=None), "message.headers"),
    "headers empty instead of none": ("HEADERS", lambda s: _message(s, -1, header_block=b""), "message.headers"),
    "the order of headers": (
        "HEADERS",
        lambda s: _message(s, 1, header_block=b"NATS/1.0\r\nA: 2\r\nA: 1\r\na: 3\r\nA: 1\r\n\r\n"),
        "message.headers",
    ),
    "a message lost": ("GAPS", lambda s: dataclasses.replace(s, messages=s.messages[1:]), "messages"),
    "a message more": (
        "GAPS",
        lambda s: dataclasses.replace(s, messages=(*s.messages, dataclasses.replace(_first(s), sequence=10**6))),
        "messages",
    ),
    "a message of another sequence": (
        "GAPS",
        lambda s: _message(s, -1, sequence=s.messages[-1].sequence + 1),
        "messages",
    ),
    "a deletion less": ("GAPS", lambda s: dataclasses.replace(s, deleted=s.deleted[1:]), "deleted"),
    "a sequence that is missing": ("GAPS", lambda s: dataclasses.replace(s, missing=(*s.missing, 7)), "missing"),
    "a count of a subject": (
        "GAPS",
        lambda s: dataclasses.replace(s, subjects={**s.subjects, "gaps.0": 1}),
        "subjects",
    ),
    "the last sequence": (
        "GAPS",
        lambda s: dataclasses.replace(s, state={**s.state, "last_seq": 10**6}),
        "state.last_seq",
    ),
    "the bytes": ("GAPS", lambda s: dataclasses.replace(s, state={**s.state, "bytes": 1}), "state.bytes"),
    "a config field": (
        "OPTIONS",
        lambda s: dataclasses.replace(s, config={**s.config, "deny_purge": False}),
        "config.deny_purge",
    ),
    "a config field that no server knows yet": (
        "OPTIONS",
        lambda s: dataclasses.replace(s, config={**s.config, "allow_tea": True}),
        "config.allow_tea",
    ),
    "an entry of the metadata": (
        "OPTIONS",
        lambda s: dataclasses.replace(s, config={**s.config, "metadata": {**s.config["metadata"], "owner": "else"}}),
        "config.metadata",
    ),
    "a consumer gone": ("PULL", lambda s: dataclasses.replace(s, consumers={}), "consumer.scattered"),
    "a consumer more": (
        "PULL",
        lambda s: dataclasses.replace(s, consumers={**s.consumers, "new": s.consumers["all"]}),
        "consumer.new",
    ),
    "a consumer's config": (
        "PULL",
        lambda s: _consumer(s, "all", config={**s.consumers["all"]["config"], "ack_wait": 1}),
        "consumer.all.config.ack_wait",
    ),
    "delivered": (
        "PULL",
        lambda s: _consumer(s, "all", delivered={"consumer_seq": 20, "stream_seq": 19}),
        "consumer.all.delivered",
    ),
    "the ack floor": (
        "PULL",
        lambda s: _consumer(s, "all", ack_floor={"consumer_seq": 0, "stream_seq": 0}),
        "consumer.all.ack_floor",
    ),
    "pending": ("PULL", lambda s: _consumer(s, "refused", num_ack_pending=0), "consumer.refused.num_ack_pending"),
    "redelivered": ("PULL", lambda s: _consumer(s, "refused", num_redelivered=0), "consumer.refused.num_redelivered"),
    "still to come": ("PULL", lambda s: _consumer(s, "refused", num_pending=0), "consumer.refused.num_pending"),
    "a pause": ("PAUSED", lambda s: _consumer(s, "paused-later", paused=False), "consumer.paused-later.paused"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_difference_is_found_and_named(small: Observed, case: str) -> None:
    name, doctor, path = PLANTED[case]
    after = {**small, name: doctor(small[name])}
    for found in (compare(small, after), compare(after, small)):
        assert any(one.startswith(f"{name}: {path}: ") for one in found), found
        assert all(one.startswith(f"{name}: ") for one in found)


def test_a_stream_gone_or_new_is_found(small: Observed) -> None:
    without = {name: stream for name, stream in small.items() if name != "GAPS"}
    assert compare(small, without) == ["GAPS: stream: is not there any more"]
    assert compare(without, small) == ["GAPS: stream: was not there before"]


def test_what_servers_add_by_themselves_is_left_out(small: Observed) -> None:
    stream = small["OPTIONS"]
    metadata = {key: value for key, value in stream.config["metadata"].items() if not key.startswith("_nats.")}
    older = {key: value for key, value in stream.config.items() if key != "allow_msg_ttl"} | {"metadata": metadata}
    elsewhere = _consumer(
        dataclasses.replace(stream, config=older, created="2001-01-01T00:00:00Z"),
        "limited",
        created="2001-01-01T00:00:00Z",
        ts="2001-01-01T00:00:00Z",
        num_waiting=3,
        cluster={"leader": "n1"},
    )
    assert "_nats.ver" in stream.config["metadata"]
    assert compare({"OPTIONS": stream}, {"OPTIONS": elsewhere}) == []
    assert normal_config({"metadata": {"_nats.ver": "2"}}, {}) == {}


def test_differences_are_ignored_by_pattern_only(small: Observed) -> None:
    after = {**small, "PULL": _consumer(_message(small["PULL"], 0, data=b"x"), "all", num_pending=0)}
    assert len(compare(small, after)) == 2
    assert len(compare(small, after, ignore=("consumer.*.num_pending",))) == 1
    assert len(compare(small, after, ignore=("GAPS:message.data",))) == 2
    assert compare(small, after, ignore=("PULL:message.data", "consumer.all.*")) == []


def test_many_differences_of_one_kind_are_summed_up(small: Observed) -> None:
    doctored = dataclasses.replace(small["PULL"], messages=small["PULL"].messages[50:])
    found = compare({"PULL": small["PULL"]}, {"PULL": doctored})
    assert len(found) == 6
    assert found[-1] == "PULL: messages: and 45 more, up to 52"


def test_a_renamed_stream_is_compared_under_its_new_name(small: Observed) -> None:
    new = dataclasses.replace(small["GAPS"], name="NEW", config={**small["GAPS"].config, "name": "NEW"})
    before = {"GAPS": small["GAPS"]}
    assert compare(before, {"NEW": new}, renamed={"GAPS": "NEW"}) == []
    changed = {"NEW": _message(new, 0, data=b"x")}
    assert [one[:17] for one in compare(before, changed, renamed={"GAPS": "NEW"})] == ["NEW: message.data"]


def test_changes_on_a_server_are_found() -> None:
    async def main(url: str) -> tuple[list[str], list[str]]:
        async with connected(url) as nc:
            await fill(nc, NEWEST, ("GAPS", "WORKQUEUE"))
            before = await observe(nc)
            await call(nc, "STREAM.MSG.DELETE.GAPS", {"seq": 60})
            deleted = compare(before, await observe(nc), ignore=("state.bytes",))
            before = await observe(nc)
            assert await drain(nc, "WORKQUEUE", "high")
            return deleted, compare(before, await observe(nc))

    with NatsServer(NEWEST) as server:
        deleted, drained = asyncio.run(main(server.url))
    assert {one.split(": ")[1] for one in deleted} == {
        "messages", "missing", "deleted", "subjects", "state.messages", "state.num_deleted"
    }  # fmt: skip
    assert any("consumer.high.delivered" in one for one in drained)


@pytest.mark.parametrize("version", [VERSIONS[0], NEWEST])
def test_draining_shows_what_counters_do_not(version: str) -> None:
    """Two consumers with equal counters, one with message 2 acknowledged, one with message 3."""

    async def main(url: str) -> dict[str, dict[int, int]]:
        async with connected(url) as nc:
            await call(
                nc, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "memory", "retention": "limits"}
            )
            for _ in range(6):
                await nc.request("s", b"x")
            for name, acknowledged in (("two", 1), ("three", 2)):
                config = {"durable_name": name, "name": name, "ack_policy": "explicit", "ack_wait": LONG_NS}
                await call(nc, f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config, "action": "create"})
                inbox = nc.new_inbox()
                subscription = await nc.subscribe(inbox)
                await nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", b'{"batch": 4}', reply=inbox)
                replies = [(await subscription.next_msg(timeout=PATIENCE_SECONDS)).reply for _ in range(4)]
                await nc.request(replies[acknowledged], b"+ACK")
            infos = [await call(nc, f"CONSUMER.INFO.S.{name}") for name in ("two", "three")]
            counters = [
                (info["num_ack_pending"], info["num_pending"], info["ack_floor"]["stream_seq"]) for info in infos
            ]
            assert counters == [(3, 2, 0), (3, 2, 0)]
            return {name: await drain(nc, "S", name) for name in ("two", "three")}

    with NatsServer(version) as server:
        drained = asyncio.run(main(server.url))
    assert drained == {"two": {1: 2, 3: 2, 4: 2, 5: 1, 6: 1}, "three": {1: 2, 2: 2, 4: 2, 5: 1, 6: 1}}


@pytest.mark.parametrize("version", MINORS)
def test_servers_take_exactly_the_configs_that_can_go_there(newest: Newest, version: str) -> None:
    """Sends every configuration of the newest server to `version` and looks what comes back."""

    async def main(url: str) -> None:
        async with connected(url) as nc:
            for name, stream in newest.streams.items():
                # A sealed stream cannot be created.
                config = normal_config(stream.config, {}) | {"sealed": False}
                lacking = config_can_go(config, version)
                assert await _taken(nc, f"STREAM.CREATE.{name}", config, config) == (not lacking), (name, lacking)
                plain = {"name": name, "subjects": config.get("subjects", ["plain"]), "storage": "file"}
                if lacking:
                    # Made without the feature by those that drop it silently, not made by those that refuse.
                    with contextlib.suppress(Refused):
                        await call(nc, f"STREAM.DELETE.{name}")
                    await call(nc, f"STREAM.CREATE.{name}", plain | {"retention": config["retention"]})
                for consumer, info in stream.consumers.items():
                    one = normal_config(info["config"], {})
                    request = {"stream_name": name, "config": one, "action": "create"}
                    lacking = consumer_can_go(one, version)
                    taken = await _taken(nc, f"CONSUMER.CREATE.{name}.{consumer}", request, one)
                    assert taken == (not lacking), (name, consumer, lacking)
                await call(nc, f"STREAM.DELETE.{name}")

    async def _taken(nc: Any, subject: str, request: dict[str, Any], config: dict[str, Any]) -> bool:
        try:
            answer = await call(nc, subject, request)
        except Refused as error:
            if error.err_code == 10049:
                # A server that is still deleting its last stream removes the folder of all streams with it, and the
                # one that is being created finds none.
                answer = await call(nc, subject, request)
            else:
                assert error.err_code == 10025, error
                return False
        got = normal_config(answer["config"], {})
        return all(got.get(key) == value for key, value in config.items() if value not in (False, {}))

    with NatsServer(version) as server:
        asyncio.run(main(server.url))


def test_the_builders_are_complete() -> None:
    """One per thing that a backup has to bring back; the list grows, it does not shrink unnoticed."""
    assert len(BUILDERS) >= 60


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("2026-11-21T08:24:56.7Z", 1795249496700000000),
        ("1969-12-31T23:59:59.9Z", -100000000),
    ],
)
def test_times_are_read_to_the_nanosecond(text: str, expected: int) -> None:
    assert time_ns(text) == expected
