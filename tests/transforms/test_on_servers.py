"""What the transforms take for granted about servers, asked of servers."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from jsbackup.errors import UsageError
from jsbackup.formats.header_block import fields
from jsbackup.transforms.copied_from import follow_headers, source_marks
from jsbackup.transforms.follow import map_stream_config
from jsbackup.transforms.subject_map import SubjectMap, SubjectMaps
from tests.harness.servers import MINORS, VERSIONS, NatsServer

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


async def _api(nc: Client, subject: str, request: dict[str, Any]) -> Any:
    return json.loads((await nc.request(f"$JS.API.{subject}", json.dumps(request).encode(), timeout=20)).data)


async def _headers_of_last(nc: Client, stream: str, messages: int) -> bytes:
    while True:
        answer = await _api(nc, f"STREAM.MSG.GET.{stream}", {"seq": messages})
        if "message" in answer:
            return base64.b64decode(answer["message"]["hdrs"])
        assert answer["error"]["code"] == 404, answer


@pytest.mark.nats
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_maps_mean_what_the_servers_transforms_mean(version: str) -> None:
    async def main(url: str) -> None:
        nc = await nats.connect(url)
        for number, text in enumerate(MAPS):
            source, _, dest = text.partition("=>")
            subject = next((s for s in SUBJECTS if s.startswith(source.split(".")[0])), "")
            config = {
                "name": f"S{number}",
                "subjects": [source],
                "subject_transform": {"src": source, "dest": dest},
            }
            if number in REFUSED:
                with pytest.raises(UsageError):
                    SubjectMap.parse(text)
                continue
            one = SubjectMap.parse(text)
            made = await _api(nc, f"STREAM.CREATE.S{number}", config)
            assert "error" not in made, made
            await _api_publish(nc, subject)
            stored = (await _api(nc, f"STREAM.MSG.GET.S{number}", {"seq": 1}))["message"]
            assert stored["subject"] == one.map(subject)
        await nc.close()

    with NatsServer(version) as server:
        asyncio.run(asyncio.wait_for(main(server.url), 60))


async def _api_publish(nc: Client, subject: str) -> None:
    assert "seq" in json.loads((await nc.request(subject, b"{}", timeout=20)).data)


@pytest.mark.nats
@pytest.mark.parametrize("version", MINORS)
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
        nc = await nats.connect(url)
        for name, subjects in origins.items():
            new = rename.get(name, name)
            made = await _api(nc, f"STREAM.CREATE.{new}", {"name": new, "subjects": move.cover(subjects)})
            assert "error" not in made, made
        made = await _api(nc, "STREAM.CREATE.ALL", config)
        assert "error" not in made, made
        found = {}
        for number, (name, subject) in enumerate(published.items(), start=1):
            await _api_publish(nc, move.map(subject))
            block = await _headers_of_last(nc, "ALL", number)
            found[name] = next(block[f.start : f.stop] for f in fields(block) if f.name == b"Nats-Stream-Source")
        await nc.close()
        return found

    with NatsServer(version) as server:
        before = asyncio.run(asyncio.wait_for(marked(server.url, config, {}, SubjectMaps()), 60))
    with NatsServer(version) as server:
        there = asyncio.run(asyncio.wait_for(marked(server.url, after, new_names, maps), 60))
    for name, mark in before.items():
        block = b"NATS/1.0\r\nNats-Stream-Source: " + mark + b"\r\n\r\n"
        followed = follow_headers(block, marks, lambda n: new_names.get(n, n), maps.map)
        without_identity = b" ".join(there[name].split(b" ")[:5])
        assert followed == b"NATS/1.0\r\nNats-Stream-Source: " + without_identity + b"\r\n\r\n"
