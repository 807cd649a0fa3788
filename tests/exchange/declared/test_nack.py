"""Resources of NACK: every field where its definition has it, what has no place by name, and back."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.exchange.config_files import ConfigSet, ExportedStream, StreamConfigs
from jsbackup.exchange.declared.nack import read_nack_files, write_nack_files
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

SCHEMAS = json.loads((Path(__file__).parents[2] / "data" / "nack-v1beta2.json").read_text())


def write(path: Path, *streams: StreamConfigs) -> tuple[list[ExportedStream], list[dict[str, Any]]]:
    with NewFolder(path, "token", 0o777) as new:
        written = write_nack_files(new, streams)
        new.commit()
    documents = [one for content in tree(path).values() for one in yaml.safe_load_all(content)]
    for document in documents:
        assert document["apiVersion"] == "jetstream.nats.io/v1beta2"
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", document["metadata"]["name"])
        jsonschema.validate(document["spec"], SCHEMAS[document["kind"]])
    return written, documents


def read(path: Path) -> ConfigSet:
    with Folder.open(path) as root:
        return read_nack_files(root, sorted(root.entries()))


def spec_of(tmp_path: Path, config: dict[str, Any], consumer: dict[str, Any] | None = None) -> dict[str, Any]:
    consumers = {} if consumer is None else {consumer["name"]: consumer}
    _, documents = write(tmp_path / "out", StreamConfigs(config, consumers))
    found: dict[str, Any] = documents[-1]["spec"]
    return found


def put(path: Path, content: str, name: str = "a.yaml") -> Path:
    path.mkdir(exist_ok=True)
    (path / name).write_text(content)
    return path


STREAM_FIELDS = {
    "description": ("description", STREAM["description"]),
    "subjects": ("subjects", ["a.>", "b"]),
    "retention": ("retention", "workqueue"),
    "max_consumers": ("maxConsumers", 3),
    "max_msgs": ("maxMsgs", 10),
    "max_bytes": ("maxBytes", 1 << 40),
    "max_age": ("maxAge", "36h"),
    "max_msgs_per_subject": ("maxMsgsPerSubject", 4),
    "max_msg_size": ("maxMsgSize", 1000),
    "discard": ("discard", "new"),
    "discard_new_per_subject": ("discardPerSubject", True),
    "storage": ("storage", "memory"),
    "num_replicas": ("replicas", 3),
    "no_ack": ("noAck", True),
    "duplicate_window": ("duplicateWindow", "1m30s"),
    "placement": ("placement", {"cluster": "east", "tags": ["ssd"]}),
    "mirror": (
        "mirror",
        {
            "name": "ORIGIN",
            "optStartSeq": 7,
            "optStartTime": "2026-01-02T03:04:05Z",
            "filterSubject": "a.>",
            "externalApiPrefix": "$JS.hub.API",
            "externalDeliverPrefix": "d",
            "subjectTransforms": [{"source": "a.*", "dest": "b.{{wildcard(1)}}"}],
        },
    ),
    "deny_delete": ("denyDelete", True),
    "deny_purge": ("denyPurge", True),
    "allow_rollup_hdrs": ("allowRollup", True),
    "compression": ("compression", "s2"),
    "first_seq": ("firstSequence", 100),
    "subject_transform": ("subjectTransform", {"source": "x.*", "dest": "y.{{wildcard(1)}}"}),
    "republish": ("republish", {"source": "p.>", "destination": "q.>"}),
    "allow_direct": ("allowDirect", True),
    "mirror_direct": ("mirrorDirect", True),
    "allow_msg_ttl": ("allowMsgTtl", True),
    "subject_delete_marker_ttl": ("subjectDeleteMarkerTtl", "1m"),
    "allow_msg_counter": ("allowMsgCounter", True),
    "allow_atomic": ("allowAtomicPublish", True),
    "allow_msg_schedules": ("allowMsgSchedules", True),
    "persist_mode": ("persistMode", "async"),
    "consumer_limits": ("consumerLimits", {"inactiveThreshold": "5s", "maxAckPending": 9}),
    "metadata": ("metadata", STREAM["metadata"]),
    "sealed": ("sealed", True),
}
CONSUMER_FIELDS = {
    "description": ("description", "d"),
    "deliver_policy": ("deliverPolicy", "byStartSequence"),
    "opt_start_seq": ("optStartSeq", 5),
    "deliver_subject": ("deliverSubject", "to.me"),
    "deliver_group": ("deliverGroup", "g"),
    "ack_wait": ("ackWait", "20s"),
    "max_deliver": ("maxDeliver", 4),
    "backoff": ("backoff", ["1s", "3s"]),
    "filter_subject": ("filterSubject", "a.b"),
    "filter_subjects": ("filterSubjects", ["a.c", "a.d"]),
    "replay_policy": ("replayPolicy", "original"),
    "sample_freq": ("sampleFreq", "30%"),
    "rate_limit_bps": ("rateLimitBps", 1 << 30),
    "max_ack_pending": ("maxAckPending", 77),
    "max_waiting": ("maxWaiting", 12),
    "flow_control": ("flowControl", True),
    "headers_only": ("headersOnly", True),
    "idle_heartbeat": ("heartbeatInterval", "5s"),
    "max_batch": ("maxRequestBatch", 6),
    "max_expires": ("maxRequestExpires", "8s"),
    "max_bytes": ("maxRequestMaxBytes", 4096),
    "inactive_threshold": ("inactiveThreshold", "5m"),
    "priority_policy": ("priorityPolicy", "pinned_client"),
    "priority_timeout": ("pinnedTtl", "1m"),
    "priority_groups": ("priorityGroups", ["jobs"]),
    "num_replicas": ("replicas", 1),
    "mem_storage": ("memStorage", True),
    "metadata": ("metadata", {"owner": "tests"}),
    "pause_until": ("pauseUntil", "2070-01-01T00:00:00Z"),
}


@pytest.mark.parametrize("field", STREAM_FIELDS)
def test_a_field_of_a_stream_has_its_place_and_unit(tmp_path: Path, field: str) -> None:
    name, value = STREAM_FIELDS[field]
    spec = spec_of(tmp_path, {"name": "ONE", "max_age": 0, field: (STREAM | OTHER_STREAM)[field]})
    assert spec == {"name": "ONE", "storage": "file", "maxAge": "0s", name: value}
    (stream,) = read(tmp_path / "out").streams()
    assert stream.config[field] == (STREAM | OTHER_STREAM)[field]


@pytest.mark.parametrize("field", CONSUMER_FIELDS)
def test_a_field_of_a_consumer_has_its_place_and_unit(tmp_path: Path, field: str) -> None:
    name, value = CONSUMER_FIELDS[field]
    names = {"name": "c", "durable_name": "c", "ack_policy": "all"}
    consumer = {**names, field: (CONSUMER | OTHER_CONSUMER)[field]}
    spec = spec_of(tmp_path, {"name": "ONE"}, consumer)
    spec.pop("pinnedTtl") if field == "priority_policy" else None
    assert spec == {"streamName": "ONE", "durableName": "c", "ackPolicy": "all", "ackWait": "0s", name: value}
    (stream,) = read(tmp_path / "out").streams()
    assert stream.consumers["c"][field] == consumer[field]


def test_the_tables_have_every_field() -> None:
    assert STREAM_FIELDS.keys() | {"name", "sources", "allow_batched", "new_in_2_99"} == (STREAM | OTHER_STREAM).keys()
    assert CONSUMER_FIELDS.keys() | {"name", "durable_name", "ack_policy", "sourcing", "new_in_2_99"} == (
        (CONSUMER | OTHER_CONSUMER).keys()
    )


def test_what_has_no_place_is_named(tmp_path: Path) -> None:
    config = STREAM | OTHER_STREAM
    config |= {
        "republish": {"src": "a", "dest": "b", "headers_only": True},
        "sources": [{"name": "A", "consumer": {"name": "c", "deliver_subject": "d"}}],
        "placement": {"cluster": "c", "preferred": "n1"},
        "first_seq": 1 << 63,
    }
    consumers = {
        "every": CONSUMER | OTHER_CONSUMER | {"sample_freq": "often"},
        "flow": {"name": "flow", "durable_name": "flow", "ack_policy": "flow_control"},
        "brief": {"name": "brief", "ack_policy": "none"},
        "magic": {"durable_name": "magic", "ack_policy": "none", "deliver_policy": "by_magic"},
    }
    (written,), documents = write(tmp_path / "out", StreamConfigs(config, consumers))
    assert set(written.notes) == {
        "NACK has no place for allow_batched",
        "NACK has no place for first_seq: too large a number",
        "NACK has no place for new_in_2_99.deep",
        "NACK has no place for placement.preferred",
        "NACK has no place for republish.headers_only",
        "NACK has no place for sources[0].consumer.name",
        "NACK has no place for sources[0].consumer.deliver_subject",
        "consumer every: NACK has no place for new_in_2_99",
        "consumer every: NACK has no place for sample_freq: not a percentage",
        "consumer every: NACK has no place for sourcing",
        "consumer flow is left out: NACK has no ack_policy flow_control",
        "consumer brief is left out: it is not durable, and NACK makes no others",
        "consumer magic is left out: NACK has no deliver_policy by_magic",
    }
    assert [one["kind"] for one in documents] == ["Stream", "Consumer"]


def test_what_is_unset_is_not_missed(tmp_path: Path) -> None:
    unset = {"sealed": False, "allow_batched": False, "placement": {}, "new": 0, "metadata": {"_nats.ver": "2.15"}}
    consumer = {"name": "c", "durable_name": "c", "ack_policy": "none", "pause_until": "0001-01-01T00:00:00Z"}
    (written,), _ = write(tmp_path / "out", StreamConfigs({"name": "A", **unset}, {"c": consumer}))
    assert written.notes == ()


def test_a_pinned_client_keeps_its_policy(tmp_path: Path) -> None:
    consumer = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "priority_policy": "pinned_client"}
    assert spec_of(tmp_path, {"name": "A"}, consumer)["pinnedTtl"] == "0s"


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(some_of(STREAM), some_of(CONSUMER))
def test_what_is_written_is_read_back(config: dict[str, Any], consumer: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (written,), _ = write(Path(folder) / "out", StreamConfigs(config, {"every": consumer}))
        (stream,) = read(Path(folder) / "out").streams()
    assert written.notes == ()
    assert {key: stream.config.get(key) for key in config} == config
    assert {key: stream.consumers["every"].get(key) for key in consumer} == consumer
    defaults = {"storage": "file", "retention": "limits", "discard": "old", "num_replicas": 1}
    added = {key: value for key, value in stream.config.items() if key not in config}
    assert all(value == defaults.get(key, -1) for key, value in added.items())


@pytest.mark.parametrize(
    ("kind", "config", "spec"),
    [
        (
            "KeyValue",
            BUCKET | {"allow_msg_ttl": True, "subject_delete_marker_ttl": 2 * SECOND, "compression": "s2"},
            {
                "bucket": "settings",
                "maxValueSize": 100,
                "history": 5,
                "ttl": "1h",
                "limitMarkerTtl": 2 * SECOND,
                "maxBytes": 4096,
                "storage": "file",
                "replicas": 1,
                "compression": True,
            },
        ),
        (
            "ObjectStore",
            OBJECTS | {"metadata": {"a": "b"}},
            {"bucket": "reports", "storage": "file", "replicas": 1, "metadata": {"a": "b"}},
        ),
        ("Stream", BUCKET | {"deny_purge": True}, None),
        ("Stream", BUCKET | {"metadata": {"a": ""}}, None),
        ("Stream", BUCKET | {"allow_direct": False}, None),
        ("Stream", BUCKET | {"max_msgs_per_subject": 100}, None),
        ("Stream", BUCKET | {"duplicate_window": SECOND}, None),
        ("Stream", BUCKET | {"name": "KV_größe", "subjects": ["$KV.größe.>"]}, None),
        ("Stream", OBJECTS | {"deny_delete": True}, None),
    ],
)
def test_a_bucket_is_one_only_if_a_client_makes_it_so(
    tmp_path: Path, kind: str, config: dict[str, Any], spec: dict[str, Any] | None
) -> None:
    (written,), (document,) = write(tmp_path / "out", StreamConfigs(config, {}))
    assert (written.archive, written.notes, document["kind"]) == (kind, (), kind)
    assert spec is None or document["spec"] == spec
    (stream,) = read(tmp_path / "out").streams()
    nothing = (None, False, {}, "none", -1, "limits")
    assert {key: value for key, value in config.items() if value not in nothing} == {
        key: value for key, value in stream.config.items() if value not in nothing and (key in config or value != "old")
    }


def test_names_are_unique_and_do_not_depend_on_the_order(tmp_path: Path) -> None:
    names = ["ORDERS", "orders", "Orders", "a_b", "a-b", "größe", "ü", "N" * 255]
    _, documents = write(tmp_path / "out", *(StreamConfigs({"name": name}, {}) for name in names))
    by_name = {one["spec"]["name"]: one["metadata"]["name"] for one in documents}
    assert len(set(by_name.values())) == len(names)
    assert by_name["orders"] == "orders" and by_name["a-b"] == "a-b"
    assert re.fullmatch(r"orders-[0-9a-f]{8}", by_name["ORDERS"])
    assert len(by_name["N" * 255]) == 200
    assert spec_of(tmp_path / "out", {"name": "ORDERS"})["name"] == "ORDERS"
    assert (tmp_path / "out" / "out" / "stream-orders.yaml").exists()


LISTED = """
apiVersion: v1
kind: List
items:
- apiVersion: jetstream.nats.io/v1beta2
  kind: Stream
  metadata: {name: a, namespace: x, annotations: {"jetstream.nats.io/stream-state": "{}"}}
  spec:
    name: A
    subjects: [a.*]
    maxAge: 1h30m
    account: acc
    preventDelete: true
    mirror: {name: B, optStartTime: 2026-01-02T03:04:05Z}
  status: {observedGeneration: 1}
- apiVersion: jetstream.nats.io/v1beta2
  kind: Consumer
  metadata: {name: a-c}
  spec: {streamName: A, durableName: c}
- apiVersion: v1
  kind: ConfigMap
  data: {a: b}
- apiVersion: jetstream.nats.io/v1beta1
  kind: StreamTemplate
  metadata: {name: old}
- {apiVersion: jetstream.nats.io/v1beta2, kind: KeyValue, metadata: {name: m}, spec: {bucket: m, mirror: {name: o}}}
"""


def test_what_kubectl_prints_is_read_with_the_defaults_of_the_definition(tmp_path: Path) -> None:
    found = read(put(tmp_path / "in", LISTED))
    (stream,) = found.streams()
    assert stream.config == {
        "name": "A",
        "subjects": ["a.*"],
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msg_size": -1,
        "max_age": 5400 * SECOND,
        "discard": "old",
        "storage": "memory",
        "num_replicas": 1,
        "mirror": {"name": "B", "opt_start_time": "2026-01-02T03:04:05Z"},
    }
    assert stream.consumers["c"] == {
        "name": "c",
        "durable_name": "c",
        "deliver_policy": "all",
        "ack_policy": "none",
        "ack_wait": 1,
        "replay_policy": "instant",
    }
    assert [(one.name, "not supported" in str(one.error)) for one in found.failures] == [("old", True), ("m", False)]


HEAD = "apiVersion: jetstream.nats.io/v1beta2\nkind: Stream\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "a.yaml is not YAML: "),
        ("a: &x [1]\nb: *x\n", "a.yaml is not YAML: it has aliases"),
        ("a: 1\na: 2\n", "a.yaml is not YAML: it has a name twice in line 1"),
        ("!!python/object/apply:os.system [ls]", "a.yaml is not YAML: could not determine a constructor"),
        ("[" * 40 + "]" * 40, "a.yaml is not YAML: it is nested deeper"),
        ("- 1\n", "a.yaml has a document that is no resource of Kubernetes"),
        ("? [a]\n: 1\n", "a.yaml is not YAML: a name is not a text"),
        (f"a: {'9' * 5000}", "a.yaml is not YAML: it has a value that cannot be read"),
        (HEAD, "a.yaml: Stream a has no spec"),
        (HEAD + "spec: {}", "a.yaml: Stream a has no name"),
        (HEAD + "spec: {name: a.b}", "a.yaml: Stream a has no name that NATS allows: 'a.b'"),
        (HEAD + "spec: {name: a, maxMsg: 1}", "a.yaml: Stream a has an unknown field, maxMsg"),
        (HEAD + "spec: {name: a, maxAge: 7d}", "a.yaml: Stream a: maxAge: not a duration of Go: '7d'"),
        (HEAD + "spec: {name: a, maxMsgs: true}", "a.yaml: Stream a: maxMsgs: not a whole number"),
        (HEAD + "spec: {name: a, storage: disk}", "a.yaml: Stream a: storage: not one of file, memory"),
        (HEAD + "spec: {name: a, mirror: {nme: b}}", "a.yaml: Stream a: mirror has an unknown field, nme"),
        (HEAD + "spec: {name: a}\n---\n" + HEAD + "spec: {name: a}", "a.yaml: Stream a: there are two configurations"),
        (
            HEAD.replace("Stream", "Consumer") + "spec: {durableName: c, streamName: S}",
            "a.yaml: Consumer a is of stream S, which has no configuration",
        ),
    ],
)
def test_what_people_write_wrong_is_said(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(put(tmp_path / "in", content)).streams()
    assert str(raised.value).startswith(message)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(LISTED)), st.integers(0, 40), st.text(max_size=6) | st.sampled_from(JUNK))
def test_what_is_broken_ends_in_a_sentence(at: int, length: int, text: str) -> None:
    content = LISTED[:at] + text + LISTED[at + length :]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.yaml").write_text(content, newline="")
        with suppress(UsageError):
            read(Path(folder)).streams()


@pytest.mark.by_turns
@pytest.mark.slow
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
