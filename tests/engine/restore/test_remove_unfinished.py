"""Of a restore that did not reach its end nothing stays at the server, and nothing of anybody else is touched."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.restore.remove_unfinished import abandon_restore
from jsbackup.engine.restore.send_archive import cut_chunks
from jsbackup.errors import NatsError, NatsTimeout
from jsbackup.planning.interrupted import with_marker
from jsbackup.protocol.restore import RestoreSender
from tests.engine.restores import CONFIG, MESSAGES, archive, connection_to, state_of
from tests.harness.servers import ENDS, NEWEST, NatsServer

FAR_SECONDS = 20.0


@pytest.mark.nats
@pytest.mark.parametrize(
    ("version", "wire", "given"),
    [(ENDS[0], "v1", 1_000_000), (ENDS[0], "v1", None), (NEWEST, "v2", 1), (NEWEST, "v2", None)],
)
def test_of_a_restore_that_is_abandoned_nothing_stays_and_nothing_comes_back(
    version: str, wire: str, given: int | None
) -> None:
    """After some of the archive, and after all of it and its end, when the server is just about to make the stream."""
    config = with_marker(CONFIG, "a backup")

    async def main(server: NatsServer) -> None:
        connection = connection_to(server.url)
        async with connect_jetstream(connection) as js:
            sender = RestoreSender(config, state_of(MESSAGES))
            whole = b"".join(archive(wire, config))
            sender.receive_response((await js.link.request(*_request(sender, js))).data)
            assert sender.deliver_subject is not None
            for number, chunk in enumerate(cut_chunks([whole[:given]], sender.max_chunk)):
                # As fast as the connection takes it, as if all of it was on its way when its sender stopped.
                sender.window_size = 1 << 30
                sender.send(chunk, f"{js.link.new_inbox()}.{number}")
            if given is None:
                sender.finish(f"{js.link.new_inbox()}.end")
            for message in sender.to_send():
                await js.link.publish(message.subject, message.payload, message.reply)
            await asyncio.wait_for(abandon_restore(connection, sender), FAR_SECONDS)
            assert (await js.streams()).entries == {}
            # The server has done with it: nobody takes chunks any more, so nobody can make the stream again.
            with pytest.raises(NatsError, match="nothing answers"):
                for _ in range(10):  # 2.10 answers a moment before it stops to listen
                    with contextlib.suppress(NatsTimeout):
                        await js.link.request(sender.deliver_subject, b"", 1)
            assert (await js.streams()).entries == {}

    with NatsServer(version) as server:
        asyncio.run(main(server))


def _request(sender: RestoreSender, js: JetStream) -> tuple[str, bytes, float]:
    request = sender.request(js.prefix)
    return request.subject, request.payload, 10.0


def test_a_server_that_is_gone_is_waited_for_only_where_something_may_be_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing can be there where the request for the restore had no answer."""

    async def main() -> None:
        sender = RestoreSender(with_marker(CONFIG, "a backup"), state_of(MESSAGES))
        await asyncio.wait_for(abandon_restore(connection_to("nats://127.0.0.1:1"), sender), FAR_SECONDS)

    with caplog.at_level("WARNING"):
        asyncio.run(main())
    assert caplog.records == []
