"""A stream of a scripted server, for dialogues about more than one request.

What any client may ask at any time is answered by the side: the stream's description, its consumers, its messages one
by one. What a test is about is the test's to say: snapshots, and what a consumer delivers.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from jsbackup.times import format_time
from tests.engine.snapshots import CONFIG, Snapshot, archive_v2
from tests.harness.batches import Message
from tests.harness.peer import JSON, Heard, ScriptedPeer

API = "$JS.API"
ANSWER = "io.nats.jetstream.api.v1."
CREATED = "2026-01-01T00:00:00Z"
NOT_FOUND = (10059, "stream not found")


def refusal(kind: str, err_code: int, description: str) -> JSON:
    return {"type": f"{ANSWER}{kind}", "error": {"code": 500, "err_code": err_code, "description": description}}


class ScriptedStream:
    """The stream `name` at `peer`, with these messages; attributes may change at any time.

    `silent`: requests for its description get no answer. `gone`: there is no such stream. `answers_next`: whoever asks
    for a message gets the one after it.
    """

    def __init__(self, peer: ScriptedPeer, messages: Iterable[Message] = (), name: str = "ORDERS", **config: Any):
        self.peer = peer
        self.name = name
        self.config: JSON = {**CONFIG, "name": name, **config}
        self.messages = {message.sequence: message for message in messages}
        self.last = max(self.messages, default=0)
        self.created = CREATED
        self.silent = self.gone = self.answers_next = False
        self.consumers: list[JSON] = []
        self.missing: list[str] = []  # consumers that did not answer
        self.descriptions = 0  # how often it was described
        self.removals = 0  # how often it was deleted
        for tokens, answer in (
            (f"STREAM.INFO.{name}", self.describe),
            (f"CONSUMER.LIST.{name}", self.list_consumers),
            (f"STREAM.MSG.GET.{name}", self.message),
            (f"STREAM.UPDATE.{name}", self.update),
            (f"STREAM.DELETE.{name}", self.remove),
            (f"CONSUMER.DELETE.{name}.*", lambda heard: {"type": f"{ANSWER}consumer_delete_response", "success": True}),
        ):
            peer.always(f"{API}.{tokens}", answer)

    @property
    def state(self) -> JSON:
        there = sorted(self.messages)
        first = there[0] if there else self.last + 1
        return {
            "messages": len(there),
            "bytes": sum(len(message.data) + 20 for message in self.messages.values()),
            "first_seq": first,
            "first_ts": format_time(self.messages[first].timestamp_ns) if there else "0001-01-01T00:00:00Z",
            "last_seq": self.last,
            "last_ts": format_time(self.messages[there[-1]].timestamp_ns) if there else "0001-01-01T00:00:00Z",
            "consumer_count": len(self.consumers),
            "num_deleted": self.last - first + 1 - len(there),
        }

    @property
    def info(self) -> JSON:
        return {"config": self.config, "created": self.created, "state": self.state, "ts": CREATED}

    @property
    def present(self) -> list[Message]:
        return [self.messages[sequence] for sequence in sorted(self.messages)]

    def write(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.messages[message.sequence] = message
            self.last = max(self.last, message.sequence)

    def delete(self, *sequences: int) -> None:
        for sequence in sequences:
            del self.messages[sequence]

    # --- answered by the side ---

    def describe(self, heard: Heard) -> JSON | None:
        self.descriptions += 1
        if self.silent:
            return None
        if self.gone:
            return refusal("stream_info_response", *NOT_FOUND)
        info = self.info
        if heard.data and heard.json.get("deleted_details"):
            first = info["state"]["first_seq"]
            info["state"]["deleted"] = [s for s in range(first, self.last + 1) if s not in self.messages]
        return {"type": f"{ANSWER}stream_info_response", **info}

    def update(self, heard: Heard) -> JSON:
        self.config = heard.json
        return {"type": f"{ANSWER}stream_update_response", **self.info}

    def remove(self, _heard: Heard) -> JSON:
        if self.gone:
            return refusal("stream_delete_response", *NOT_FOUND)
        self.gone = True
        self.removals += 1
        return {"type": f"{ANSWER}stream_delete_response", "success": True}

    def list_consumers(self, _heard: Heard) -> JSON:
        total = len(self.consumers) + len(self.missing)
        page = {"total": total, "offset": 0, "limit": 256, "consumers": self.consumers, "missing": self.missing}
        return {"type": f"{ANSWER}consumer_list_response", **page}

    def message(self, heard: Heard) -> JSON:
        found = self.messages.get(heard.json["seq"] + self.answers_next)
        if found is None:
            return refusal("stream_msg_get_response", 10037, "no message found")
        message = {
            "subject": found.subject,
            "seq": found.sequence,
            "time": format_time(found.timestamp_ns),
            "data": b64encode(found.data).decode(),
            "hdrs": b64encode(found.headers or b"").decode(),
        }
        return {"type": f"{ANSWER}stream_msg_get_response", "message": message}

    # --- said by the test ---

    async def expect_snapshot(self) -> Snapshot:
        return Snapshot(self.peer, await self.peer.expect(f"{API}.STREAM.SNAPSHOT.{self.name}"))

    async def accept(self, snapshot: Snapshot) -> None:
        await snapshot.accept(state=self.state, **self.config)

    async def give_snapshot(self, archive: bytes | None = None) -> Snapshot:
        """A whole one, asked for next: of what there is, or this archive."""
        snapshot = await self.expect_snapshot()
        await self.answer_snapshot(snapshot, archive)
        return snapshot

    async def answer_snapshot(self, snapshot: Snapshot, archive: bytes | None = None) -> None:
        await self.accept(snapshot)
        await snapshot.chunks(archive_v2(self.present) if archive is None else archive)
        await snapshot.end()

    async def expect_consumer(self) -> ScriptedConsumer:
        """One that is asked for next; it is made, and the client listens to it."""
        return await self.make_consumer(await self.peer.expect(f"{API}.CONSUMER.CREATE.{self.name}.*"))

    async def make_consumer(self, heard: Heard) -> ScriptedConsumer:
        consumer = ScriptedConsumer(self, heard)
        await self.peer.answer(heard, {"type": f"{ANSWER}consumer_create_response", **consumer.info})
        await self.peer.interest(consumer.deliver)
        return consumer


class ScriptedConsumer:
    """A consumer that delivers what the test says. It answers by the side what it has delivered."""

    def __init__(self, stream: ScriptedStream, asked: Heard) -> None:
        self.stream = stream
        self.config: JSON = asked.json["config"]
        self.deliver: str = self.config["deliver_subject"]
        self.first: int = self.config["opt_start_seq"]
        self.delivered = 0
        self.last = 0
        self.pending = len(self.waiting)
        name = self.config["name"]
        stream.peer.always(
            f"{API}.CONSUMER.INFO.{stream.name}.{name}",
            lambda heard: {"type": f"{ANSWER}consumer_info_response", **self.info},
        )

    @property
    def waiting(self) -> list[Message]:
        """What it has to deliver from its start on."""
        return [message for message in self.stream.present if message.sequence >= self.first]

    @property
    def info(self) -> JSON:
        return consumer_info(
            self.stream.name,
            self.config,
            delivered=(self.delivered, self.last),
            num_pending=self.pending,
        )

    async def say(self, message: Message, *, pending: int | None = None, delivery: int = 0) -> None:
        """Deliver a message, whatever it is; `pending` are left after it."""
        self.delivered += 1
        self.last = message.sequence
        self.pending = max(self.pending - 1, 0) if pending is None else pending
        tokens = (1, message.sequence, delivery or self.delivered, message.timestamp_ns, self.pending)
        reply = ".".join(map(str, ("$JS.ACK", self.stream.name, self.config["name"], *tokens)))
        assert isinstance(message.subject, str)
        await self.stream.peer.say(
            self.deliver, message.data, reply=reply, headers=message.headers or b"", shown=message.subject
        )

    async def say_all(self, messages: Iterable[Message] | None = None) -> None:
        for message in self.waiting if messages is None else messages:
            await self.say(message)


def list_streams(peer: ScriptedPeer, *streams: ScriptedStream) -> None:
    """Answer by the side which streams there are."""

    def listed(_heard: Heard) -> JSON:
        infos = [stream.info for stream in streams if not stream.gone]
        page = {"total": len(infos), "offset": 0, "limit": 256, "streams": infos}
        return {"type": f"{ANSWER}stream_list_response", **page}

    peer.always(f"{API}.STREAM.LIST", listed)


def consumer_info(
    stream: str, config: JSON, *, delivered: tuple[int, int] = (0, 0), num_pending: int = 0, **fields: Any
) -> JSON:
    pair = {"consumer_seq": delivered[0], "stream_seq": delivered[1]}
    return {
        "stream_name": stream,
        "name": config["name"],
        "config": config,
        "created": CREATED,
        "delivered": pair,
        "ack_floor": pair,
        "num_pending": num_pending,
        "ts": CREATED,
        **fields,
    }
