"""What servers refuse about mirrors, sources, transforms and republishing, compared with servers of each minor."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from jsbackup.planning.configs.features import lacking_for_stream
from jsbackup.planning.configs.server_rules import mapping_problems
from jsbackup.times import ZERO_TIME
from jsbackup.transforms.rename import RenameOptions
from tests.harness.api import connected
from tests.harness.servers import VERSIONS, NatsServer
from tests.planning.test_plan import plan, stream

BASE: dict[str, Any] = {"name": "E", "subjects": ["e.>"], "storage": "file"}
AFAR = {"api": "$JS.afar.API", "deliver": "afar"}
MAPPINGS = [
    *((source, "t.>") for source in ("e.>", "e.*", "e.*.>", "", ">", "e.> ", "e.>.x")),
    *((source, "t") for source in ("e.1", "e.*", "e.>", "", "e..x", "e x", " ")),
    *(("e.*", f"t.{token}") for token in ("", "*", "$0", "$1", "$2", "$x", "$1x", "$-1", "$+1", "$", "", " x", "a b")),
    *(("e.*.*", f"{token}.t") for token in ("$2", "$3", "{{wildcard(2)}}", "{{wildcard(3)}}", "{{partition(9,2,1)}}")),
    *(
        ("e.*", f"t.{{{{{function}}}}}")
        for function in (
            "wildcard(1)",
            " Wildcard ( 1 ) ",
            "WILDCARD(1)",
            "wildcard(0)",
            "wildcard()",
            "wildcard(1,1)",
            "wildcard(x)",
            "wildcard(1_0)",
            "wildcard",
            "nothing(1)",
            "x wildcard(1)",
            "partition(3,1)",
            "partition(3,2)",
            "partition(3, 1, 1)",
            "partition(3)",
            "partition()",
            "partition(x,1)",
            "partition(2147483648,1)",
            "partition(2147483647,1)",
            "random(4)",
            "random(4,1)",
            "left(1,2)",
            "left(2,2)",
            "right(1,2)",
            "split(1,-)",
            "split(1, -)",
            "split(1,a b)",
            "split(1)",
            "split(2,-)",
            "splitfromleft(1,2)",
            "SplitFromRight(1,2)",
            "splitFromRight(1)",
            "slicefromleft(1,x)",
            "slicefromright(1,2,3)",
            "slicefromright(1,2147483648)",
        )
    ),
    *(("e.*", destination) for destination in ("", "{{}}.t", "t.{{wildcard(1)", ">", "*", "t.>.x", "$1")),
    *(("e.1", f"t.{token}") for token in ("$1", "$0", "{{partition(3)}}", "{{partition(3,1)}}", "{{random(4)}}", "$x")),
    ("e.>", "t.$1.>"),
    ("e.*.>", "t.$1.>"),
    ("e.*.>", "t.$2.>"),
    ("e.>", "t.{{partition(3,0)}}.>"),
]


def mirror(name: str = "Q", **more: Any) -> dict[str, Any]:
    return {"subjects": None, "mirror": {"name": name, **more}}


def sources(*some: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"sources": [{"name": "Q", **one} for one in some], **more}


def transforms(*pairs: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"subject_transforms": [{"src": source, "dest": destination} for source, destination in pairs], **more}


def republish(source: str, destination: str, mapped: tuple[str, str] | None = None, **more: Any) -> dict[str, Any]:
    transform = {} if mapped is None else {"subject_transform": {"src": mapped[0], "dest": mapped[1]}}
    return {"republish": {"src": source, "dest": destination}, **transform, **more}


OVERLAPS = [
    (("a.*", "b.$1"), ("a.>", "c.>")),
    (("a.>", "b.>"), ("a.*", "c.$1")),
    (("a.*.x", "b.$1"), ("a.y.*", "c.$1")),
    (("a", "b"), ("a", "c")),
    (("a", "b"), ("c", "d")),
    (("", "b.>"), ("a", "c")),
    (("", "b.>"), ("", "c.>")),
    (("", "b.>"), (">", "c.>")),
]
CONSUMER = {"name": "c", "deliver_subject": "d"}
UPSTREAMS: list[dict[str, Any]] = [
    *({"name": name} for name in ("Q.x", "Q/x", "Q\\x", "Q x", "*", "Q" * 300, "E")),
    *({"name": name, "external": AFAR} for name in ("Q.x", "Q/x", "E")),
    *({"filter_subject": wanted} for wanted in ("a", "a..b", "a b", "a.*", ">", "a.>.b")),
    *({"external": {**AFAR, "api": api}} for api in ("", "$JS.*.API", "$JS.API", "$JS.API.x", "a b", "a..b", ">")),
    *({"external": {**AFAR, "deliver": deliver}} for deliver in ("", "d.>", "d..x", "d.*", "d x")),
    *({"opt_start_seq": number} for number in (0, 1, -1, (1 << 64) - 1, 1 << 64)),
    *({"opt_start_time": time} for time in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00+01:00", "2026-01-01", "")),
    transforms(("a", "b"), filter_subject="a"),
    transforms(("a", "b"), filter_subject="a", external=AFAR),
    transforms(("a.*", "b.$2"), external=AFAR),
    *(transforms(*pairs) for pairs in OVERLAPS),
    *(transforms(*pairs, external=AFAR) for pairs in OVERLAPS),
    *(
        {"consumer": {**CONSUMER, **more}}
        for more in ({}, {"name": "c.x"}, {"name": ""}, {"deliver_subject": ""}, {"deliver_subject": "d.*"})
    ),
    {"consumer": CONSUMER, "filter_subject": "a"},
    {"consumer": CONSUMER, "opt_start_seq": 2},
    {"consumer": CONSUMER, "opt_start_time": "2026-01-01T00:00:00Z"},
    {"consumer": CONSUMER, **transforms(("a", "b"))},
]
CONFIGS: list[dict[str, Any]] = [
    *({"subject_transform": {"src": one, "dest": other}} for one, other in MAPPINGS),
    *(sources(transforms(pair)) for pair in MAPPINGS),
    *(mirror(**transforms(pair)) for pair in MAPPINGS),
    *(republish(*pair, subjects=["q.>"]) for pair in MAPPINGS),
    *(mirror(**upstream) for upstream in UPSTREAMS),
    *(sources(upstream) for upstream in UPSTREAMS),
    # The same source twice.
    sources({}, {}),
    sources({}, {"filter_subject": ">"}),
    sources({"filter_subject": "a"}, {"filter_subject": "a"}),
    sources({"filter_subject": "a"}, {"filter_subject": "b"}),
    sources({"filter_subject": "a"}, {"filter_subject": "*"}),
    sources({"opt_start_seq": 1}, {"opt_start_seq": 2}),
    sources({}, {"external": AFAR}),
    sources({"external": AFAR}, {"external": {**AFAR, "deliver": "d"}}),
    sources({"external": AFAR}, {"external": {**AFAR, "api": "$JS.other.API"}}),
    sources(transforms(("a", "b")), transforms(("a", "b"))),
    sources(transforms(("a", "b")), transforms(("a", "c"))),
    sources(transforms(("", "")), {}),
    sources({"consumer": CONSUMER}, {"consumer": {**CONSUMER, "deliver_subject": "e"}}),
    sources({"consumer": CONSUMER}, {"consumer": {**CONSUMER, "name": "c2"}}),
    sources({"consumer": CONSUMER}, {"consumer": CONSUMER, **transforms(("a", "b"))}),
    # Cycles.
    sources({"name": "E", "filter_subject": "e.a"}),
    sources({"name": "E", "filter_subject": "f.a"}),
    sources({"name": "E"}, subjects=None),
    sources({"name": "E", "filter_subject": "a"}, subjects=None),
    sources({"name": "E", **transforms(("f.a", "g"))}),
    republish(">", "e.x"),
    republish("e.a", "e.>"),
    republish(">", "E.>", subjects=None),
    republish(">", "E", subjects=None),
    republish("a", "E", subjects=None),
    republish(">", ">"),
    republish("", ">"),
    republish(">", ">", ("e.>", "t.>")),
    republish("", ">", ("e.>", "t.>")),
    republish(">", ">", ("e.>", "e.t.>")),
    republish(">", ">", ("e.>", "t.>"), subjects=["e.>", "f.>"]),
    republish(">", ">", ("e.*", "t.$1"), subjects=["e.*"]),
    republish(">", ">", ("e.*", "t.{{partition(3,1)}}"), subjects=["e.*"]),
    republish(">", ">", ("e.1", "t.1"), subjects=["e.1"]),
    republish("a", "r x"),
]


def _config(more: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in {**BASE, **more}.items() if value is not None}


_DELETING = "error creating store for stream"  # the folder of the one before is still being deleted


async def _refused(url: str) -> list[str]:
    """Return the server's answers: "" if it makes such a stream."""
    found = []
    async with connected(url) as nc:
        for more in CONFIGS:
            said = _DELETING
            while said == _DELETING:
                reply = await nc.request("$JS.API.STREAM.CREATE.E", json.dumps(_config(more)).encode(), timeout=10)
                said = json.loads(reply.data).get("error", {}).get("description", "")
            if not said:
                await nc.request("$JS.API.STREAM.DELETE.E", b"", timeout=10)
            found.append(said)
    return found


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.parametrize("version", VERSIONS)
def test_the_rules_are_those_of_servers(version: str) -> None:
    with NatsServer(version) as server:
        answers = asyncio.run(_refused(server.url))
    number = tuple(map(int, version.split(".")))
    wrong, refused = [], 0
    for more, answer in zip(CONFIGS, answers, strict=True):
        config = _config(more)
        if lacking_for_stream(config, number) or answer == "detected cycle":  # other rules
            continue
        ours = [reason for _, reason in mapping_problems("E", config, number)]
        refused += bool(answer)
        if bool(answer) != bool(ours):
            wrong.append((more, answer, ours))
    assert not wrong
    assert 100 < refused < len(CONFIGS) - 100  # some of either kind


def test_what_a_server_had_accepted_is_a_warning() -> None:
    """Should a rule of ours be wrong, the stream can be restored."""
    config = {"sources": [{"name": "Q"}, {"name": "Q", "filter_subject": ">"}]}
    planned = plan(stream("S", **config))
    (warning,) = [one for one in planned.actions[0].warnings if one.rule == "may-be-refused"]
    assert not planned.refusals
    assert warning.reason == "would have the source Q twice, with the same filter and transforms"
    assert planned.actions[0].config["sources"] == config["sources"]
    (refusal,) = plan(stream("S"), fields=config).refusals
    assert refusal.rule == "server-refuses"


def test_a_configuration_of_no_server_is_checked_that_nothing_changes() -> None:
    config = {"sources": [{"name": "Q"}, {"name": "Q", "filter_subject": ">"}]}
    imported = replace(stream("S", **config), created=ZERO_TIME)
    (refusal,) = plan(imported).refusals
    assert refusal.rule == "server-refuses"
    assert refusal.reason == "would have the source Q twice, with the same filter and transforms"
    assert refusal.hint == (
        "Change it with --set sources=…, leave it out with --set sources=null, or leave the stream out "
        "with --exclude S."
    )
    assert not plan(imported, fields={"sources": None}).refusals


def test_the_name_that_a_stream_gets_counts() -> None:
    config = {"subjects": [], "republish": {"src": "A", "dest": "B"}}
    assert not plan(stream("A", **config)).refusals
    (refusal,) = plan(stream("A", **config), renames=RenameOptions.parse(["A=B"])).refusals
    assert refusal.reason == "would republish to B, which overlaps with its subject B: a cycle"


@pytest.mark.parametrize("wrong", [1, "x", True, [], {}, [1], ["x"], [{}], [{"name": 1}], [None]])
def test_a_configuration_of_other_types_is_no_bug(wrong: Any) -> None:
    inner = {"name": wrong, "filter_subject": wrong, "subject_transforms": wrong, "external": wrong, "consumer": wrong}
    for upstream in (wrong, inner, {"name": "Q", **inner}, {"opt_start_seq": wrong, "opt_start_time": wrong}):
        config = {"sources": [upstream], "mirror": upstream, "subjects": wrong, "subject_transform": wrong}
        for republished in (wrong, {"src": wrong, "dest": wrong}):
            list(mapping_problems("E", {**config, "republish": republished}, (2, 15, 2)))
    list(mapping_problems("E", {"sources": wrong, "subject_transform": {"src": wrong, "dest": wrong}}, (2, 15, 2)))
