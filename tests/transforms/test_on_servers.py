"""What the transforms take for granted about servers, asked of servers."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from jsbackup.errors import UsageError
from jsbackup.formats.header_block import fields
from jsbackup.transforms.copied_from import follow_headers, source_marks
from jsbackup.transforms.follow import map_stream_config
from jsbackup.transforms.subject_map import SubjectMap, SubjectMaps
from tests.harness.api import call, connected
from tests.harness.filling import fill, publish
from tests.harness.servers import ENDS, NatsServer

MAPS = [
    "one.*.*=>to.$2.$1.$2",
    "two.>=>{{wildcard(1)}}.>",  # no wildcard of that number
    "three.*.x.>=>{{ Wildcard( 1 ) }}.y.>",
    "four.*=>four",
    "five.*=>five.$x.$.a$1.$1",
    "six=>{{partition(3)}}",  # the server's alone
]
REFUSED = (1, 5)
SUBJECTS = ["one.a.b", "three.a.x.b.c", "four.a", "five.ä", "six"]


@pytest.mark.nats
@pytest.mark.parametrize("version", ENDS)
def test_maps_mean_what_the_servers_transforms_mean(version: str) -> None:
    async def main(url: str) -> None:
        async with connected(url) as nc:
            for number, text in enumerate(MAPS):
                if number in REFUSED:
                    with pytest.raises(UsageError):
                        SubjectMap.parse(text)
                    continue
                source, _, dest = text.partition("=>")
                subject = next(s for s in SUBJECTS if s.startswith(source.split(".")[0]))
                transform = {"src": source, "dest": dest}
                await fill(nc, f"S{number}", 1, subject=subject, subjects=[source], subject_transform=transform)
                stored = (await call(nc, f"STREAM.MSG.GET.S{number}", {"seq": 1}))["message"]
                assert stored["subject"] == SubjectMap.parse(text).map(subject)

    with NatsServer(version) as server:
        asyncio.run(main(server.url))


@pytest.mark.nats
@pytest.mark.parametrize("version", ENDS)
def test_a_copy_is_marked_as_its_config_says_and_would_be_after_it_follows(version: str) -> None:
    """A stream with sources that is renamed and mapped has in its messages what servers write after the same config."""
    config = {
        "name": "ALL",
        "sources": [
            {"name": "PLAIN"},
            {"name": "FILTERED", "filter_subject": "f.a"},
            {
                "name": "TURNED",
                "subject_transforms": [{"src": "t.*", "dest": "turned.$1"}, {"src": "u.>", "dest": "u.>"}],
            },
        ],
    }
    origins = {"PLAIN": ["p.a"], "FILTERED": ["f.*"], "TURNED": ["t.*", "u.>"]}
    published = {"PLAIN": "p.a", "FILTERED": "f.a", "TURNED": "t.x"}
    maps = SubjectMaps.parse(["f.>=>ff.>", "t.*=>x.t.$1", "p.a=>q"])
    after = map_stream_config(config, maps, list(origins))
    new_names = {"PLAIN": "P2", "TURNED": "T2"}
    after["sources"] = [{**s, "name": new_names.get(s["name"], s["name"])} for s in after["sources"]]
    marks = source_marks(config, after, list(origins))

    async def marked(url: str, config: dict[str, Any], rename: dict[str, str], move: Any) -> dict[str, bytes]:
        """The mark of each source's message, as a server writes it."""
        found = {}
        async with connected(url) as nc:
            for name, subjects in origins.items():
                new = rename.get(name, name)
                await call(nc, f"STREAM.CREATE.{new}", {"name": new, "subjects": move.cover(subjects)})
            await call(nc, "STREAM.CREATE.ALL", config)
            for number, (name, subject) in enumerate(published.items(), start=1):
                await publish(nc, move.map(subject))
                while (await call(nc, "STREAM.INFO.ALL"))["state"]["messages"] < number:
                    await asyncio.sleep(0.05)
                stored = (await call(nc, "STREAM.MSG.GET.ALL", {"seq": number}))["message"]
                block = base64.b64decode(stored["hdrs"])
                found[name] = next(block[f.start : f.stop] for f in fields(block) if f.name == b"Nats-Stream-Source")
        return found

    with NatsServer(version) as server:
        before = asyncio.run(marked(server.url, config, {}, SubjectMaps()))
    with NatsServer(version) as server:
        there = asyncio.run(marked(server.url, after, new_names, maps))
    for name, mark in before.items():
        block = b"NATS/1.0\r\nNats-Stream-Source: " + mark + b"\r\n\r\n"
        followed = follow_headers(block, marks, lambda n: new_names.get(n, n), maps.map)
        without_identity = b" ".join(there[name].split(b" ")[:5])
        assert followed == b"NATS/1.0\r\nNats-Stream-Source: " + without_identity + b"\r\n\r\n"
