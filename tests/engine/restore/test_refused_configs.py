"""The target is asked about configurations: it answers as when it makes such a stream, and nothing is changed."""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import replace
from typing import Any

import pytest

from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.restore.target import may_update, refused_configs
from jsbackup.planning.configs.features import lacking_for_stream
from jsbackup.planning.configs.stream_config import against_config
from jsbackup.planning.model import IfExists, RestoreOptions, Target
from jsbackup.planning.plan import Decision, Facts, judge, shape
from jsbackup.planning.rules import Rule
from jsbackup.repository.manifest import BackupResult, Manifest, Source, StreamBackup
from tests.engine.restores import connection_to
from tests.harness.api import call, connected
from tests.harness.servers import ENDS, EXPLORE, NEWEST, VERSIONS, NatsServer
from tests.planning.test_plan import NOW, existing, stream

TARGET = Target((9,), True, {})
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
    *(sources(transforms(pair)) for pair in MAPPINGS[::5]),
    *(mirror(**transforms(pair)) for pair in MAPPINGS[1::5]),
    *(republish(*pair, subjects=["q.>"]) for pair in MAPPINGS[2::5]),
    *(mirror(**upstream) for upstream in UPSTREAMS[::3]),
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


_SWITCHES = (
    "no_ack",
    "deny_purge",
    "allow_rollup_hdrs",
    "allow_direct",
    "discard_new_per_subject",
    "allow_msg_ttl",
    "allow_atomic",
    "allow_msg_counter",
    "allow_msg_schedules",
    "allow_batched",
)


def _random_config(rng: random.Random) -> dict[str, Any]:
    """Return a configuration of a few fields with values that servers accept, alone or not at all."""
    pools: dict[str, list[Any]] = {
        "max_age": [0, 1, 10**8, 10**9, 3600 * 10**9, -1],
        "duplicate_window": [0, 1, 10**8, 10**9, 86_400 * 10**9, -1],
        "subject_delete_marker_ttl": [0, 5 * 10**8, 10**9, -1],
        "retention": ["limits", "interest", "workqueue"],
        "storage": ["file", "memory"],
        "discard": ["old", "new"],
        "persist_mode": ["default", "async"],
        "compression": ["none", "s2"],
        "max_msgs_per_subject": [-1, 0, 5],
        "max_msg_size": [-1, 100, (1 << 31) - 1, 1 << 31],
        "first_seq": [0, 1, 5, -1],
        "num_replicas": [0, 1, -1, 6],
        "subjects": [["e.>"], ["e.*", "e.>"], ["e.a", "e.a"], [">"], ["$JS.API.>"], ["$JS.EVENT.ADVISORY.>"], ["e..x"]],
        "description": ["words", "x" * 4096, "x" * 4097],
        "placement": [{"preferred": "x"}],
        "mirror": [{"name": "Q"}],
        "sources": [[{"name": "Q"}], [{"name": "Q"}, {"name": "Q"}]],
        "republish": [{"src": ">", "dest": "r.>"}, {"src": ">", "dest": ">"}],
        **{switch: [True] for switch in _SWITCHES},
    }
    chosen = rng.sample(sorted(pools), rng.randint(1, 5))
    return {field: rng.choice(pools[field]) for field in chosen}


_RNG = random.Random(int(os.environ.get("JSBACKUP_TEST_SEED", "38")))
CONFIGS += [_random_config(_RNG) for _ in range(300 if EXPLORE else 60)]


def _decided(entry: StreamBackup, target: Target = TARGET, **options: Any) -> Decision:
    manifest = Manifest("20261121T014500Z-000001", NOW, "t", Source("2.15.3"), BackupResult.COMPLETE, (entry,))
    shapes = shape(manifest, target, RestoreOptions(**options))
    return Decision(shapes, Facts(), judge(shapes, Facts()))


async def _asked(url: str, configs: list[dict[str, Any]]) -> list[str]:
    """Return the reasons for which `refused_configs` refuses a stream with each configuration; "" if it does not."""
    made = _decided(stream("E"))
    (action,) = made.plan.actions
    reasons = []
    async with connect_jetstream(connection_to(url)) as js:
        for config in configs:
            asked = replace(action, config=config)
            findings = [*against_config(asked, config, TARGET, RestoreOptions())]
            asking = replace(made, plan=replace(made.plan, stages=((asked,),)))
            findings = findings or [*(await refused_configs(js, asking, await may_update(js))).facts.findings]
            reasons.append(findings[0].reason if findings else "")
    return reasons


@pytest.mark.explore
@pytest.mark.nats
@pytest.mark.parametrize("version", VERSIONS if EXPLORE else ENDS)
def test_a_server_that_is_asked_answers_as_one_that_makes_the_stream(version: str) -> None:
    number = tuple(map(int, version.split(".")))
    with NatsServer(version) as server:
        answers = asyncio.run(_refused(server.url))
        reasons = asyncio.run(_asked(server.url, [_config(more) for more in CONFIGS]))
        compared = [
            (more, answer, reason)
            for more, answer, reason in zip(CONFIGS, answers, reasons, strict=True)
            if not lacking_for_stream(_config(more), number) and answer != "detected cycle"  # rules of the plan
        ]
    assert [one for one in compared if bool(one[1]) != bool(one[2])] == []
    refused = sum(bool(answer) for _, answer, _ in compared)
    assert 100 < refused < len(CONFIGS) - 100  # some of either kind


@pytest.mark.nats
def test_a_stream_that_is_there_stays_as_it_is() -> None:
    async def work(url: str) -> None:
        async with connected(url) as nc:
            for name in ("E", "jsbackup-probe"):
                await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
            before = [(await call(nc, f"STREAM.INFO.{name}"))["config"] for name in ("E", "jsbackup-probe")]
            assert await _asked(url, [{"name": "E", "subjects": ["other"], "max_msgs": 1}]) == [""]
            assert [(await call(nc, f"STREAM.INFO.{name}"))["config"] for name in ("E", "jsbackup-probe")] == before

    with NatsServer(NEWEST) as server:
        asyncio.run(work(server.url))


@pytest.mark.nats
def test_origins_that_are_there_now_are_not_compared() -> None:
    """The plan compares with those that will be there."""

    async def work(url: str) -> None:
        async with connected(url) as nc:
            await call(nc, "STREAM.CREATE.Q", {"name": "Q", "subjects": ["q"], "max_msg_size": 1000})
        small = {"name": "E", "max_msg_size": 10}
        both = [{**small, "mirror": {"name": "Q"}}, {**small, "sources": [{"name": "Q"}, {"name": "E"}]}]
        assert await _asked(url, both) == ["", ""]
        (reason,) = await _asked(url, [{**small, "sources": [{"name": "Q"}, {"name": "Q"}]}])
        assert reason == "the target refuses its configuration: duplicate source configuration detected (10140)"

    with NatsServer(NEWEST) as server:
        asyncio.run(work(server.url))


@pytest.mark.nats
def test_what_the_plan_refuses_is_not_asked_about() -> None:
    async def work(url: str) -> None:
        made = _decided(stream("E", retention="other"), Target((9,), False, {}), replicas=3)
        assert [finding.rule for finding in made.plan.refusals] == [Rule.SINGLE_SERVER]
        async with connect_jetstream(connection_to(url)) as js:
            assert await refused_configs(js, made, await may_update(js)) == made
            asking = replace(made, plan=replace(made.plan, refusals=()))
            (finding,) = (await refused_configs(js, asking, await may_update(js))).facts.findings
        assert finding.rule is Rule.SERVER_REFUSES and "--exclude E" in finding.hint

    with NatsServer(NEWEST) as server:
        asyncio.run(work(server.url))


@pytest.mark.nats
def test_a_stream_is_not_replaced_by_one_that_the_target_may_refuse() -> None:
    """The old stream is deleted before: then only a copy without subjects and consumers would be left."""
    few = '{user: a, password: a, permissions: {publish: {deny: "$JS.API.STREAM.UPDATE.>"}}}'
    accounts = f"accounts {{ A {{ users: [{few}], jetstream: enabled }} }}\nno_auth_user: a\n"
    there = Target((9,), True, {"E": existing("E", "E.>")})
    replacing: dict[str, Any] = {"if_exists": IfExists.REPLACE}

    async def work(url: str) -> list[list[Rule]]:
        made = [
            _decided(stream("E"), fields={"no_ack": True}),
            _decided(stream("E"), there, **replacing),
            _decided(stream("E"), there, **replacing, fields={"no_ack": True}),
        ]
        async with connect_jetstream(connection_to(url)) as js:
            return [
                [found.rule for found in (await refused_configs(js, one, await may_update(js))).plan.refusals]
                for one in made
            ]

    with NatsServer(NEWEST, config=accounts) as server:
        assert asyncio.run(work(server.url)) == [[], [], [Rule.NOT_ALLOWED]]
