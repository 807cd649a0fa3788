"""Talking over a link: what arrives arrives whole, and nothing waits on once it is in vain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jsbackup.config.connection import Connection, ConnectionOptions, source_connection
from jsbackup.engine.link import link as module
from jsbackup.engine.link.link import Link
from jsbackup.errors import ApiError, NatsError, NatsNoResponders, NatsPermissionDenied, NatsTimeout, TransferError
from jsbackup.protocol import api
from jsbackup.protocol.dialogue import Message
from tests.engine.identities import Operator, creds_text
from tests.harness.peer import ScriptedPeer
from tests.harness.servers import NEWEST, VERSIONS, NatsServer, Port, wait_until

# Long enough that a test which waits for it has failed, short enough to see that.
FAR_SECONDS = 60.0


@pytest.fixture(autouse=True)
def nothing_is_printed(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither nats-py nor asyncio may write to the terminal, whatever went wrong."""
    yield
    gc.collect()
    assert capfd.readouterr() == ("", "")
    assert [record.getMessage() for record in caplog.records] == []


def connection(url: str, **options: Any) -> Connection:
    return source_connection(ConnectionOptions(server=url, **options), {"HOME": "/nonexistent"})


async def connect(url: str, **options: Any) -> Link:
    return await Link.connect(connection(url, **options), name="test")


async def clients(server: NatsServer, number: int) -> None:
    """Waits until the server has that many clients with a subscription each."""
    await asyncio.to_thread(
        wait_until, lambda: len(server.monitor("/connz")["connections"]) == number, f"{number} clients", server
    )


def freeze(server: NatsServer) -> None:
    """Stops the server's process, and returns when each of its threads has stopped."""

    def stopped() -> bool:
        states = [task.joinpath("stat").read_text() for task in Path(f"/proc/{server.pid}/task").iterdir()]
        return all(state.rpartition(")")[2].split()[0] == "T" for state in states)

    server.freeze()
    wait_until(stopped, "the server to stop", server)


class Waiting:
    """Coroutines that all wait, started and known to wait before something is done to them."""

    def __init__(self, *coroutines: Any) -> None:
        self.tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]

    async def begun(self, link: Link) -> None:
        """Each has run as far as it gets, and the server has taken what it sent."""
        for _ in range(3):
            await asyncio.sleep(0)
        await link.rtt()
        assert not any(task.done() for task in self.tasks)

    async def errors(self) -> list[BaseException]:
        done = await asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), FAR_SECONDS / 2)
        return [error for error in done if isinstance(error, BaseException)]


# ------------------------------------------------------------------------------------------------------ messages


@pytest.mark.nats
@pytest.mark.parametrize("version", VERSIONS)
def test_header_blocks_go_and_arrive_byte_for_byte(version: str) -> None:
    blocks = [
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\nA: 2\r\na: 3\r\nA: 1\r\n\r\n",
        b"NATS/1.0\r\nEmpty:\r\nEmpty: \r\nSpaces:   x  \t \r\n\r\n",
        b"NATS/1.0\r\nno-space:x\r\nUPPER: X\r\n\r\n",
        "NATS/1.0\r\nGröße: ∞ 💾\r\nKey With Space: v\r\n\r\n".encode(),
        b"NATS/1.0\r\nRaw: \xff\xfe\x80\r\n\xffName: x\r\n\r\n",
        b"NATS/1.0\r\nno colon here\r\n: no name\r\n\r\n",
        b"NATS/1.0\r\nFolded: one\r\n two\r\n\r\n",
        b"NATS/1.0\nbare newlines: yes\n\n",
        b"NATS/1.0 204\r\n\r\n",
        b"NATS/1.0 408 Request Timeout\r\nX: y\r\n\r\n",
        b"NATS/1.0 abc\r\n\r\n",
        b"NATS/1.0   503\r\n\r\n",
        b"NATS/1.0",
        b"not a header block at all",
    ]

    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link, link.subscribe("raw.>") as subscription:
            await link.flush()
            for number, block in enumerate(blocks):
                data = b"payload" * number
                raw_publish(server, f"HPUB raw.{number} re.ply {len(block)} {len(block) + len(data)}", block + data)
                assert await subscription.next(10) == Message(f"raw.{number}", "re.ply", block, data)
                await link.publish(f"raw.{number}", data, "re.ply", block)
                assert await subscription.next(10) == Message(f"raw.{number}", "re.ply", block, data)
            raw_publish(server, "PUB raw.none 0", b"")
            assert await subscription.next(10) == Message("raw.none", None, b"", b"")

    with NatsServer(version, jetstream=False) as server:
        asyncio.run(main(server))


def raw_publish(server: NatsServer, line: str | bytes, body: bytes) -> None:
    """Publishes past any client library, and returns when the server has taken it."""
    control = line.encode() if isinstance(line, str) else line
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as peer, peer.makefile("rb") as lines:
        peer.sendall(b'CONNECT {"headers":true,"no_responders":true,"verbose":false}\r\n' + control + b"\r\n" + body)
        peer.sendall(b"\r\nPING\r\n")
        assert any(answer == b"PONG\r\n" for answer in lines)


@pytest.mark.nats
def test_subjects_that_are_not_utf_8_keep_their_bytes() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link, link.subscribe(">") as subscription:
            await link.flush()
            raw_publish(server, b"PUB gr\xfc\xdfe.\xff re.\xfe 1", b"x")
            message = await subscription.next(10)
            assert message.subject.encode("utf-8", "surrogateescape") == b"gr\xfc\xdfe.\xff"
            assert (message.reply or "").encode("utf-8", "surrogateescape") == b"re.\xfe"
            with pytest.raises(NatsError, match="cannot publish to"):
                await link.publish(message.subject, b"")
            await link.publish("größe.💾", b"y")
            assert (await subscription.next(10)).subject == "größe.💾"

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_messages_come_in_order_across_more_than_any_buffer() -> None:
    async def main(server: NatsServer) -> None:
        chunk = bytes(128 << 10)
        async with (
            await connect(server.url) as link,
            await connect(server.url) as sender,
            link.subscribe("chunks") as subscription,
        ):
            await link.flush()

            async def send() -> None:
                for number in range(400):
                    await sender.publish("chunks", number.to_bytes(4, "big") + chunk, "re.ply")

            sending = asyncio.create_task(send())
            for number in range(400):
                message = await subscription.next(10)
                assert int.from_bytes(message.data[:4], "big") == number
            await sending
            assert subscription.next_nowait() is None

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_a_subscription_that_nobody_reads_fails_and_drops_nothing_before() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link, link.subscribe("x", limit_bytes=10_000) as subscription:
            for _ in range(12):
                await link.publish("x", bytes(1000))
            await link.flush()
            for _ in range(10):
                assert len((await subscription.next(1)).data) == 1000
            for _ in range(2):
                with pytest.raises(TransferError, match="more than 10000 bytes came on x and were not read"):
                    await subscription.next(1)
            assert link.connected

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_a_subscription_ends_with_its_scope() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link:
            for _ in range(2):
                async with link.subscribe("x") as subscription:
                    await link.publish("x", b"1")
                    async for message in subscription:
                        assert message.data == b"1"
                        break
                await link.flush()
            counts = [client["subscriptions"] for client in server.monitor("/connz")["connections"]]
            assert counts == [1]  # the inbox
            with pytest.raises(KeyError):
                async with link.subscribe("x"):
                    raise KeyError
            await link.flush()
            assert [client["subscriptions"] for client in server.monitor("/connz")["connections"]] == [1]

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_requests_run_side_by_side_and_get_each_their_own_answer() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link, await connect(server.url) as service:
            async with service.subscribe("echo.*") as requests:
                await service.flush()

                async def serve() -> None:
                    held = [await requests.next(10) for _ in range(50)]
                    for message in reversed(held):
                        assert message.reply is not None
                        await requests.publish(message.reply, message.subject.encode() + message.headers)

                serving = asyncio.create_task(serve())
                headers = {"Nats-Required-Api-Level": "1"}
                answers = await asyncio.gather(*(link.request(f"echo.{n}", headers=headers) for n in range(50)))
                await serving
            block = b"NATS/1.0\r\nNats-Required-Api-Level: 1\r\n\r\n"
            assert [answer.data for answer in answers] == [f"echo.{n}".encode() + block for n in range(50)]

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_a_request_that_nobody_answers_says_why() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link:
            with pytest.raises(NatsError, match=r"nothing answers on \$JS.API.INFO") as caught:
                await link.request("$JS.API.INFO")
            assert type(caught.value) is NatsNoResponders
            async with link.subscribe("mute"):
                with pytest.raises(NatsTimeout, match=r"no answer to mute within 0.05 s"):
                    await link.request("mute", timeout=0.05)
                with pytest.raises(NatsTimeout, match=r"no answer to mute within 0.1 s"):
                    async with await connect(server.url, timeout="100ms") as other:
                        await other.request("mute")
            async with link.subscribe("quiet") as subscription:
                with pytest.raises(NatsTimeout, match=r"nothing arrived on quiet within 0.05 s"):
                    await subscription.next(0.05)
            assert link.connected

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_the_api_is_asked_in_types_and_answers_in_errors() -> None:
    async def main(server: NatsServer) -> None:
        prefix = api.ApiPrefix()
        async with await connect(server.url) as link:
            assert (await link.api(api.account_info(prefix)))["streams"] == 0
            with pytest.raises(ApiError, match="stream not found") as caught:
                await link.api(api.stream_info(prefix, "NONE"))
            assert caught.value.err_code == 10059

    with NatsServer(NEWEST) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_what_the_server_would_not_take_is_refused_before_it_is_sent() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link:
            await link.publish("x", bytes(2048))
            with pytest.raises(NatsError, match="2049 bytes for x is more than the 2048 that") as caught:
                await link.publish("x", bytes(2049))
            assert caught.value.hint is not None
            with pytest.raises(NatsError, match="2049 bytes"):
                await link.request("x", bytes(2049))
            for subject in ("", "a b", "a\r\nPUB b 0", "a\tb", "a\0"):
                with pytest.raises(NatsError, match="not a subject"):
                    await link.publish(subject)
            with pytest.raises(NatsError, match="not a subject"):
                await link.publish("x", b"", "re ply")
            with pytest.raises(NatsError, match="not a subject to subscribe to"):
                async with link.subscribe("a..b"):
                    pass
            await link.flush()
            assert link.connected

    with NatsServer(NEWEST, jetstream=False, max_payload_bytes=2048) as server:
        asyncio.run(main(server))


@pytest.mark.nats
@pytest.mark.parametrize("version", VERSIONS)
def test_the_limit_of_the_account_counts_where_it_is_lower_than_the_servers(version: str) -> None:
    config = "accounts { A { users: [{ user: ann, password: p }], limits { max_payload: 1000 } } }"

    async def main(server: NatsServer) -> None:
        async with await connect(server.url, user="ann", password="p") as link:
            assert link.max_payload_bytes == 1000
            await link.publish("x", bytes(1000))
            with pytest.raises(NatsError, match="1001 bytes for x is more than the 1000"):
                await link.publish("x", bytes(1001))
            await link.flush()

    with NatsServer(version, config=config, jetstream=False) as server:
        asyncio.run(main(server))


# ------------------------------------------------------------------------------------------------------- denials

DENYING = """authorization { users: [{ user: ann, password: p, permissions: {
  publish: { allow: [">"], deny: ["Secret.>", "q\\"uo\\\\te", "$JS.SNAPSHOT.ACK.>", "_R.denied"] }
  subscribe: { deny: ["Private.>"] }
} }] }"""


@pytest.mark.nats
@pytest.mark.parametrize("version", VERSIONS)
def test_a_denied_request_fails_at_once_and_names_its_subject(version: str) -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url, user="ann", password="p") as link:
            for subject in ("Secret.Größe.A", 'q"uo\\te'):
                with pytest.raises(NatsPermissionDenied) as caught:
                    await link.request(subject, timeout=FAR_SECONDS)
                assert caught.value.message == f"{server.url} does not allow publishing to {subject}"
            async with link.subscribe("open") as subscription:
                waiting = Waiting(link.request("open", timeout=FAR_SECONDS))
                assert (await subscription.next(10)).reply is not None
                with pytest.raises(NatsPermissionDenied):
                    await link.request("Secret.x", timeout=FAR_SECONDS)
                assert not waiting.tasks[0].done()
                waiting.tasks[0].cancel()
            assert link.connected

    with NatsServer(version, config=DENYING, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
@pytest.mark.parametrize("version", VERSIONS)
def test_whether_subjects_are_denied_is_learnt_of_many_at_once(version: str) -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url, user="ann", password="p") as link:
            subjects = [f"{room}.{number}" for number in range(50) for room in ("Secret", "nobody", "Private")]
            found = await asyncio.gather(*(link.denial(subject, b"{}") for subject in subjects))
            assert [None if denied is None else denied.message for denied in found] == [
                f"{server.url} does not allow publishing to {subject}" if subject.startswith("Secret") else None
                for subject in subjects
            ]
            await link.flush()  # and nothing is left over for whoever asks next

    with NatsServer(version, config=DENYING, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_a_denied_subscription_fails_its_reader_and_no_other() -> None:
    async def main(server: NatsServer) -> None:
        async with (
            await connect(server.url, user="ann", password="p") as link,
            link.subscribe("Private.a") as denied,
            link.subscribe("Public.a") as allowed,
        ):
            with pytest.raises(NatsPermissionDenied, match=r"does not allow subscribing to Private\.a"):
                await denied.next(FAR_SECONDS)
            await link.publish("Public.a", b"x")
            assert (await allowed.next(10)).data == b"x"

    with NatsServer(NEWEST, config=DENYING, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_a_transfer_learns_that_its_acknowledgements_are_denied() -> None:
    async def main(server: NatsServer) -> None:
        async with (
            await connect(server.url, user="ann", password="p") as link,
            link.subscribe("chunks.one") as one,
            link.subscribe("chunks.two") as two,
        ):
            for number in range(200):
                await one.publish(f"$JS.SNAPSHOT.ACK.S.x.131072.{number}")
            with pytest.raises(NatsPermissionDenied, match=r"publishing to \$JS\.SNAPSHOT\.ACK\.S\.x\.131072\.\d+"):
                await one.next(FAR_SECONDS)
            with pytest.raises(NatsPermissionDenied):
                await one.publish("other")
            await link.publish("chunks.two", b"x")
            assert (await two.next(10)).data == b"x"

    with NatsServer(NEWEST, config=DENYING, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_a_denied_publish_is_told_by_the_next_flush() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url, user="ann", password="p") as link:
            await link.publish("Secret.x", b"x")
            with pytest.raises(NatsPermissionDenied, match=r"publishing to secret\.x"):
                await link.flush()
            await link.flush()

    with NatsServer(NEWEST, config=DENYING, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
@pytest.mark.parametrize(("version", "account"), [(VERSIONS[0], None), (NEWEST, "$G")])
def test_a_user_who_may_not_ask_for_its_account_knows_it_from_newer_servers_only(
    version: str, account: str | None
) -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url, user="ann", password="p") as link:
            assert await link.account() == account
            assert link.connected

    with NatsServer(version, config=DENYING.replace("Secret.>", "$SYS.>"), jetstream=False) as server:
        asyncio.run(main(server))


# ---------------------------------------------------------------------------------------------------- lost links


@pytest.mark.nats
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_everything_that_waits_fails_when_the_server_goes(how: str) -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link, link.subscribe("mute"), link.subscribe("quiet") as quiet:
            waiting = Waiting(*(link.request("mute", timeout=FAR_SECONDS) for _ in range(3)), quiet.next(FAR_SECONDS))
            await waiting.begun(link)
            getattr(server, how)()
            errors = await waiting.errors()
            assert [type(error) for error in errors] == [TransferError] * 4
            for error in errors:
                assert str(error).startswith(f"the connection to {server.url} was lost: ")
            assert isinstance(errors[0], TransferError)
            assert errors[0].retry
            with pytest.raises(TransferError):
                quiet.next_nowait()
            with pytest.raises(TransferError):
                await quiet.publish("x")
            with pytest.raises(TransferError):
                await link.publish("x")
            with pytest.raises(TransferError):
                await link.flush()
            assert not link.connected

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_what_came_before_the_loss_can_still_be_read() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link, link.subscribe("x") as subscription:
            for number in range(3):
                await link.publish("x", bytes([number]))
            await link.flush()
            server.kill()
            assert [(await subscription.next(10)).data for _ in range(3)] == [b"\0", b"\1", b"\2"]
            with pytest.raises(TransferError):
                await subscription.next(FAR_SECONDS)

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_a_cut_connection_is_lost_at_once_while_the_server_lives_on() -> None:
    async def main(server: NatsServer) -> None:
        async with cuttable(server) as (url, cut), await connect(url) as link:
            async with link.subscribe("mute"), link.subscribe("quiet") as quiet:
                waiting = Waiting(link.request("mute", timeout=FAR_SECONDS), quiet.next(FAR_SECONDS))
                await waiting.begun(link)
                cut()
                assert [type(error) for error in await waiting.errors()] == [TransferError] * 2
            with pytest.raises(NatsError, match="nothing answers"):
                await link.request("nobody")
            assert link.generation == 2

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@asynccontextmanager
async def cuttable(server: NatsServer) -> AsyncIterator[tuple[str, Any]]:
    """A way to the server by another port, and a function that resets all connections on it."""
    writers: list[asyncio.StreamWriter] = []
    tasks: list[asyncio.Task[None]] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
        writers.extend((writer, far_writer))
        tasks.extend((asyncio.create_task(pump(reader, far_writer)), asyncio.create_task(pump(far_reader, writer))))

    def cut() -> None:
        for writer in writers:
            writer.transport.abort()

    way = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{way.sockets[0].getsockname()[1]}", cut
    finally:
        cut()
        way.close()
        await asyncio.gather(*tasks)


@pytest.mark.nats
def test_a_publisher_that_waits_for_a_stuck_server_fails_with_the_connection() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link, link.subscribe("quiet") as quiet:
            freeze(server)

            async def send(publish: Any) -> None:
                while True:
                    await publish("x", bytes(1 << 20))

            sending = asyncio.create_task(send(link.publish)), asyncio.create_task(send(quiet.publish))
            done, _ = await asyncio.wait(sending, timeout=0.3)
            assert not done
            with pytest.raises(NatsTimeout, match=r"takes no data|no answer to a ping"):
                await link.flush(0.05)
            with pytest.raises(NatsTimeout, match="no answer to x"):
                await link.request("x", timeout=0.05)
            server.kill()
            errors = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), FAR_SECONDS / 2)
            assert [type(error) for error in errors] == [TransferError, TransferError]

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_a_waiting_publisher_can_be_cancelled() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link:
            freeze(server)

            async def send() -> None:
                while True:
                    await link.publish("x", bytes(1 << 20))

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(send(), 0.2)
            server.thaw()
            await link.flush(FAR_SECONDS / 2)

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


def test_a_round_trip_is_known_from_the_quickest_answer_and_a_ping_is_sent_only_before_there_is_one() -> None:
    async def main(peer: ScriptedPeer) -> None:
        async def answered_after(seconds: float) -> None:
            asking = asyncio.create_task(link.request("x", timeout=FAR_SECONDS))
            heard = await peer.expect("x")
            await asyncio.sleep(seconds)
            await peer.answer(heard)
            await asking

        async with await connect(peer.url) as link:
            assert 0 < await link.round_trip() < FAR_SECONDS
            await answered_after(0.05)
            peer.stall()
            first = await link.round_trip()
            assert 0.05 <= first < FAR_SECONDS
            peer.go_on()
            await answered_after(0.0)
            quickest = await link.round_trip()
            await answered_after(quickest + 0.01)
            assert await link.round_trip() == quickest <= first

    async def with_peer() -> None:
        async with ScriptedPeer() as peer:
            await main(peer)

    asyncio.run(with_peer())


@pytest.mark.nats
def test_a_late_pong_does_no_harm() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link:
            freeze(server)
            for _ in range(3):
                with pytest.raises(NatsTimeout, match="no answer to a ping"):
                    await link.rtt(0.02)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(link.flush(FAR_SECONDS), 0.02)
            server.thaw()
            assert await link.rtt(FAR_SECONDS / 2) < FAR_SECONDS / 2
            with pytest.raises(NatsError, match="nothing answers"):
                await link.request("nobody")
            assert link.generation == 1

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_closing_a_link_under_those_who_wait_on_it_ends_their_wait() -> None:
    async def main(server: NatsServer) -> None:
        link = await connect(server.url)
        async with link.subscribe("mute"), link.subscribe("quiet") as quiet:
            waiting = Waiting(link.request("mute", timeout=FAR_SECONDS), quiet.next(FAR_SECONDS))
            await waiting.begun(link)
            await link.close()
            for error in await waiting.errors():
                assert isinstance(error, NatsError)
                assert str(error) == f"the connection to {server.url} was closed"
        await link.close()
        for late in (link.request("x"), link.publish("x"), link.flush(), link.rtt()):
            with pytest.raises(NatsError, match="was closed"):
                await late
        with pytest.raises(NatsError, match="was closed"):
            async with link.subscribe("x"):
                pass
        await clients(server, 0)

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_closing_does_not_wait_for_a_server_that_hangs() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link, link.subscribe("x"):
            freeze(server)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    while True:
                        await link.publish("x", bytes(1 << 20))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


# -------------------------------------------------------------------------------------------------- new links


@pytest.mark.nats
def test_a_lost_connection_is_replaced_for_requests_and_never_for_what_ran_on_it() -> None:
    async def main(server: NatsServer) -> None:
        async with await connect(server.url) as link, link.subscribe("x") as old:
            assert (link.generation, old.generation) == (1, 1)
            server.restart()
            with pytest.raises(TransferError):
                await old.next(FAR_SECONDS)
            with pytest.raises(TransferError):
                await link.publish("x")
            assert (link.generation, link.connected) == (1, False)
            answers = await asyncio.gather(*(link.request("nobody") for _ in range(3)), return_exceptions=True)
            assert [str(answer) for answer in answers] == ["nothing answers on nobody"] * 3
            assert (link.generation, link.connected) == (2, True)
            async with link.subscribe("x") as new:
                assert new.generation == 2
                await link.publish("x", b"1")
                assert (await new.next(10)).data == b"1"
            for failing in (old.next(1), old.publish("x")):
                with pytest.raises(TransferError):
                    await failing

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_attempts_to_replace_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECONNECT_PAUSES_SECONDS", (0.0, 0.05))

    async def main(server: NatsServer) -> None:
        async with await connect(server.url, timeout="500ms") as link:
            server.kill()
            with pytest.raises(TransferError):
                while True:
                    await link.flush()
            with pytest.raises(TransferError, match=r"lost and cannot be made again: .* connection refused") as caught:
                await link.request("x")
            assert caught.value.retry

    with NatsServer(NEWEST, jetstream=False) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_another_server_of_the_cluster_takes_over() -> None:
    async def main(first: NatsServer, second: NatsServer) -> None:
        async with await connect(first.url) as link:
            assert (link.server_name, link.cluster_name) == ("one", "c")
            first.kill()
            with pytest.raises(NatsError, match="nothing answers"):
                while True:
                    try:
                        await link.request("nobody")
                    except TransferError:
                        continue
            assert (link.server_name, str(link.server)) == ("two", second.url)

    routes = [Port(), Port()]
    try:
        urls = ", ".join(f'"nats-route://127.0.0.1:{port.number}"' for port in routes)
        configs = [f"cluster {{ name: c, listen: 127.0.0.1:{port.number}, routes: [{urls}] }}" for port in routes]
        with (
            NatsServer(NEWEST, name="one", jetstream=False, config=configs[0]) as one,
            NatsServer(NEWEST, name="two", jetstream=False, config=configs[1]) as two,
        ):
            wait_until(lambda: one.monitor("/routez")["num_routes"] > 0, "a route", one, two)
            asyncio.run(main(one, two))
    finally:
        for port in routes:
            port.release()


@pytest.mark.nats
def test_credentials_that_expire_end_the_connection_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECONNECT_PAUSES_SECONDS", (0.0, 0.05))
    operator = Operator()
    jwt, seed = operator.user(expires=int(time.time()) + 2)
    (tmp_path / "brief.creds").write_text(creds_text(jwt, seed))

    async def main(server: NatsServer) -> None:
        async with (
            await connect(server.url, creds=str(tmp_path / "brief.creds")) as link,
            link.subscribe("x") as subscription,
        ):
            with pytest.raises(TransferError, match=r"was lost: .*expired"):
                await subscription.next(FAR_SECONDS)
            with pytest.raises(TransferError, match=r"cannot be made again: .*(authorization violation|expired)"):
                await link.request("x")

    with NatsServer(NEWEST, config=operator.config, jetstream=False) as server:
        asyncio.run(main(server))


# ------------------------------------------------------------------------------------------------ strange servers


@pytest.mark.parametrize(
    "nonsense",
    [
        b"MSG x 1 99999999999\r\n",
        b"HMSG x 1 5 99999999999\r\n",
        b"MSG x 1 -5\r\n",
        b"gibberish\r\n",
        b"x" * (2 << 20),
        b"INFO {\r\n",
        b"INFO 5\r\n",
        b'INFO {"max_payload": "x"}\r\n',
        b"-ERR\r\n-ERR \r\n",
        b"-ERR '\xff'\r\n",
        b"-ERR 'Slow Consumer'\r\n",
        b"PONG\r\nPONG\r\nHMSG x 2 12 5\r\n" + b"x" * 20,
    ],
)
def test_a_server_that_talks_nonsense_is_left(nonsense: bytes) -> None:
    async def main() -> None:
        async with (
            scripted({b"SUB x": nonsense}) as url,
            await connect(url) as link,
            link.subscribe("x") as subscription,
        ):
            with pytest.raises(TransferError, match="was lost"):
                await subscription.next(FAR_SECONDS)

    asyncio.run(main())


def test_messages_for_nobody_are_passed_over() -> None:
    async def main() -> None:
        stray = b"MSG x 77 1\r\nx\r\nMSG _INBOX.x.99 1 1\r\nx\r\nPONG\r\n"
        async with scripted({b"PING": stray}, version="x") as url, await connect(url) as link:
            await link.rtt()
            assert (link.server_version, link.server_version_text, link.server_name) == ((0, 0, 0), "x", None)
            assert (link.jetstream, link.cluster_name) == (False, None)

    asyncio.run(main())


@asynccontextmanager
async def scripted(answers: dict[bytes, bytes], **info: object) -> AsyncIterator[str]:
    """A server that greets, and answers the first line of each beginning as said; PING with PONG otherwise."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        facts = {"version": "2.15.1", "max_payload": 1024, "headers": True, **info}
        writer.write(b"INFO " + json.dumps(facts).encode() + b"\r\n")
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                default = b"PONG\r\n" if line == b"PING\r\n" else b""
                beginning = next((known for known in left if line.startswith(known)), None)
                if line != b"PING\r\n" or greeted:
                    writer.write(default if beginning is None else left.pop(beginning))
                else:
                    writer.write(default)
                    greeted.append(True)
        writer.close()

    left, greeted = dict(answers), list[bool]()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
