"""What `--json` prints is what `jsbackup/cli/output.schema.json` says, and holds what others rely on."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jsbackup.cli.main import COMMANDS
from jsbackup.exit_codes import EXIT_CODES
from jsbackup.stores.local import LocalStore
from tests.cli.typed import Shop, Typed
from tests.harness.backups import make_repository
from tests.harness.servers import NEWEST, NatsServer

Type = Callable[..., Typed]

EMBEDDED = Path(sys.executable).parent / "nats-server"

SCHEMA: dict[str, Any] = json.loads(files("jsbackup.cli").joinpath("output.schema.json").read_text())
DEFINITIONS: dict[str, Any] = SCHEMA["$defs"]

# The contract: more may be added, none removed. Paths into documents; [] steps into a list.
PROMISED = {
    "backup": (
        "backup result streams skipped skipped[].name skipped[].reason streams[].name streams[].messages "
        "streams[].bytes streams[].first_seq streams[].last_seq streams[].digest streams[].segments "
        "streams[].segments_reused streams[].stored_bytes_added streams[].seconds streams[].archive_format "
        "streams[].consumers streams[].warnings"
    ),
    "list": (
        "backups backups[].backup backups[].created backups[].result backups[].streams backups[].messages "
        "backups[].bytes backups[].tags"
    ),
    "restore": (
        "streams failed streams[].name streams[].as streams[].messages streams[].bytes streams[].digest "
        "streams[].verified streams[].seconds streams[].consumers[].name streams[].consumers[].fidelity"
    ),
    "clone": (
        "streams failed streams[].name streams[].as streams[].messages streams[].bytes streams[].digest "
        "streams[].verified streams[].seconds streams[].consumers[].name streams[].consumers[].fidelity"
    ),
    "plan": (
        "backup target actions[].stream actions[].as actions[].messages actions[].bytes actions[].first_seq "
        "actions[].last_seq actions[].wire actions[].config_changes actions[].consumers actions[].notes "
        "refusals[].stream refusals[].code refusals[].reason"
    ),
    "diff": (
        "equal streams streams[].stream streams[].added streams[].removed streams[].changed "
        "streams[].config_changes streams[].consumer_changes"
    ),
    "verify": "backup level ok problems problems[].stream problems[].key problems[].problem",
    "put-back": "backup stream to result written there refused messages[].sequence messages[].action",
    "copy": (
        "copied_objects copied_bytes skipped_objects "
        "backup made_of result streams[].name streams[].as streams[].messages streams[].digest skipped"
    ),
    "repair": "mended lost objects[].key objects[].outcome objects[].backups",
    "export": "files rows bytes",
    "stats": (
        "streams streams[].stream streams[].messages streams[].bytes streams[].subjects "
        "streams[].subjects[].subject streams[].subjects[].messages streams[].subjects[].bytes"
    ),
    "query": "columns rows",
    "prune": "deleted_objects freed_bytes",
    "forget": "kept kept[].backup kept[].reasons removed removed[].backup removed[].reason",
    "drill": "backup streams[].name streams[].messages streams[].verified streams[].seconds seconds",
    "status": "newest_backup newest_verify newest_drill breaches",
    "error": "error.code error.message error.hint",
}


def _closed(schema: Any) -> Any:
    """The same schema where an object has no properties but those that are described."""
    if isinstance(schema, dict):
        closed = {key: _closed(value) for key, value in schema.items()}
        if "properties" in schema and "object" in schema.get("type", ""):
            closed.setdefault("additionalProperties", False)
        return closed
    return [_closed(one) for one in schema] if isinstance(schema, list) else schema


CLOSED = _closed(copy.deepcopy(SCHEMA))


def check(command: str, done: Typed) -> dict[str, Any]:
    """The document of `command`, valid, and without a field that the schema does not describe."""
    document = done.document
    jsonschema.Draft202012Validator({**CLOSED, "$ref": f"#/$defs/{command}"}).validate(document)
    assert "error: " not in done.err
    return document


def _resolve(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema behind a reference, or each of its alternatives."""
    if "$ref" in schema:
        place: Any = SCHEMA
        for step in schema["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        yield from _resolve(place)
    elif "oneOf" in schema:
        for one in schema["oneOf"]:
            yield from _resolve(one)
    else:
        yield schema


def _is_promised(schema: dict[str, Any], steps: list[str]) -> bool:
    if not steps:
        return True
    step, *rest = steps
    for one in _resolve(schema):
        name = step.removesuffix("[]")
        if name in one.get("required", ()):
            inner = one["properties"][name]
            if not step.endswith("[]") or any(
                _is_promised(two["items"], rest) for two in _resolve(inner) if "items" in two
            ):
                return step.endswith("[]") or _is_promised(inner, rest)
    return False


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(COMMANDS) | {"error"} <= set(DEFINITIONS)
    assert set(DEFINITIONS["exit_code"]["enum"]) == set(EXIT_CODES) - {0}


@pytest.mark.parametrize(("command", "path"), [(c, p) for c, paths in PROMISED.items() for p in paths.split()])
def test_what_others_rely_on_is_required(command: str, path: str) -> None:
    assert _is_promised({"$ref": f"#/$defs/{command}"}, path.split("."))


def test_the_promise_is_noticed_when_it_is_broken() -> None:
    assert not _is_promised({"$ref": "#/$defs/backup"}, ["streams[]", "nothing"])
    assert not _is_promised({"$ref": "#/$defs/error"}, ["error", "code", "more"])
    assert not _is_promised({"type": "object", "properties": {"backup": {}}}, ["backup"])


def made_empty(folder: Path) -> Path:
    make_repository(LocalStore(folder / "empty"))
    return folder / "empty"


@pytest.mark.nats
def test_every_command_prints_what_the_schema_says(
    shop: Shop, typed: Type, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    repo = tmp_path / "repo"
    made = check("init", typed("init", "-r", repo, "--json"))
    assert made["location"] == str(repo)

    assert check("list", typed("list", "-r", repo, "--json")) == {"backups": [], "damaged": []}
    assert check("verify", typed("verify", "-r", repo, "--json"))["backups"] == []
    assert check("browse", typed("browse", "-r", repo, "--for", "1ms", "--json"))["repository"] == str(repo)

    first = check("backup", typed("backup", "-s", shop.url, "-r", repo, "--tag", "a=1", "--json"))
    names = [stream["name"] for stream in first["streams"]]
    assert first["result"] == "complete" and "ORDERS" in names and names == sorted(names)
    second = check("backup", typed("backup", "ORDERS", "-s", shop.url, "-r", repo, "--json"))
    (orders,) = second["streams"]
    assert (orders["messages"], orders["first_seq"], orders["last_seq"]) == (1000, 1, 1000)
    assert orders["digest"] == next(one["digest"] for one in first["streams"] if one["name"] == "ORDERS")
    assert orders["segments"] == orders["segments_reused"] == 1 and orders["stored_bytes_added"] == 0
    config = check("backup", typed("backup", "ORDERS", "--config-only", "-s", shop.url, "-r", repo, "--json"))
    assert config["streams"][0]["archive_format"] == "config"

    listed = check("list", typed("list", "-r", repo, "--json"))["backups"]
    assert [one["backup"] for one in listed] == [first["backup"], second["backup"], config["backup"]]
    assert listed[0]["tags"] == {"a": "1"} and listed[0]["streams"] == len(names)

    made = check(
        "follow", typed("follow", "ORDERS", "-s", shop.url, "-r", tmp_path / "followed", "--for", "1ms", "--json")
    )
    assert (made["streams"], made["messages"], made["result"], made["failed"]) == (1, 1000, "complete", [])

    shown = check("show", typed("show", "latest", "-r", repo, "--json"))
    assert shown["backup"] == first["backup"]  # the newest that has everything
    shown = check("show", typed("show", config["backup"], "-r", repo, "--json"))
    assert shown["backup"] == config["backup"] and shown["previous"] == second["backup"]
    assert shown["source"]["imported"] is None
    shown = check("show", typed("show", first["backup"], "-r", repo, "--json"))
    assert [stream["name"] for stream in shown["streams"]] == names

    assert check("verify", typed("verify", "latest", "-r", repo, "--json"))["ok"] is True
    several = check("verify", typed("verify", "--level", "data", "-r", repo, "--json"))
    assert [(one["backup"], one["ok"], one["level"]) for one in several["backups"]] == [
        (one["backup"], True, "data") for one in listed
    ]

    target = nats_server(NEWEST)
    line: list[str | Path] = ["restore", first["backup"], "-r", repo, "-s", target.url, "--json"]
    planned = check("plan", typed("plan", *line[1:], "-o", tmp_path / "plan.json"))
    assert [action["stream"] for action in planned["actions"]] == names and planned["refusals"] == []
    restored = check("restore", typed(*line))
    assert restored["failed"] == [], restored
    again = ["put-back", first["backup"], "ORDERS", "--sequence", "1-3", "-r", repo, "-s", target.url, "--json"]
    assert check("put-back", typed(*again))["there"] == 3
    assert [(one["name"], one["verified"]) for one in restored["streams"]] == [(name, True) for name in names]
    assert restored["failed"] == restored["skipped"] == []
    in_the_way = typed("plan", *line[1:])
    assert [one["stream"] for one in check("plan", in_the_way)["refusals"]] == names and in_the_way.code == 16
    skipped = check("restore", typed(*line, "--if-exists", "skip"))
    assert [one["name"] for one in skipped["skipped"]] == names and skipped["streams"] == []
    replaced = check("restore", typed(*line, "ORDERS", "--if-exists", "replace", "--consumers", "config"))
    assert replaced["streams"][0]["consumers"][0]["fidelity"] == "config only"
    created = check("restore", typed(*line, "ORDERS", "--if-exists", "replace", "--verify", "none"))
    assert created["streams"][0]["verified"] is False

    drilled = check("drill", typed("drill", first["backup"], "-r", repo, "--nats-server", EMBEDDED, "--json"))
    assert [(one["name"], one["verified"]) for one in drilled["streams"]] == [(name, True) for name in names]
    stands = check("status", typed("status", "-r", repo, "--live", "-s", shop.url, "--max-age", "1h", "--json"))
    assert stands["ok"] and stands["live"]["not_backed_up"] == []
    assert stands["newest_drill"]["backup"] == first["backup"] and stands["newest_verify"]["level"] == "data"
    assert stands["newest_backup"]["backup"] == second["backup"]  # the one without messages stands for none
    bare = typed("status", "-r", made_empty(tmp_path), "--max-drill-age", "1h", "--json")
    assert [one["rule"] for one in check("status", bare)["breaches"]] == ["no-backup", "drill-age"] and bare.code == 17

    exported = check(
        "export",
        typed("export", first["backup"], "-r", repo, "--format", "nats-cli", "--output", tmp_path / "cli", "--json"),
    )
    assert exported["rows"] == sum(one["messages"] for one in first["streams"])
    configs = ["export", config["backup"], "-r", repo, "--format", "config", "--output", tmp_path / "configs", "--json"]
    assert check("export", typed(*configs))["files"] > 0
    for folder in ("cli", "configs"):
        imported = check("import", typed("import", tmp_path / folder, "-r", repo, "--json"))
        assert imported["result"] == "complete"

    for words in ([], ["restore"], ["drill"], ["ransom"]):
        check("help", typed("help", *words, "--json"))
    assert check("error", typed("restore", "nothing", "-r", repo, "--json"))["error"]["code"] == 2


@pytest.mark.nats
def test_a_clone_prints_what_the_schema_says(shop: Shop, typed: Type, nats_server: Callable[..., NatsServer]) -> None:
    target = nats_server(NEWEST)
    line = ["clone", "-s", shop.url, "--to-server", target.url, "--json"]
    planned = check("clone_preview", typed(*line, "--dry-run"))
    names = [action["stream"] for action in planned["actions"]]
    assert planned["source"]["account"] == "$G" and planned["refusals"] == []
    cloned = check("clone", typed(*line))
    assert [(one["name"], one["verified"]) for one in cloned["streams"]] == [(name, True) for name in names]
    assert cloned["failed"] == cloned["skipped"] == []
    refused = typed(*line, "--dry-run")
    assert [one["rule"] for one in check("clone_preview", refused)["refusals"]] == ["exists"] * len(names)
    assert refused.code == 16
    told = typed(*line[:-1], "--dry-run", "--if-exists", "replace")
    assert told.code == 0 and f"{len(names)} streams can be cloned into nats-server {NEWEST}" in told.out
    assert "from nats-server" in told.out
    assert len(check("clone", typed(*line, "--if-exists", "skip"))["skipped"]) == len(names)
    told = typed(*line[:-1], "--if-exists", "replace", "--verify", "none")
    assert told.code == 0 and f"cloned {len(names)} streams, 0 failed, 0 skipped" in told.out


@pytest.mark.nats
def test_a_backup_that_lacks_a_stream_says_which(shop: Shop, typed: Type, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    export = ["export", "latest", "ORDERS", "evil*", "-r", shop.repo, "--format", "nats-cli", "--output", folder]
    assert typed(*export).code == 0
    (folder / "ORDERS" / "backup.json").write_text("{}")
    done = typed("import", folder, "-r", tmp_path / "repo", "--json")
    document = check("import", done)
    assert done.code == 3 and document["result"] == "partial"
    assert [one["name"] for one in document["skipped"]] == ["ORDERS"]
    check("show", typed("show", "latest", "-r", tmp_path / "repo", "--json"))


@pytest.mark.nats
def test_damage_is_described(shop: Shop, typed: Type, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    assert typed("export", "latest", "ORDERS", "-r", shop.repo, "--format", "nats-cli", "--output", folder).code == 0
    repo = tmp_path / "repo"
    assert typed("import", folder, "-r", repo).code == 0
    assert typed("copy", "--to-repo", tmp_path / "second", "-r", repo).code == 0
    (segment,) = repo.glob("segments/*/*.parquet")
    whole = segment.read_bytes()
    segment.unlink()
    done = typed("verify", "latest", "-r", repo, "--json")
    (problem,) = check("verify", done)["problems"]
    assert done.code == 14
    assert (problem["stream"], problem["first_seq"], problem["last_seq"], problem["messages"]) == (
        "ORDERS",
        1,
        1000,
        1000,
    )
    lost = typed("repair", "-s", shop.url, "-r", repo, "--json")
    assert (lost.code, check("repair", lost)["objects"][0]["outcome"]) == (3, "lost")
    assert check("repair", typed("repair", "--from", tmp_path / "second", "-r", repo, "--json"))["mended"] == 1
    assert segment.read_bytes() == whole
    manifest = next(repo.glob("backups/*.json"))
    manifest.write_text("[]")
    for witness in repo.glob("catalog/*.committed"):
        witness.write_bytes(b"")  # as older tools wrote it
    (unproved,) = check("repair", typed("repair", "--from", tmp_path / "second", "-r", repo, "--json"))["manifests"]
    assert (unproved["outcome"], "nothing proves" in unproved["reason"]) == ("lost", True)
    assert len(check("list", typed("list", "-r", repo, "--json"))["damaged"]) == 1
    assert check("verify", typed("verify", "-r", repo, "--json"))["backups"][0]["problems"][0]["stream"] == ""


@pytest.mark.nats
def test_all_streams_failing_is_a_document_with_reasons(
    shop: Shop, typed: Type, nats_server: Callable[..., NatsServer]
) -> None:
    target = nats_server(NEWEST, max_file_bytes=1024)
    done = typed("restore", "latest", "ORDERS", "-r", shop.repo, "-s", target.url, "--json")
    document = check("restore", done)
    assert document["streams"] == [] and [one["name"] for one in document["failed"]] == ["ORDERS"]
    assert done.code == document["failed"][0]["code"]
