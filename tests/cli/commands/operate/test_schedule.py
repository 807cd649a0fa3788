"""`schedule`: files that those who are to read them accept, that run as they stand, and that hold no secret."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.cli.commands.operate.schedule import (
    INTERVALS,
    JOBS,
    Job,
    Plan,
    _escaped,
    schedule_files,
    times_of,
    toml_text,
)
from jsbackup.errors import UsageError
from jsbackup.formats.yaml_text import to_yaml
from tests.cli.test_json import check
from tests.cli.typed import Shop, Typed
from tests.harness.servers import missing

Type = Callable[..., Typed]

# In every place of a profile that can hold one.
PLANTED = "planted-zz-secret"
PROFILES = """
[defaults]
repo = "{repo}"
[defaults.hooks]
hook-timeout = "1m"

[profiles.shop]
server = "nats://{login}{server}"
timeout = "30s"

[profiles.shop.backup]
streams = ["OR*", "注文*"]
tag = ["why=50% of $5"]
[profiles.shop.forget]
keep-daily = 7

[profiles."Other.Shop"]
repo = "s3://bucket/prefix"
server = "nats://nats.internal:4222"
user = "backup"
password = "{planted}-password"
creds = "/etc/nats/other.creds"
tlsca = "/etc/nats/ca.pem"
writer-key = "/etc/jsbackup/other.key"
s3-endpoint = "${ENDPOINT_URL}"
[profiles."Other.Shop".status]
metrics = "/var/lib/metrics/jsbackup.prom"
push = "http://me:{planted}-push@push.internal:9091"
max-age = "26h"
[profiles."Other.Shop".hooks]
ping-url = "https://ping.internal/{planted}-ping"
"""


@pytest.fixture
def config(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENDPOINT_URL", f"https://s3.internal/{PLANTED}-environment")
    monkeypatch.setenv("JSBACKUP_PROFILE", "shop")
    text = PROFILES.replace("{repo}", str(tmp_path / "re po%")).replace("{planted}", PLANTED)
    text = text.replace("{server}", shop.url.removeprefix("nats://")).replace("{login}", "")
    path = tmp_path / "config.toml"
    path.write_text(text.replace("hook-timeout", "timeout"))
    path.chmod(0o600)
    monkeypatch.setenv("JSBACKUP_CONFIG", str(path))
    return path


FORMATS = {"cron": [], "systemd": [], "kubernetes": ["--image", "registry.internal/jsbackup:1"]}


def made(typed: Type, kind: str, *line: str, profile: str = "shop") -> dict[str, Any]:
    done = typed("schedule", "--profile", profile, "--format", kind, *FORMATS[kind], *line, "--json")
    assert done.code == 0, done.out
    return check("schedule", done)


@pytest.mark.nats
@pytest.mark.parametrize("kind", FORMATS)
def test_no_secret_of_the_profile_is_in_what_is_printed(kind: str, typed: Type, config: Path, tmp_path: Path) -> None:
    told = typed("schedule", "--profile", "Other.Shop", "--format", kind, *FORMATS[kind])
    document = made(typed, kind, profile="Other.Shop")
    written = typed(
        "schedule", "--profile", "Other.Shop", "--format", kind, *FORMATS[kind], "--output", tmp_path / "out"
    )
    assert (told.code, written.code) == (0, 0)
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert files == {file["name"]: file["content"] for file in document["files"]}
    assert PLANTED not in json.dumps([told.out, told.err, document, written.out, written.err, files])
    assert all(file["content"] in told.out for file in document["files"])
    # What is there already stays, unless it is to be replaced.
    again = ["schedule", "--profile", "shop", "--format", kind, *FORMATS[kind], "--output", tmp_path / "out2"]
    assert typed(*again).code == 0 and typed(*again).code == 2 and typed(*again, "--force").code == 0
    (tmp_path / "file").touch()
    nowhere = typed(*again[:-1], tmp_path / "file")
    assert nowhere.code == 2 and nowhere.err.startswith(f"error: cannot make the folder {tmp_path / 'file'}: ")


def _cron_lines(text: str) -> Iterator[tuple[list[str], str]]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            *fields, command = line.split(" ", 5)
            yield fields, command


@pytest.mark.nats
def test_lines_for_cron_run_as_they_stand(typed: Type, config: Path, shop: Shop, tmp_path: Path) -> None:
    document = made(typed, "cron", "--without", "drill", "--every", "15m")
    (file,) = document["files"]
    names = []
    for (minute, hour, day, month, weekday), command in _cron_lines(file["content"]):
        assert (month, weekday) == ("*", "*")
        for field, least, most in ((minute, 0, 59), (hour, 0, 23), (day, 1, 31)):
            assert field == "*" or all(least <= int(one) <= most for one in field.split(","))
        # What cron does: an unescaped percent sign ends the command, the shell does the rest.
        assert not re.search(r"(?<!\\)%", command)
        words = shlex.split(command.replace("\\%", "%"))
        program = words.index("jsbackup") if "jsbackup" in words else 0
        names.append(words[program + 1])
        if names == ["backup"]:  # a disk that is not mounted gets no new repository
            missing_one = typed(*words[program + 1 :])
            assert missing_one.code == 10 and "is not mounted" in missing_one.err
            assert typed("init", "--profile", "shop").code == 0
        done = typed(*words[program + 1 :])
        assert (done.code, done.out) == (0, ""), done.err
    assert names == ["backup", "forget", "verify", "status"]
    assert [one["streams"] for one in json.loads(typed("list", "--json").out)["backups"]] == [2]
    assert document["jobs"][3]["arguments"] == ["status", "--max-age", "45m"]


@pytest.mark.nats
def test_units_are_accepted_by_systemd_and_run_with_what_they_are_lent(
    typed: Type, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "units"
    for profile in ("shop", "Other.Shop"):
        made(typed, "systemd", "--output", str(folder), profile=profile)
    units = sorted(folder.iterdir())
    assert len(units) == 2 * (5 + 3)
    services = {path.name: _unit(path) for path in units if path.suffix == ".service"}
    backup = services["jsbackup-Other.Shop-backup.service"]
    assert backup["DynamicUser"] == ["yes"] and backup["ProtectSystem"] == ["strict"]
    lent = ["config.toml", "creds", "tlsca", "writer-key"]
    assert [one.partition(":")[0] for one in backup["LoadCredential"]] == lent
    # A command that talks to no server is lent nothing for one.
    verify = services["jsbackup-Other.Shop-verify.service"]
    assert [one.partition(":")[0] for one in verify["LoadCredential"]] == ["config.toml", "writer-key"]
    status = services["jsbackup-Other.Shop-status.service"]
    assert status["User"] == ["jsbackup"] and status["ReadWritePaths"] == ["/var/lib/metrics"]
    assert services["jsbackup-shop-backup.service"]["User"] == ["jsbackup"]

    (tmp_path / "lent").mkdir()
    shutil.copy(config, tmp_path / "lent" / "config.toml")
    assert typed("init", "--profile", "shop").code == 0
    monkeypatch.delenv("JSBACKUP_CONFIG")
    for job in ("backup", "forget", "verify", "status"):
        (line,) = services[f"jsbackup-shop-{job}.service"]["ExecStart"]
        words = shlex.split(line.replace("%d", str(tmp_path / "lent")).replace("%%", "%").replace("$$", "$"))
        done = typed(*words[words.index(job) :])
        assert done.code == 0, done.err

    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is not installed")
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    rated = ["systemd-analyze", "security", "--offline=true", "--threshold=20", folder / "jsbackup-shop-backup.service"]
    assert subprocess.run(rated, capture_output=True, timeout=60).returncode == 0


def _unit(path: Path) -> dict[str, list[str]]:
    """All settings of a unit; each may be given several times."""
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    assert parser.has_section("Unit")
    settings: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals:
            settings.setdefault(key, []).append(value)
    return settings


@pytest.mark.nats
def test_manifests_are_what_kubernetes_takes_and_run_with_what_is_mounted(
    typed: Type, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for profile in ("shop", "Other.Shop"):
        (file,) = made(typed, "kubernetes", profile=profile)["files"]
        config_map, *jobs = yaml.safe_load_all(file["content"])
        for document in (config_map, *jobs):
            kubernetes_validate.validate(document, "1.31", strict=True)
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
            assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?", document["metadata"]["name"])
        for job in jobs:
            assert job["spec"]["concurrencyPolicy"] == "Forbid"
            pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            assert pod["automountServiceAccountToken"] is False
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            mounted = {volume["name"] for volume in pod["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} == mounted
        text = config_map["data"]["config.toml"]
        table = tomllib.loads(text)["profiles"][profile]
        if profile == "Other.Shop":
            assert table["password"] == "${SECRET_PASSWORD}" and table["creds"] == "/etc/jsbackup/secrets/creds"
            assert table["status"]["push"] == "${SECRET_STATUS_PUSH}"
            assert "--from-file=creds=/etc/nats/other.creds" in file["content"]
            assert "--from-literal=ENDPOINT_URL=…" in file["content"]
            for variable in ("SECRET_PASSWORD", "SECRET_STATUS_PUSH", "SECRET_HOOKS_PING_URL"):
                assert f"--from-literal={variable}=…" in file["content"]
                monkeypatch.setenv(variable, f"http://{variable.lower()}.internal")
        mounted_config = tmp_path / f"mounted-{profile}.toml"
        mounted_config.write_text(text)
        mounted_config.chmod(0o600)
        # A profile with variables in place of its secrets is one.
        assert typed("schedule", "--format", "cron", "--config", mounted_config, "--profile", profile).code == 0
        assert profile != "shop" or typed("init", "--profile", "shop").code == 0
        for job in jobs:
            arguments = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
            if profile == "shop" and arguments[0] != "drill":
                line = [str(mounted_config) if word == "/etc/jsbackup/config.toml" else word for word in arguments]
                assert typed(*line).code == 0


@pytest.mark.nats
def test_what_cannot_be_scheduled_is_refused_or_left_out(typed: Type, config: Path, tmp_path: Path) -> None:
    notes = made(typed, "cron", profile="Other.Shop")["notes"]
    assert len(notes) == 3 and "keep-daily" in notes[0] and "drill is left out" in notes[1] and "--no-init" in notes[2]
    whole = config.read_text()
    for line, message in (
        ("--format cron --every 7m", "invalid value for '--every': '7m' is not one of"),
        ("--format cron --at 25:00", "invalid value for '--at': '25:00' does not match"),
        ("--format cron --image x", "--image is for kubernetes"),
        ("--format kubernetes --image x --run-as u", "--run-as for systemd"),
        ("--format kubernetes", "no image"),
        ("--format systemd --run-as a\nb", "no file of a schedule may hold"),
        ("--format systemd " + " ".join(f"--without {job}" for job in JOBS), "nothing is left"),
    ):
        done = typed("schedule", "--profile", "shop", *line.split(" "))
        assert done.code == 2 and message in done.err, line
    for old, new, message in (
        (f'repo = "{tmp_path}', 'repo = "here', "does not begin with /"),
        ("[profiles.shop.backup]", "[profiles.shop.bakcup]", "bakcup"),
        ("[defaults]\nrepo", "[defaults]\ns3-region", "names no repository"),
    ):
        config.write_text(whole.replace(old, new))
        done = typed("schedule", "--profile", "shop", "--format", "cron")
        assert done.code == 2 and message in done.err, done.err


def test_without_a_profile_there_is_nothing_to_schedule(typed: Type) -> None:
    done = typed("schedule", "--format", "cron")
    assert done.code == 2 and "Name it with --profile." in done.err


@given(st.text(min_size=1, max_size=20), st.sampled_from(INTERVALS))
def test_times_follow_from_the_name_and_fit_the_interval(name: str, every: str) -> None:
    times, between = times_of(name, every, None)
    assert times_of(name, every, None) == (times, between)
    for job in ("backup", "status"):
        when = times[job]
        runs = len(when.minutes) * (24 if when.hours is None else len(when.hours))
        assert runs * between == 24 * 60 and when.day is None
        assert all(0 <= minute < 60 for minute in when.minutes)
    for job in ("forget", "verify", "drill"):
        assert len(times[job].minutes) == len(times[job].hours or ()) == 1
    assert times["drill"].day in range(1, 29)


def test_times_are_written_as_both_have_them() -> None:
    times, between = times_of("any", "6h", datetime(1900, 1, 1, 22, 30))
    assert times["backup"].cron == "30 4,10,16,22 * * *"
    jobs = tuple(Job(name, (name,), times[name]) for name in ("backup", "forget"))
    units = schedule_files("systemd", Plan("any", Path("/c"), ("/j",), jobs, (), between))
    assert "\nOnCalendar=*-*-* 04,10,16,22:30:00\n" in units["jsbackup-any-backup.timer"]
    assert "\nOnCalendar=*-*-* 23:30:00\n" in units["jsbackup-any-forget.timer"]
    assert (times["forget"].cron, times["verify"].cron) == ("30 23 * * *", "30 0 * * *")
    early = datetime(1900, 1, 1, 0, 7)
    assert times_of("any", "10m", early)[0]["backup"].cron == "7,17,27,37,47,57 * * * *"
    assert times_of("any", "1d", early)[0]["backup"].cron == "7 0 * * *"


_VALUES = st.recursive(
    st.text() | st.booleans() | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=8), st.dictionaries(st.text(max_size=4), _VALUES, max_size=3) | st.text()))
def test_yaml_is_read_as_it_was_meant(value: dict[str, Any]) -> None:
    assert yaml.safe_load(to_yaml(value)) == value


@given(st.dictionaries(st.text("ab-", min_size=1), st.text() | st.booleans() | st.integers() | st.lists(st.text())))
def test_toml_is_read_as_it_was_meant(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text({"a.b": table}))["a"]["b"] == table


@pytest.mark.parametrize("word", ["plain", "with blank", 'quo"te', "back\\slash", "per%cent", "dol$lar", "a;b", ""])
def test_words_of_units_come_through(word: str) -> None:
    # systemd.service(5): quotes and backslashes as in a shell, %% and $$ for the signs themselves.
    (read,) = shlex.split(_escaped(word)) or [""]
    assert read.replace("%%", "%").replace("$$", "$") == word


# --- whatever a profile holds, a file has the lines it should have ---

_WORDS = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=12).map(str.strip)
_PLACES = ("config", "repo", "output", "creds", "program")
_ENDS = st.sampled_from(
    ["\n", "\r", "\v", "\f", "\x00", "\x1b", "\x7f", "\x85", "\u2028", "\u2029", "\u202e", "\ud800"]
)


def _plan(**changes: Any) -> Plan:
    paths = {"config": "/etc/c.toml", "repo": "/srv/repo", "output": "/srv/out", "creds": "/etc/creds", "program": "/j"}
    paths |= changes
    times, between = times_of("p", "1h", None)
    credentials = (("creds", paths["creds"]),)
    jobs = tuple(
        Job(name, (name, "--no-init"), times[name], credentials, Path(paths["repo"]), (Path(paths["output"]),))
        for name in JOBS
    )
    return Plan("p", Path(paths["config"]), (paths["program"],), jobs, ("VARIABLE",), between)


def _files(plan: Plan) -> list[str]:
    kinds = ("cron", "systemd", "kubernetes")
    return [
        content for kind in kinds for content in schedule_files(kind, plan, image="i", config="[profiles.p]\n").values()
    ]


@settings(max_examples=60)
@given(st.tuples(*(_WORDS for _ in _PLACES)))
def test_no_path_makes_lines_of_a_schedule_of_its_own(words: tuple[str, ...]) -> None:
    paths = {place: f"/srv/{place}{word}" for place, word in zip(_PLACES, words, strict=True)}
    try:
        files = _files(_plan(**paths))
    except UsageError:
        assert not all(path.isprintable() and not path.endswith("\\") for path in paths.values())
        return
    usual = _files(_plan())
    assert [_shape(text) for text in files] == [_shape(text) for text in usual]
    for _, command in _cron_lines(files[0]):
        words = shlex.split(command.replace("\\%", "%"))
        assert (words[0], words[words.index("--config") + 1]) == (paths["program"], paths["config"])
    told = [line for line in files[-1].splitlines() if "--from-file" in line]
    assert f"--from-file=creds={paths['creds']}" in shlex.split(told[0].removeprefix("#"))
    (_, backup, *_) = yaml.safe_load_all(files[-1])
    mounts = backup["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert {paths["repo"], paths["output"]} <= {mount["mountPath"] for mount in mounts}


def _shape(text: str) -> list[str]:
    """How each line begins, as any reader that ends lines wherever some reader does."""
    lines = text.splitlines()
    return [line if line.startswith("---") else re.split(r"[=: ]", line.lstrip(), maxsplit=1)[0] for line in lines]


@given(st.sampled_from(_PLACES), _WORDS, _ENDS, _WORDS)
def test_what_could_end_a_line_is_refused_in_every_path(place: str, before: str, end: str, after: str) -> None:
    with pytest.raises(UsageError, match="no file of a schedule may hold"):
        _plan(**{place: f"/srv/{before}{end}{after}"})


@pytest.mark.parametrize("kind", FORMATS)
def test_a_line_feed_in_a_profile_is_refused(kind: str, typed: Type, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for line in (
        r'repo = "/backups\nExecStartPre=+/bin/sh -c id\n#"',
        r'repo = "${EVIL}"',
        r'repo = "/backups"' + "\n" + r'creds = "/etc/x\n---\napiVersion: v1\nkind: Pod"',
        r'repo = "s3://b/p"' + "\n" + r'identity = "/etc/x\u2028* * * * * id"',
    ):
        path.write_text(f"[profiles.shop]\n{line}\n")
        path.chmod(0o600)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EVIL", "/backups\nUser=root")
            done = typed("schedule", "--config", path, "--profile", "shop", "--format", kind, *FORMATS[kind])
        assert (done.code, done.out) == (2, ""), done.out
        assert "no file of a schedule may hold '/" in done.err
