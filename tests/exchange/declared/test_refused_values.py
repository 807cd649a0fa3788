"""What no server takes is refused where people write it: with the file, the resource and the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jsbackup.errors import UsageError
from jsbackup.exchange.config_files import StreamConfigs, read_config_files
from jsbackup.exchange.declared.nack import read_nack_files
from jsbackup.exchange.declared.terraform import read_terraform_files
from jsbackup.exchange.folder import Folder
from jsbackup.formats.yaml_text import to_yaml

BLANK = "not a subject: 'b c'"


def nack(path: Path, kind: str, spec: dict[str, Any]) -> list[StreamConfigs]:
    name = {"name": "A"} if kind == "Stream" else {"bucket": "A"}
    document = {"apiVersion": "jetstream.nats.io/v1beta2", "kind": kind, "metadata": {"name": "r"}}
    (path / "a.yaml").write_text(to_yaml(document | {"spec": name | spec}))
    with Folder.open(path) as root:
        return read_nack_files(root, ["a.yaml"]).streams()


def terraform(path: Path, kind: str, body: dict[str, Any]) -> list[StreamConfigs]:
    (path / "a.tf.json").write_text(json.dumps({"resource": {kind: {"r": {"name": "A"} | body}}}))
    with Folder.open(path) as root:
        return read_terraform_files(root, ["a.tf.json"]).streams()


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        ("Stream", {"maxAge": "-1h"}, "Stream r: max_age: a negative duration"),
        ("Stream", {"duplicateWindow": "-1s"}, "Stream r: duplicate_window: a negative duration"),
        ("Stream", {"subjectDeleteMarkerTtl": "-1s"}, "Stream r: subject_delete_marker_ttl: a negative duration"),
        ("Stream", {"subjects": ["a", "b c"]}, f"Stream r: subjects: {BLANK}"),
        ("Stream", {"subjects": ["a..b"]}, "Stream r: subjects: not a subject: 'a..b'"),
        (
            "Stream",
            {"mirror": {"name": "B", "filterSubject": "a\tb"}},
            "Stream r: filter_subject: not a subject: 'a\\tb'",
        ),
        ("Stream", {"sources": [{"name": "B", "filterSubject": "b c"}]}, f"Stream r: filter_subject: {BLANK}"),
        ("Stream", {"sources": [{"name": "B", "filterSubject": "a.>.b"}]}, "Stream r: filter_subject: not a"),
        ("KeyValue", {"history": 65}, "KeyValue r: history: not one of 1 to 64"),
        ("KeyValue", {"ttl": "-1s"}, "KeyValue r: max_age: a negative duration"),
        ("KeyValue", {"limitMarkerTtl": -1}, "KeyValue r: subject_delete_marker_ttl: a negative duration"),
        ("ObjectStore", {"ttl": "-1s"}, "ObjectStore r: max_age: a negative duration"),
    ],
)
def test_resources_of_nack(tmp_path: Path, kind: str, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        nack(tmp_path, kind, spec)
    assert caught.value.message.startswith(f"a.yaml: {message}")


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("stream", {"max_age": -1}, "max_age: a negative duration"),
        ("stream", {"duplicate_window": -1}, "duplicate_window: a negative duration"),
        ("stream", {"subjects": ["b c"]}, f"subjects: {BLANK}"),
        ("stream", {"source": [{"name": "B", "filter_subject": "b c"}]}, f"filter_subject: {BLANK}"),
        ("stream", {"mirror": {"name": "B", "filter_subject": "b c"}}, f"filter_subject: {BLANK}"),
        ("kv_bucket", {"history": 65}, "history: not one of 1 to 64"),
        ("kv_bucket", {"history": -1}, "history: not one of 1 to 64"),
        ("kv_bucket", {"ttl": -1}, "max_age: a negative duration"),
        ("obj_bucket", {"ttl": -1}, "max_age: a negative duration"),
    ],
)
def test_resources_of_terraform(tmp_path: Path, kind: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        terraform(tmp_path, f"jetstream_{kind}", body)
    assert caught.value.message.startswith(f"a.tf.json: jetstream_{kind}.r: {message}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_age": -1}, "max_age: a negative duration"),
        ({"duplicate_window": -1}, "duplicate_window: a negative duration"),
        ({"subject_delete_marker_ttl": -1}, "subject_delete_marker_ttl: a negative duration"),
        ({"subjects": ["a", "b c"]}, f"subjects: {BLANK}"),
        ({"mirror": {"name": "B", "filter_subject": "b c"}}, f"filter_subject: {BLANK}"),
        ({"sources": [{"name": "B"}, {"filter_subject": "b c"}]}, f"filter_subject: {BLANK}"),
    ],
)
def test_config_files(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "A.json").write_text(json.dumps({"name": "A"} | fields))
    with pytest.raises(UsageError) as caught, Folder.open(tmp_path) as root:
        read_config_files(root)
    assert caught.value.message == f"streams/A.json: {message}"


def test_what_servers_take_is_taken(tmp_path: Path) -> None:
    """Also what has no effect: a `republish` without a destination. Servers 2.10 to 2.15 create such streams."""
    odd = {"subjects": ["*.>", ">", "a\u00a0b"], "max_age": 0, "republish": {"src": "x.>"}, "new": {"max_age": -1}}
    odd |= {"sources": [{"name": "B", "filter_subject": ""}, {"name": "C", "filter_subject": "a.*.>"}]}
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "A.json").write_text(json.dumps({"name": "A"} | odd))
    with Folder.open(tmp_path) as root:
        assert read_config_files(root) == [StreamConfigs({"name": "A"} | odd, {})]
    (stream,) = nack(tmp_path, "Stream", {"republish": {"source": "x.>"}})
    assert stream.config["republish"] == {"src": "x.>"}
    for history, kept in ((0, 1), (64, 64)):  # clients take none for one
        (stream,) = nack(tmp_path, "KeyValue", {"history": history})
        assert stream.config["max_msgs_per_subject"] == kept
