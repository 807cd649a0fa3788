"""The nats CLI's contexts, read from a folder as the CLI lays it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jsbackup.config.connection import ConnectionOptions, read_context, selected_context
from jsbackup.errors import UsageError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "nats" / "context").mkdir(parents=True)
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": "/nonexistent"}


def write(environ: dict[str, str], name: str, document: Any) -> Path:
    path = Path(environ["XDG_CONFIG_HOME"]) / "nats" / "context" / f"{name}.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_every_field_that_the_cli_writes_is_taken_and_unknown_ones_are_ignored(environ: dict[str, str]) -> None:
    write(
        environ,
        "prod",
        {
            "description": "Production",
            "url": "nats://a:4222,nats://b:4222",
            "socks_proxy": "",
            "token": "t",
            "user": "u",
            "password": "p",
            "creds": "~/x.creds",
            "nkey": "x.nk",
            "cert": "c.pem",
            "key": "k.pem",
            "ca": "ca.pem",
            "nsc": "",
            "jetstream_domain": "hub",
            "jetstream_api_prefix": "",
            "jetstream_event_prefix": "",
            "inbox_prefix": "_I",
            "user_jwt": "j",
            "user_seed": "s",
            "color_scheme": "bold",
            "tls_first": True,
            "windows_cert_store": "",
            "windows_ca_certs_match": None,
            "from_the_future": {"a": [1]},
        },
    )
    assert read_context("prod", environ) == ConnectionOptions(
        server="nats://a:4222,nats://b:4222",
        token="t",
        user="u",
        password="p",
        creds="~/x.creds",
        nkey="x.nk",
        tls_cert="c.pem",
        tls_key="k.pem",
        tls_ca="ca.pem",
        js_domain="hub",
        inbox_prefix="_I",
        jwt="j",
        seed="s",
        tls_first=True,
    )


def test_without_xdg_the_folder_is_in_the_home_directory(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "dev.json").write_text('{"url": "nats://dev"}')
    (folder.parent / "context.txt").write_text("dev\n")
    environ = {"HOME": str(tmp_path)}
    assert selected_context(environ) == "dev"
    assert read_context("dev", environ).server == "nats://dev"


def test_no_selection_is_no_context(environ: dict[str, str]) -> None:
    assert selected_context(environ) is None
    (Path(environ["XDG_CONFIG_HOME"]) / "nats" / "context.txt").write_text(" \n")
    assert selected_context(environ) is None
    assert selected_context({"XDG_CONFIG_HOME": "/nonexistent"}) is None


def test_a_path_to_a_json_file_is_a_context_too(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.json"
    path.write_text('{"url": "nats://elsewhere"}')
    assert read_context(str(path), environ).server == "nats://elsewhere"


def test_a_missing_context_names_those_that_are_there(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="there is no nats context 'prod'") as caught:
        read_context("prod", environ)
    assert caught.value.hint == "Make one with: nats context add NAME."
    write(environ, "staging", {})
    write(environ, "dev", {})
    with pytest.raises(UsageError) as caught:
        read_context("prod", environ)
    assert caught.value.hint == "Known contexts: dev, staging."


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\\b", "..", "/etc/x.json", "a\0b"])
def test_a_name_cannot_leave_the_folder(environ: dict[str, str], name: str) -> None:
    with pytest.raises(UsageError, match="not a name of a nats context"):
        read_context(name, environ)


@pytest.mark.parametrize("text", ["", "{", '{"password": "hunter2"', "[]", "null", '"hunter2"', "[" * 100_000, "\x00"])
def test_what_is_no_json_object_is_refused_without_showing_the_file(environ: dict[str, str], text: str) -> None:
    write(environ, "bad", text)
    with pytest.raises(UsageError, match="nats context 'bad' is not") as caught:
        read_context("bad", environ)
    assert caught.value.__cause__ is None
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"url": 4222}, "'url' in nats context 'bad' is not a text"),
        ({"password": ["p"]}, "'password' in nats context 'bad' is not a text"),
        ({"tls_first": "yes"}, "'tls_first' in nats context 'bad' is neither true nor false"),
        ({"nsc": ["o/a/u"]}, "'nsc' in nats context 'bad' is not a text"),
        ({"nsc": "o/a/u"}, "the program nsc (the tool that manages NATS accounts) is not on the PATH"),
    ],
)
def test_what_cannot_be_honoured_is_refused(environ: dict[str, str], document: dict[str, Any], message: str) -> None:
    write(environ, "bad", document)
    with pytest.raises(UsageError) as caught:
        read_context("bad", environ)
    assert message in caught.value.message


def test_options_name_what_is_given_and_show_none_of_it() -> None:
    options = ConnectionOptions(server="nats://u:hunter2@h", password="hunter2", token="", tls_first=False)
    assert repr(options) == "ConnectionOptions(server, password, tls_first)"
