"""Resources of Terraform: every field where the provider has it, in its unit, what has no place by name, and back."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.exchange.config_files import ConfigSet, ExportedStream, StreamConfigs
from jsbackup.exchange.declared.terraform import read_terraform_files, write_terraform_files
from jsbackup.exchange.folder import Folder, NewFolder
from tests.exchange.declared.samples import (
    BUCKET,
    CONSUMER,
    JUNK,
    OBJECTS,
    ODD,
    OTHER_CONSUMER,
    OTHER_STREAM,
    SECOND,
    STREAM,
    some_of,
)
from tests.exchange.folders import tree

SCHEMAS = json.loads((Path(__file__).parents[2] / "data" / "terraform-jetstream.json").read_text())
_TYPES = {"string": str, "number": int, "bool": bool}
OURS = ("depends_on",)


def check(body: dict[str, Any], schema: dict[str, Any]) -> None:
    """Fails where the provider would refuse a field or its type."""
    for name, value in body.items():
        if name in OURS:
            continue
        kind = schema[name]
        if isinstance(kind, dict):
            blocks = value if isinstance(value, list) else [value]
            assert len(blocks) <= kind.get("most", len(blocks))
            for block in blocks:
                check(block, kind["block"])
        elif isinstance(kind, list):
            values = list(value.values()) if kind[0] == "map" else value
            assert all(type(one) is _TYPES[kind[1]] for one in values), name
        else:
            assert type(value) is _TYPES[kind], name


def write(path: Path, *streams: StreamConfigs) -> tuple[list[ExportedStream], dict[str, dict[str, Any]]]:
    with NewFolder(path, "token", 0o777) as new:
        written = write_terraform_files(new, streams)
        new.commit()
    resources: dict[str, dict[str, Any]] = {}
    for name, content in tree(path).items():
        document = json.loads(content)
        if name == "provider.tf.json":
            assert document["terraform"]["required_providers"] == {"jetstream": {"source": "nats-io/jetstream"}}
            continue
        for kind, labelled in document["resource"].items():
            for label, body in labelled.items():
                check(body, SCHEMAS[kind])
                assert resources.setdefault(kind, {}).setdefault(label, body) is body
    return written, resources


def read(path: Path) -> ConfigSet:
    with Folder.open(path) as root:
        return read_terraform_files(root, sorted(root.entries()))


def put(path: Path, document: Any, name: str = "a.tf.json") -> Path:
    path.mkdir(exist_ok=True)
    (path / name).write_text(document if isinstance(document, str) else json.dumps(document))
    return path


STREAM_FIELDS: dict[str, dict[str, Any]] = {
    "description": {"description": "all $${of} it: %%{yes}"},
    "subjects": {"subjects": ["a.>", "b"]},
    "retention": {"retention": "workqueue"},
    "max_consumers": {"max_consumers": 3},
    "max_msgs": {"max_msgs": 10},
    "max_bytes": {"max_bytes": 1 << 40},
    "max_age": {"max_age": 36 * 3600},
    "max_msgs_per_subject": {"max_msgs_per_subject": 4},
    "max_msg_size": {"max_msg_size": 1000},
    "discard": {"discard": "new"},
    "discard_new_per_subject": {"discard_new_per_subject": True},
    "storage": {"storage": "memory"},
    "num_replicas": {"replicas": 3},
    "no_ack": {"ack": False},
    "duplicate_window": {"duplicate_window": 90},
    "placement": {"placement_cluster": "east", "placement_tags": ["ssd"]},
    "mirror": {
        "mirror": {
            "name": "ORIGIN",
            "start_seq": 7,
            "start_time": "2026-01-02T03:04:05Z",
            "filter_subject": "a.>",
            "external": {"api": "$JS.hub.API", "deliver": "d"},
            "subject_transform": [{"source": "a.*", "destination": "b.{{wildcard(1)}}"}],
        }
    },
    "deny_delete": {"deny_delete": True},
    "deny_purge": {"deny_purge": True},
    "allow_rollup_hdrs": {"allow_rollup_hdrs": True},
    "compression": {"compression": "s2"},
    "first_seq": {"first_seq": 100},
    "subject_transform": {"subject_transform": {"source": "x.*", "destination": "y.{{wildcard(1)}}"}},
    "republish": {"republish_source": "p.>", "republish_destination": "q.>"},
    "allow_direct": {"allow_direct": True},
    "allow_msg_ttl": {"allow_msg_ttl": True},
    "subject_delete_marker_ttl": {"subject_delete_marker_ttl": 60},
    "allow_msg_counter": {"allow_msg_counter": True},
    "allow_atomic": {"allow_atomic": True},
    "allow_msg_schedules": {"allow_msg_schedules": True},
    "persist_mode": {"persist_mode": "async"},
    "consumer_limits": {"inactive_threshold": 5, "max_ack_pending": 9},
    "metadata": {"metadata": {"owner": "tests", "a$${b}": "", "yes": "1e3"}},
    "allow_batched": {"allow_batched": True},
}
CONSUMER_FIELDS: dict[str, dict[str, Any]] = {
    "description": {"description": "d"},
    "deliver_subject": {"delivery_subject": "to.me"},
    "deliver_group": {"delivery_group": "g"},
    "ack_wait": {"ack_wait": 20},
    "max_deliver": {"max_delivery": 4},
    "backoff": {"backoff": [1, 3]},
    "filter_subject": {"filter_subject": "a.b"},
    "filter_subjects": {"filter_subjects": ["a.c", "a.d"]},
    "replay_policy": {"replay_policy": "original"},
    "sample_freq": {"sample_freq": 30},
    "rate_limit_bps": {"ratelimit": 1 << 30},
    "max_ack_pending": {"max_ack_pending": 77},
    "max_waiting": {"max_waiting": 12},
    "flow_control": {"flow_control": True},
    "headers_only": {"headers_only": True},
    "idle_heartbeat": {"heartbeat": 5},
    "max_batch": {"max_batch": 6},
    "max_expires": {"max_expires": 8},
    "max_bytes": {"max_bytes": 4096},
    "inactive_threshold": {"inactive_threshold": 300},
    "priority_policy": {"priority_policy": "pinned_client"},
    "priority_timeout": {"priority_timeout": 60},
    "priority_groups": {"priority_groups": ["jobs"]},
    "num_replicas": {"replicas": 1},
    "mem_storage": {"memory": True},
    "metadata": {"metadata": {"owner": "tests"}},
}
STREAM_BASE = {"name": "ONE", "duplicate_window": 0, "allow_direct": False}
CONSUMER_BASE = {"durable_name": "c", "ack_policy": "all", "ack_wait": 0, "max_ack_pending": 0, "deliver_all": True}


@pytest.mark.parametrize("field", STREAM_FIELDS)
def test_a_field_of_a_stream_has_its_place_and_unit(tmp_path: Path, field: str) -> None:
    value = (STREAM | OTHER_STREAM)[field]
    _, resources = write(tmp_path / "out", StreamConfigs({"name": "ONE", field: value}, {}))
    assert resources == {"jetstream_stream": {"ONE": STREAM_BASE | STREAM_FIELDS[field]}}
    (stream,) = read(tmp_path / "out").streams()
    assert stream.config[field] == value


@pytest.mark.parametrize("field", CONSUMER_FIELDS)
def test_a_field_of_a_consumer_has_its_place_and_unit(tmp_path: Path, field: str) -> None:
    consumer = {"name": "c", "durable_name": "c", "ack_policy": "all", field: CONSUMER[field]}
    _, resources = write(tmp_path / "out", StreamConfigs({"name": "ONE"}, {"c": consumer}))
    of = {"stream_id": "${jetstream_stream.ONE.id}"}
    assert resources["jetstream_consumer"] == {"ONE--c": of | CONSUMER_BASE | CONSUMER_FIELDS[field]}
    (stream,) = read(tmp_path / "out").streams()
    assert stream.consumers["c"][field] == CONSUMER[field]


@pytest.mark.parametrize(
    ("policy", "more", "written"),
    [
        ("all", {}, {"deliver_all": True}),
        ("last", {}, {"deliver_last": True}),
        ("new", {}, {"deliver_new": True}),
        ("last_per_subject", {}, {"deliver_last_per_subject": True}),
        ("by_start_sequence", {"opt_start_seq": 5}, {"stream_sequence": 5}),
        ("by_start_time", {"opt_start_time": "2026-01-02T03:04:05Z"}, {"start_time": "2026-01-02T03:04:05Z"}),
    ],
)
def test_each_start_has_its_field(tmp_path: Path, policy: str, more: dict[str, Any], written: dict[str, Any]) -> None:
    config = {"name": "c", "durable_name": "c", "ack_policy": "all", "deliver_policy": policy, **more}
    _, resources = write(tmp_path / "out", StreamConfigs({"name": "ONE"}, {"c": config}))
    body = resources["jetstream_consumer"]["ONE--c"]
    assert {key: value for key, value in body.items() if key in written or key.startswith("deliver_")} == written
    (stream,) = read(tmp_path / "out").streams()
    assert {key: stream.consumers["c"].get(key) for key in config} == config


def test_the_tables_have_every_field() -> None:
    others = {"name", "sources", "mirror_direct", "sealed", "new_in_2_99"}
    assert STREAM_FIELDS.keys() | others == (STREAM | OTHER_STREAM).keys()
    starts = {"name", "durable_name", "ack_policy", "deliver_policy", "opt_start_seq"}
    assert CONSUMER_FIELDS.keys() | starts | OTHER_CONSUMER.keys() == (CONSUMER | OTHER_CONSUMER).keys()


def test_what_has_no_place_is_named(tmp_path: Path) -> None:
    config = {
        "name": "A",
        "max_age": 1500 * 10**6,
        "placement": {"tags": ["x"]},
        "mirror_direct": True,
        "sealed": True,
        "first_seq": 1 << 63,
        "sources": [{"name": "B", "opt_start_time": "2026-01-02T03:04:05.5Z"}, {"name": "C", "new": 1}],
        "new_in_2_99": {"deep": 1},
    }
    durable = {"ack_policy": "explicit", "max_ack_pending": 5}
    consumers = {
        "c": {"name": "c", "durable_name": "c", **durable, **OTHER_CONSUMER, "backoff": [10**8]},
        "s": {**durable, "durable_name": "s", "opt_start_seq": 4},
        "t": {
            **durable,
            "durable_name": "t",
            "deliver_policy": "by_start_time",
            "opt_start_time": "2026-01-02T03:04:05.000000001Z",
        },
        "p": {**durable, "durable_name": "p", "deliver_policy": "by_magic"},
        "brief": {"name": "brief", "ack_policy": "none"},
        "odd": {"durable_name": "odd", "ack_policy": "maybe"},
    }
    (written,), resources = write(tmp_path / "out", StreamConfigs(config, consumers))
    assert set(written.notes) == {
        "Terraform has no place for first_seq: too large a number",
        "Terraform has no place for mirror_direct: it ignores it without a mirror",
        "Terraform has no place for new_in_2_99.deep",
        "Terraform has no place for placement.tags: it ignores them without a cluster",
        "Terraform has no place for sealed",
        "Terraform has no place for sources[1].new",
        "Terraform takes whole seconds only: max_age 1.5s is written as 2s",
        "Terraform takes whole seconds only: sources[0].opt_start_time 2026-01-02T03:04:05.5Z is written as "
        "2026-01-02T03:04:05Z",
        "consumer brief is left out: it is not durable, and Terraform makes no others",
        "consumer c: Terraform has no place for new_in_2_99",
        "consumer c: Terraform has no place for pause_until",
        "consumer c: Terraform has no place for sourcing",
        "consumer c: Terraform takes whole seconds only: backoff 100ms is written as 1s",
        "consumer odd is left out: Terraform has no ack_policy maybe",
        "consumer p is left out: Terraform has no deliver_policy by_magic",
        "consumer s is left out: Terraform has no deliver_policy all",
        "consumer t: Terraform takes whole seconds only: opt_start_time 2026-01-02T03:04:05.000000001Z is written as "
        "2026-01-02T03:04:05Z",
    }
    assert resources["jetstream_consumer"].keys() == {"A--c", "A--t"}


def test_parts_of_a_second_never_widen_what_is_written(tmp_path: Path) -> None:
    """A limit that is left out would be none, and a source without its start would copy all."""
    config = {
        "name": "A",
        "max_age": 36 * 3600 * SECOND + SECOND // 2,
        "duplicate_window": 1,
        "sources": [
            {"name": "B", "opt_start_time": "2026-01-02T03:04:05.9+01:00"},
            {"name": "C", "opt_start_time": "2026-01-02T03:04:05.000Z"},
            {"name": "D", "opt_start_time": "2026-01-02T03:04:06.1Z"},
        ],
        "consumer_limits": {"inactive_threshold": (1 << 63) - 1},
    }
    c = {"ack_policy": "all", "ack_wait": 250 * 10**6, "backoff": [250 * 10**6, SECOND, 1500 * 10**6]}
    (written,), resources = write(tmp_path / "out", StreamConfigs(config, {"c": {"durable_name": "c", **c}}))
    body = resources["jetstream_stream"]["A"]
    assert (body["max_age"], body["duplicate_window"]) == (36 * 3600 + 1, 1)
    assert [source["start_time"] for source in body["source"]] == [
        "2026-01-02T02:04:05Z",
        "2026-01-02T03:04:05.000Z",
        "2026-01-02T03:04:06Z",
    ]
    assert body["inactive_threshold"] == 9223372036  # one more is more than the provider can multiply
    consumer = resources["jetstream_consumer"]["A--c"]
    assert (consumer["ack_wait"], consumer["backoff"]) == (1, [1, 1, 2])
    start = "Terraform takes whole seconds only"
    assert set(written.notes) == {
        f"{start}: max_age 36h0.5s is written as 36h1s",
        f"{start}: duplicate_window 1ns is written as 1s",
        f"{start}: consumer_limits.inactive_threshold 2562047h47m16.854775807s is written as 2562047h47m16s",
        f"{start}: sources[0].opt_start_time 2026-01-02T03:04:05.9+01:00 is written as 2026-01-02T02:04:05Z",
        f"{start}: sources[2].opt_start_time 2026-01-02T03:04:06.1Z is written as 2026-01-02T03:04:06Z",
        f"consumer c: {start}: ack_wait 250ms is written as 1s",
        f"consumer c: {start}: backoff 250ms, 1.5s is written as 1s, 2s",
    }


def test_a_bucket_with_parts_of_a_second_keeps_its_age(tmp_path: Path) -> None:
    config = BUCKET | {"max_age": 1500 * 10**6, "duplicate_window": 1500 * 10**6}
    (written,), resources = write(tmp_path / "out", StreamConfigs(config, {}))
    (body,) = resources[written.archive].values()
    assert (body["max_age"], body["duplicate_window"]) == (2, 2)
    assert "Terraform takes whole seconds only: max_age 1.5s is written as 2s" in written.notes


@settings(max_examples=40, deadline=None)
@given(some_of(STREAM), some_of({key: value for key, value in CONSUMER.items() if key != "opt_start_seq"}))
def test_what_is_written_is_read_back(config: dict[str, Any], consumer: dict[str, Any]) -> None:
    if "mirror" not in config:
        config.pop("mirror_direct", None)
    consumer |= {"deliver_policy": "by_start_sequence", "opt_start_seq": 3}
    with tempfile.TemporaryDirectory() as folder:
        (written,), _ = write(Path(folder) / "out", StreamConfigs(config, {"every": consumer}))
        (stream,) = read(Path(folder) / "out").streams()
    assert written.notes == ()
    assert {key: stream.config.get(key) for key in config} == config
    assert {key: stream.consumers["every"].get(key) for key in consumer} == consumer
    defaults = {"storage": "file", "retention": "limits", "discard": "old", "num_replicas": 1, "compression": "none"}
    added = {key: value for key, value in stream.config.items() if key not in config}
    assert all(value == defaults.get(key, -1) for key, value in added.items())


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("jetstream_kv_bucket", BUCKET),
        ("jetstream_kv_bucket", BUCKET | {"allow_msg_ttl": True, "subject_delete_marker_ttl": 2 * SECOND}),
        ("jetstream_obj_bucket", OBJECTS | {"compression": "s2", "max_age": SECOND, "duplicate_window": SECOND}),
        ("jetstream_stream", BUCKET | {"compression": "s2"}),
        ("jetstream_stream", OBJECTS | {"metadata": {"a": "b"}}),
    ],
)
def test_a_bucket_is_one_only_if_the_provider_makes_it_so(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    consumer = {"name": "c", "durable_name": "c", "ack_policy": "all"}
    (written,), resources = write(tmp_path / "out", StreamConfigs(config, {"c": consumer}))
    assert (written.archive, written.notes) == (kind, ())
    name = config["name"]
    body = resources["jetstream_consumer"][f"{name}--c"]
    if kind == "jetstream_stream":
        assert body["stream_id"] == f"${{jetstream_stream.{name}.id}}"
    else:
        assert (body["stream_id"], body["depends_on"]) == (f"JETSTREAM_STREAM_{name}", [f"{kind}.{name}"])
    (stream,) = read(tmp_path / "out").streams()
    nothing = (None, False, {}, "none", -1, "limits")
    assert {key: value for key, value in config.items() if value not in nothing} == {
        key: value for key, value in stream.config.items() if value not in nothing
    }
    assert stream.consumers["c"]["ack_policy"] == "all"


def test_names_of_resources_are_unique(tmp_path: Path) -> None:
    names = ["A-", "A", "1", "größe", "gr__e", "a b".replace(" ", "\u00a0")]
    consumer = {"ack_policy": "all"}
    streams = [
        StreamConfigs({"name": name}, {one: {**consumer, "durable_name": one} for one in ("-B", "B")}) for name in names
    ]
    _, resources = write(tmp_path / "out", *streams)
    assert {body["name"] for body in resources["jetstream_stream"].values()} == set(names)
    assert len(resources["jetstream_consumer"]) == 2 * len(names)
    assert {stream.name for stream in read(tmp_path / "out").streams()} == set(names)


OF_A = {"stream_id": "JETSTREAM_STREAM_A"}
WHOLE: Any = {
    "resource": [
        {"jetstream_stream": {"s": [{"name": "A", "subjects": ["a"], "source": {"name": "B"}, "lifecycle": {"x": 1}}]}},
        {"aws_instance": {"x": {"count": "${var.n}"}}},
        {"jetstream_consumer": {"c": {"stream_id": "JETSTREAM_STREAM_A", "durable_name": "c", "deliver_new": True}}},
        {"jetstream_kv_bucket": {"b": {"name": "b"}}},
        {"jetstream_kv_entry": {"e": {"bucket": "b", "key": "k", "value": "v"}}},
    ]
}


def test_what_people_write_is_read_with_the_defaults_of_the_provider(tmp_path: Path) -> None:
    found = read(put(tmp_path / "in", WHOLE))
    stream, bucket = found.streams()
    assert stream.config["sources"] == [{"name": "B"}]
    assert (stream.config["allow_direct"], stream.config["duplicate_window"]) == (True, 120 * SECOND)
    assert stream.consumers["c"] == {
        "name": "c",
        "durable_name": "c",
        "ack_policy": "explicit",
        "ack_wait": 30 * SECOND,
        "max_deliver": -1,
        "replay_policy": "instant",
        "max_ack_pending": 20000,
        "deliver_policy": "new",
    }
    assert (bucket.name, bucket.config["max_msgs_per_subject"]) == ("KV_b", 5)
    assert [failure.name for failure in found.failures] == ["jetstream_kv_entry.e"]


def stream_with(**body: Any) -> Any:
    return {"resource": {"jetstream_stream": {"s": {"name": "A", **body}}}}


def consumer_with(**body: Any) -> Any:
    return {"resource": {"jetstream_consumer": {"c": {"durable_name": "c", **body}}}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "a.tf.json is not JSON"),
        (
            '{"resource":{"jetstream_stream":{"s":{"name":"A"},"s":{"name":"B"}}}}',
            'a.tf.json has the name "s" twice in one object',
        ),
        ({"resource": 1}, "a.tf.json: resource is not an object"),
        ({"resource": {"jetstream_stream": {"s": 1}}}, "a.tf.json: jetstream_stream.s is not an object"),
        (stream_with(name=""), "a.tf.json: jetstream_stream.s has no name"),
        (stream_with(max_age="1h"), "a.tf.json: jetstream_stream.s: max_age: not a whole number"),
        (stream_with(max_age=1 << 62), "a.tf.json: jetstream_stream.s: max_age: too large a number"),
        (stream_with(max_age="${var.age}"), "a.tf.json: jetstream_stream.s: it has an expression"),
        (stream_with(count=2), "a.tf.json: jetstream_stream.s has an unknown field, count"),
        (
            stream_with(mirror=[{"name": "a"}, {"name": "b"}]),
            "a.tf.json: jetstream_stream.s: mirror: there may be only",
        ),
        (consumer_with(), "a.tf.json: jetstream_consumer.c: exactly one of deliver_all, deliver_last, "),
        (
            consumer_with(deliver_all=True, deliver_new=True),
            "a.tf.json: jetstream_consumer.c: exactly one of deliver_all, deliver_last, ",
        ),
        (consumer_with(deliver_all=True), "a.tf.json: jetstream_consumer.c: stream has no name"),
        (consumer_with(deliver_all=True, stream_id="A"), "a.tf.json: jetstream_consumer.c: stream_id does not begin"),
        (
            consumer_with(deliver_all=True, stream_id="${jetstream_stream.x.id}"),
            "a.tf.json: jetstream_consumer.c: it is of jetstream_stream.x, which is not in these files",
        ),
        (
            consumer_with(deliver_all=True, **OF_A),
            "a.tf.json: jetstream_consumer.c is of stream A, which has no config",
        ),
    ],
)
def test_what_people_write_wrong_is_said(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(put(tmp_path / "in", document)).streams()
    assert str(raised.value).startswith(message)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(json.dumps(WHOLE))), st.integers(0, 40), st.text(max_size=6) | st.sampled_from(JUNK))
def test_what_is_broken_ends_in_a_sentence(at: int, length: int, text: str) -> None:
    content = json.dumps(WHOLE)[:at] + text + json.dumps(WHOLE)[at + length :]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.tf.json").write_text(content, newline="")
        with suppress(UsageError):
            read(Path(folder)).streams()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*STREAM, *OTHER_STREAM]), st.sampled_from([*CONSUMER, *OTHER_CONSUMER]), ODD, ODD)
def test_configs_of_any_form_are_written_or_named(
    field: str, consumer_field: str, value: Any, consumer_value: Any
) -> None:
    config = STREAM | {field: value} | {"name": "A"}
    consumer = CONSUMER | {consumer_field: consumer_value}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "out", StreamConfigs(config, {"every": consumer}))
        with suppress(UsageError):  # a name, or a start, may be missing now
            read(Path(folder) / "out").streams()
