"""`status`: what it prints, writes and pushes, and with which exit code, whatever is wrong."""

from __future__ import annotations

import base64
import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jsbackup.cli.notify.metrics import failure_metrics, status_metrics
from jsbackup.cli.output.html_pages import status_page
from jsbackup.cli.output.status_report import Report, status_json, status_text
from jsbackup.engine.check.health_rules import LiveStreams
from jsbackup.engine.check.live_streams import LiveAccounts
from jsbackup.repository.origin import Origin
from jsbackup.stores.local import LocalStore
from tests.cli.pages import HOSTILE, check_geometry, parsed, text_of
from tests.cli.statuses import NOW_NS, some_report
from tests.cli.typed import Shop, Typed
from tests.harness.backups import make_repository, store_backup

Type = Callable[..., Typed]
Samples = Mapping[str, list[tuple[dict[str, str], float]]]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """With one backup, some hours old."""
    folder = tmp_path / "repo"
    store_backup(make_repository(LocalStore(folder)))
    return folder


def samples(metrics: bytes) -> Samples:
    """What Prometheus makes of it; no series comes twice."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(metrics.decode()):
        assert family.type == "gauge" and family.documentation and family.name.startswith("jsbackup_")
        assert family.name not in found
        found[family.name] = [(dict(one.labels), one.value) for one in family.samples]
        assert len({json.dumps(labels, sort_keys=True) for labels, _ in found[family.name]}) == len(family.samples)
    return found


# --- metrics ---


def test_accounts_have_metrics_with_their_names() -> None:
    key = "A" * 56
    report = some_report()
    named = replace(report.status.lines[0], origin=Origin("C1", key, "", account_name="My Shöp"))
    status = replace(report.status, lines=(named,))
    live = (LiveStreams(named.origin, ("MISSING", HOSTILE[0])), LiveStreams(Origin("C1", "SHOP", "hub"), ()))
    found = samples(status_metrics(status, (), None, 0, accounts=live))
    assert found["jsbackup_account_info"] == [({"account": key, "account_name": "My Shöp"}, 1)]
    labels = {"account": key, "account_name": "My Shöp", "domain": ""}
    other = {"account": "SHOP", "account_name": "", "domain": "hub"}
    assert found["jsbackup_account_streams"] == [(labels, 2), (other, 0)]
    assert found["jsbackup_account_streams_not_backed_up"] == [(labels, 1), (other, 0)]
    # Labels of series that there were before stay as they are.
    assert {name for one, _ in found["jsbackup_line_bytes"] for name in one} == {"cluster", "account", "domain", "line"}


def test_metrics_are_read_back_as_they_are_whatever_streams_are_called() -> None:
    names = (*HOSTILE, 'a"b\\c\nd', "\\n", "}", 'x="y"', "\udcff", "\\udcff")
    report = some_report(names)
    found = samples(status_metrics(report.status, report.breaches, report.live, 17))
    sizes = {labels["stream"]: value for labels, value in found["jsbackup_stream_messages"]}
    assert sizes.keys() == {name.encode("utf-8", "backslashreplace").decode() for name in names}
    assert {labels["cluster"] for labels, _ in found["jsbackup_line_bytes"]} == {names[0]}
    assert [labels["stream"] for labels, _ in found["jsbackup_stream_not_backed_up"]] == ["MISSING\\n", 'QUOTED"']
    assert found["jsbackup_status_up"] == [({}, 1)] and found["jsbackup_status_exit_code"] == [({}, 17)]
    [(_, newest)] = found["jsbackup_newest_backup_timestamp_seconds"]
    assert newest == NOW_NS // 10**9
    told = {labels["rule"]: value for labels, value in found["jsbackup_breaches"]}
    assert {rule: count for rule, count in told.items() if count} == {
        "no-backup": 1,
        "incomplete-backup": 1,
        "streams-not-backed-up": 1,
        "verify-failed": 1,
        "drill-failed": 1,
        "drill-age": 1,
    }
    assert found["jsbackup_last_drill_ok"] == [({}, 0)]


def test_of_a_repository_out_of_reach_metrics_tell_only_that() -> None:
    found = samples(failure_metrics(NOW_NS, 21))
    assert found["jsbackup_status_up"] == [({}, 0)] and found["jsbackup_status_exit_code"] == [({}, 21)]
    assert len(found) == 3


def test_metrics_are_written_as_a_whole_for_all_to_read(repo: Path, typed: Type, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    file = out / "jsbackup.prom"
    file.write_text("old")
    umask = os.umask(0o077)
    try:
        done = typed("status", "-r", repo, "--metrics", file, "--max-age", "1s", "--json")
    finally:
        os.umask(umask)
    assert (done.code, [one["rule"] for one in done.document["breaches"]]) == (17, ["backup-age"])
    found = samples(file.read_bytes())
    assert found["jsbackup_status_exit_code"] == [({}, 17)]
    assert file.stat().st_mode & 0o777 == 0o644 and [one.name for one in out.iterdir()] == ["jsbackup.prom"]
    assert typed("status", "-r", tmp_path / "nothing", "--metrics", file).code == 10
    assert samples(file.read_bytes())["jsbackup_status_up"] == [({}, 0)]
    assert typed("status", "-r", repo, "--metrics", tmp_path / "no" / "folder").code == 2


# --- push ---


@dataclass
class Gateway:
    """A Pushgateway as far as `status` knows one; answers with `status`."""

    url: str
    status: int = 200
    got: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway("")

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.got.append((self.command, self.path, dict(self.headers), body))
            self.send_response(made.status)
            self.end_headers()
            self.wfile.write(b"text format\nparsing error")

        def log_message(self, *_arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        made.url = f"127.0.0.1:{server.server_address[1]}"
        yield made
        server.shutdown()
        thread.join()


def test_metrics_are_pushed_with_the_login_of_the_url_which_nobody_sees(
    repo: Path, typed: Type, gateway: Gateway, tmp_path: Path
) -> None:
    file = tmp_path / "m.prom"
    url = f"http://me:s%40cret@{gateway.url}"
    done = typed("status", "-r", repo, "--push", url, "--metrics", file)
    assert done.code == 0
    [(method, path, headers, body)] = gateway.got
    assert (method, path) == ("PUT", "/metrics/job/jsbackup")
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:s@cret").decode()
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert body == file.read_bytes() and body.endswith(b"\n") and samples(body)
    gateway.status = 400
    done = typed("status", "-r", repo, "--push", f"{url}/metrics/job/other/instance/a")
    assert done.code == 1 and "answered 400 text format parsing error" in done.err
    assert "cret" not in done.out + done.err and "all is well" in done.out
    assert gateway.got[-1][1] == "/metrics/job/other/instance/a"
    assert typed("status", "-r", repo, "--push", url, "--max-age", "1s").code == 17
    assert typed("status", "-r", tmp_path / "nothing", "--push", url).code == 10
    assert samples(gateway.got[-1][3])["jsbackup_status_up"] == [({}, 0)]


@pytest.mark.parametrize("url", ["ftp://host", "host:9091", "http://", "http://host:x"])
def test_what_is_no_url_of_a_gateway_is_refused(url: str, repo: Path, typed: Type) -> None:
    done = typed("status", "-r", repo, "--push", url)
    assert done.code == 2 and "--push" in done.err


def test_a_gateway_that_is_not_there_is_an_error_and_hides_no_breach(repo: Path, typed: Type, gateway: Gateway) -> None:
    nobody = f"http://me:secret@127.0.0.1:{_closed_port()}"
    done = typed("status", "-r", repo, "--push", nobody)
    assert done.code == 1 and "cannot push metrics" in done.err and "secret" not in done.err


def _closed_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- what it says ---


def test_it_says_what_is_wrong_and_what_to_do(repo: Path, typed: Type) -> None:
    done = typed("status", "-r", repo)
    assert done.code == 0 and "all is well" in done.out and "verify      never" in done.out
    done = typed("status", "-r", repo, "--max-verify-age", "7d", "--max-drill-age", "31d", "--min-backups", "2")
    assert done.code == 17
    for rule in ("verify-age", "drill-age", "few-backups"):
        assert f"BREACH      {rule}: " in done.out
    assert "Run 'jsbackup drill' on a schedule." in done.out
    assert typed("verify", "-r", repo, "--level", "manifest").code == 0
    assert typed("status", "-r", repo, "--max-verify-age", "7d").code == 0
    deeper = typed("status", "-r", repo, "--max-verify-age", "7d", "--verify-level", "data", "--json")
    assert [one["rule"] for one in deeper.document["breaches"]] == ["verify-age"]
    next(repo.glob("segments/*/*.parquet")).unlink()
    assert typed("verify", "-r", repo).code == 14
    failed = typed("status", "-r", repo)
    assert failed.code == 17 and "verify-failed" in failed.out


def test_json_and_text_tell_of_hostile_names(capsys: pytest.CaptureFixture[str]) -> None:
    from jsbackup.cli.output.output import Output

    report = some_report()
    document = status_json(report, "memory:")
    assert document["newest_drill"]["recovery_point_seconds"] > 28 * 86_400
    assert document["lines"][0]["growth"] == [
        {"days": 1, "messages": 100, "bytes": 1000},
        {"days": 7, "messages": 700, "bytes": 7000},
        {"days": 30, "messages": 3000, "bytes": 30_000},
    ]
    Output().blocks(status_text(report, "memory:"))
    told = capsys.readouterr().out
    assert "\x1b" not in told and "\u202e" not in told and "+1000 B in 1 d" in told
    assert "stopped     backup" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--server", "nats://h"), "--live"),
        (("--exclude", "A"), "--live"),
        (("--max-age", "7"), "duration"),
        (("--min-backups", "0"), "min-backups"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: tuple[str, ...], said: str, repo: Path, typed: Type) -> None:
    done = typed("status", "-r", repo, *arguments)
    assert done.code == 2 and said in done.err


@pytest.mark.nats
def test_the_server_is_asked_for_streams_without_a_backup(shop: Shop, typed: Type, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    assert typed("backup", "ORDERS", "-s", shop.url, "-r", repo).code == 0
    page = tmp_path / "page.html"
    done = typed("status", "-r", repo, "--live", "-s", shop.url, "--html", page, "--json")
    [breach] = done.document["breaches"]
    assert done.code == 17 and breach["rule"] == "streams-not-backed-up"
    missing = done.document["live"]["not_backed_up"]
    assert len(missing) == 2 and "注文-événements" in missing
    assert "注文-événements" in text_of(parsed(page.read_bytes()))
    assert typed("status", "-r", repo, "--live", "-s", shop.url, "--exclude", "evil*", "--exclude", "注*").code == 0
    away = typed("status", "-r", repo, "--live", "-s", f"nats://127.0.0.1:{_closed_port()}", "--json")
    assert away.code == 20 and away.document["ok"] and away.document["live"] is None and "error: " in away.err
    away = typed("status", "-r", repo, "--live", "-s", f"nats://127.0.0.1:{_closed_port()}")
    assert "server      not known: cannot connect to " in away.out and "all is well" not in away.out


# --- the page ---


def test_the_page_tells_what_was_found() -> None:
    report = some_report()
    page = parsed(status_page(report, "s3://bucket/prefix"))
    for chart in page.iter("svg"):
        check_geometry(chart)
    told = " ".join(text_of(page).split())
    assert "6 things are wrong" in told and "Backups in s3://bucket/prefix" in told
    assert "194 backups, 193 complete, the newest 0 s old." in told and "1 backup, 0 complete." in told
    # A small line for each series with complete backups, and no other chart.
    assert [chart.get("aria-label") for chart in page.iter("svg") if chart.get("role") == "img"] == [
        "Bytes in 60 backups, from 325 KiB to 391 KiB"
    ]
    captions = [text_of(caption) for caption in page.iter("caption")]
    for caption in ("The newest backups", "Streams in the newest backup, 7 of 7", "Streams of the last drill"):
        assert caption in captions
    assert "on the server, and in no newest backup" in told and "The server was not asked" not in told
    states = {(text_of(one), one.get("class")) for one in page.iter("span") if "state" in (one.get("class") or "")}
    assert {("restored and proved", "state good"), ("nothing wrong", "state good")} <= states
    assert any(class_ == "state bad" for _, class_ in states)


def test_the_page_says_whether_the_server_was_asked() -> None:
    report = some_report()
    status = replace(report.status, lines=())
    live = LiveStreams(Origin("C1", "A", ""), ())
    system = LiveAccounts((live,), ())
    for asked, there, said in (
        (None, None, "The server was not asked which streams it has (--live)."),
        (live, None, "None: the server has 0 streams."),
        (None, system, "None: the system has 1 account with JetStream."),
    ):
        told = text_of(parsed(status_page(Report(status, report.limits, asked, there), "memory:")))
        assert said in told and ("not asked" in told) == (asked is there is None)
        assert "There is no complete backup." in told


def test_a_page_of_a_long_life_stays_small() -> None:
    assert len(status_page(some_report(days=4000), "memory:")) < 100_000


# --- many objects ---


def test_of_many_objects_only_the_manifests_are_asked(
    repo: Path, tmp_path: Path, typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is listed beyond the limit unless it is asked for, and what is not known is not said."""
    stored = sum(1 for path in (repo / "segments").rglob("*") if path.is_file())
    assert "jsbackup_stored_objects" in written(typed, repo, tmp_path / "few.prom")
    lists: list[str] = []
    real = LocalStore.list
    monkeypatch.setattr(LocalStore, "list", lambda store, prefix: (lists.append(prefix), real(store, prefix))[1])
    for limit in (0, stored - 1):  # by the manifest alone; by the listing, which stops
        lists.clear()
        monkeypatch.setattr("jsbackup.engine.check.status._MOST_OBJECTS", limit)
        done = typed("status", "-r", repo)
        assert done.code == 0 and "too many objects to list on every run" in done.out, done
        assert ("segments/" in lists) == (limit > 0)
        found = json.loads(typed("status", "-r", repo, "--json").out)["stored"]
        assert (found["objects"], found["bytes"]) == (None, None)
        assert "jsbackup_stored_" not in written(typed, repo, tmp_path / "many.prom")
        assert typed("status", "-r", repo, "--html", tmp_path / "page.html").code == 0
        assert "too many objects to list them" in (tmp_path / "page.html").read_text()
        every = json.loads(typed("status", "-r", repo, "--json", "--all-objects").out)["stored"]
        assert every["objects"] == stored and every["bytes"] > 0


def test_a_missing_object_of_many_is_found_if_it_is_looked_for(
    repo: Path, typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jsbackup.engine.check.status._MOST_OBJECTS", 1)
    next(path for path in (repo / "segments").rglob("*") if path.is_file()).unlink()
    assert typed("status", "-r", repo).code == 0
    done = typed("status", "-r", repo, "--all-objects")
    assert done.code == 17 and "1 stored object is missing" in done.out


def test_unused_objects_are_known_without_a_listing(repo: Path, typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of the last prune has their sizes."""
    path = next((repo / "segments").rglob("*.parquet"))
    digit = "0" if path.stem[-1] != "0" else "1"
    path.with_name(f"{path.stem[:-1]}{digit}.parquet").write_bytes(b"12345")
    assert typed("prune", "-r", repo, "--grace", "7d").code == 0
    listed = json.loads(typed("status", "-r", repo, "--json").out)["stored"]
    monkeypatch.setattr("jsbackup.engine.check.status._MOST_OBJECTS", 0)
    known = json.loads(typed("status", "-r", repo, "--json").out)["stored"]
    assert listed["unused_objects"] == known["unused_objects"] > 0
    assert listed["unused_bytes"] == known["unused_bytes"] > 0


def written(typed: Type, repo: Path, file: Path) -> str:
    assert typed("status", "-r", repo, "--metrics", file).code == 0
    return file.read_text()
