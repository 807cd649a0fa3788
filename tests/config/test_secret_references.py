"""References to secrets are followed as the nats CLI follows them, or refused without repeating what they hold."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets as random
import stat
import time
from pathlib import Path

import nkeys
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.config.connection import ConnectionOptions, Nkey, UserJwt, UserPassword, read_context, source_connection
from jsbackup.config.secrets import is_reference, looked_up, needs_program, resolve_reference, resolve_secret
from jsbackup.errors import UsageError
from tests.config.test_secrets import PLANTED, _assert_hidden, creds_text, new_seed
from tests.harness.natscli import jsm_logins


def program(folder: Path, name: str, script: str) -> dict[str, str]:
    """An environment in whose PATH a shell script stands for a program."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}


def test_a_reference_is_a_file_unless_it_has_a_scheme(tmp_path: Path) -> None:
    file = tmp_path / "my:odd.creds"
    file.write_text("content")
    environ = {"D": str(tmp_path), "VALUE": "from the environment"}
    assert resolve_reference(str(file), "creds", {}) == "content"
    assert resolve_reference("$D/my:odd.creds", "creds", environ) == "content"
    assert resolve_reference(f"file://{file}", "creds", {}) == "content"
    assert resolve_reference("FILE://$D/my:odd.creds", "creds", environ) == "content"
    assert resolve_reference("env://VALUE", "creds", environ) == "from the environment"
    assert resolve_reference("data:;base64,Y29udGVudA==", "creds", {}) == "content"
    assert resolve_reference("data:text/plain;base64,Y29udGVudA==", "creds", {}) == "content"


def test_a_password_is_itself_unless_it_has_a_scheme(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(PLANTED + "\r\n")
    assert resolve_secret("a:b$HOME~", "password", {}).reveal() == "a:b$HOME~"
    assert resolve_secret(f"file://{file}", "password", {}).reveal() == PLANTED
    assert resolve_secret("env://P", "password", {"P": PLANTED}).reveal() == PLANTED
    assert resolve_secret("data:;base64,YWJj", "password", {}).reveal() == "abc"


@pytest.mark.parametrize(
    "reference",
    [
        f"data:,{PLANTED}",
        f"data:;base64{PLANTED}",
        f"data:;base64,{PLANTED}!",
        "data:;base64,/w==",
        "env://",
        "env://NO",
    ],
)
def test_broken_references_are_refused_without_being_repeated(reference: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_reference(reference, "credentials file", {})
    _assert_hidden(caught.value, PLANTED)


def test_a_seed_given_as_a_file_name_is_not_repeated() -> None:
    seed = new_seed()
    with pytest.raises(UsageError, match="looks like a secret") as caught:
        resolve_reference(seed, "nkey file", {})
    _assert_hidden(caught.value, seed)


def test_a_jwt_given_as_a_file_name_is_not_repeated() -> None:
    jwt = "eyJ0eXAi." + "a" * 5000 + ".c2ln"
    with pytest.raises(UsageError, match="looks like a secret") as caught:
        resolve_reference(jwt, "credentials file", {})
    _assert_hidden(caught.value, jwt)


# --- references that start a program ---


def test_op_is_asked_and_its_line_end_dropped(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "op", f'echo "$@" > {tmp_path}/asked; echo {PLANTED}')
    assert resolve_secret("op://vault/item/field", "password", environ).reveal() == PLANTED
    assert (tmp_path / "asked").read_text() == "read op://vault/item/field\n"
    assert resolve_secret("OP://My Vault/item/field", "password", environ).reveal() == PLANTED
    assert (tmp_path / "asked").read_text() == "read op://My Vault/item/field\n"


def test_variables_expand_in_references_to_files_only(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "op", 'echo "$2"') | {"VAULT": "prod"}
    assert resolve_reference("op://$VAULT/item/creds", "credentials file", environ) == "op://prod/item/creds\n"
    assert resolve_secret("op://$VAULT/item/x", "password", environ).reveal() == "op://$VAULT/item/x"
    with pytest.raises(UsageError, match=r"op:// reference \$NO/item names the variable NO, which is not set"):
        resolve_reference("op://$NO/item", "credentials file", environ)


def test_nsc_names_the_credentials_file(tmp_path: Path) -> None:
    creds = tmp_path / "user.creds"
    creds.write_text(creds_text("eyJ0.eyJh.c2ln", new_seed()))
    profile = json.dumps({"user_creds": str(creds), "operator": {"service": ["nats://a", "nats://b"]}})
    environ = program(tmp_path / "bin", "nsc", f"echo \"$@\" > {tmp_path}/asked; echo '{profile}'")
    assert resolve_reference("nsc://O/A/U", "credentials file", environ) == creds.read_text()
    assert (tmp_path / "asked").read_text() == "generate profile nsc://O/A/U\n"
    assert resolve_reference("NSC://O/A/U", "nkey file", environ) == creds.read_text()


@pytest.mark.parametrize("old", ["O/A/U", "nsc://O/A/U", "NSC://O/A/U"])
def test_the_old_key_of_contexts_stands_for_credentials_and_servers(tmp_path: Path, old: str) -> None:
    profile = json.dumps({"user_creds": "/keys/u.creds", "operator": {"service": ["nats://a", "nats://b"]}})
    environ = program(tmp_path / "bin", "nsc", f"echo \"$@\" >> {tmp_path}/asked; echo '{profile}'")
    context = tmp_path / "old.json"
    context.write_text(json.dumps({"nsc": old}))
    assert read_context(str(context), environ) == ConnectionOptions(server="nats://a,nats://b", creds="/keys/u.creds")
    context.write_text(json.dumps({"nsc": old, "url": "nats://mine"}))
    assert read_context(str(context), environ) == ConnectionOptions(server="nats://mine", creds="/keys/u.creds")
    context.write_text(json.dumps({"nsc": old, "creds": "/mine.creds"}))
    assert read_context(str(context), environ) == ConnectionOptions(server="nats://a,nats://b", creds="/mine.creds")
    assert (tmp_path / "asked").read_text() == "generate profile nsc://O/A/U\n" * 3
    context.write_text(json.dumps({"nsc": old, "url": "nats://mine", "creds": "/mine.creds"}))
    assert read_context(str(context), {}) == ConnectionOptions(server="nats://mine", creds="/mine.creds")


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("no json", "profile that nsc prints for the credentials file is not JSON"),
        ("[]", "profile that nsc prints"),
        ("{}", "nsc names no credentials file for nsc://O/A"),
        ('{"user_creds": 7, "operator": []}', "nsc names no credentials file"),
        ('{"user_creds": "/nonexistent/x.creds"}', "credentials file /nonexistent/x.creds does not exist"),
    ],
)
def test_what_nsc_prints_is_not_trusted(tmp_path: Path, printed: str, message: str) -> None:
    environ = program(tmp_path / "bin", "nsc", f"echo '{printed}'")
    with pytest.raises(UsageError) as caught:
        resolve_reference("nsc://O/A", "credentials file", environ)
    assert message in caught.value.message


@pytest.mark.parametrize("scheme", ["op", "nsc"])
def test_a_missing_program_is_named(scheme: str, tmp_path: Path) -> None:
    for environ in ({}, {"PATH": str(tmp_path)}):
        with pytest.raises(UsageError, match=rf"the password is an {scheme}:// reference, and the program {scheme}"):
            resolve_secret(f"{scheme}://a/b/c", "password", environ)


@pytest.mark.parametrize("scheme", ["op", "nsc"])
def test_a_program_that_fails_is_named_without_what_it_prints(scheme: str, tmp_path: Path) -> None:
    seed = new_seed()
    script = f"echo {PLANTED}; echo 'first line' >&2; echo 'Error: no such thing: {seed} eyJhbGci.x.y' >&2; exit 6"
    environ = program(tmp_path / "bin", scheme, script)
    with pytest.raises(UsageError) as caught:
        resolve_secret(f"{scheme}://a/b/c", "token", environ)
    assert caught.value.message.startswith(f"the token {scheme}://a/b/c cannot be looked up: '{scheme} ")
    assert caught.value.message.endswith("failed with exit code 6")
    assert str(caught.value.hint).endswith("a/b/c' by hand to see why.")
    _assert_hidden(caught.value, PLANTED)
    _assert_hidden(caught.value, seed)


@pytest.mark.parametrize("script", [":", "echo", "printf '\\n\\n'"])
def test_a_program_that_prints_nothing_is_an_error(script: str, tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "op", script)
    with pytest.raises(UsageError, match="'op read' prints nothing"):
        resolve_secret("op://a/b/c", "token", environ)


def test_what_is_looked_up_has_to_be_text(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "op", "printf '\\377\\376'")
    with pytest.raises(UsageError, match="what was looked up for the token is not text") as caught:
        resolve_secret("op://a/b/c", "token", environ)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "script", ["sleep 600", "exec >&- 2>&-; sleep 600", "sleep 600 & exit 0", "trap '' TERM; echo x; sleep 600"]
)
def test_a_program_that_hangs_is_stopped_with_all_that_it_started(script: str, tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "op", f"echo $$ > {tmp_path}/pid; {script}")
    with pytest.raises(UsageError, match=r"did not end within 0\.5 s, and was stopped") as caught:
        looked_up(["op", "read", "op://a"], "op://a", "token", environ, limit_seconds=0.5)
    assert caught.value.hint == "It may wait to be unlocked: run 'op read op://a' by hand once."
    group = (tmp_path / "pid").read_text().strip()
    until = time.monotonic() + 30
    while any(_group(path) == group for path in Path("/proc").glob("[0-9]*")) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(_group(path) == group for path in Path("/proc").glob("[0-9]*"))


def _group(process: Path) -> str:
    """The process group of a live process."""
    with contextlib.suppress(OSError):
        state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
        return "" if state == "Z" else group
    return ""


def test_a_program_that_prints_too_much_is_refused(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "op", "head -c 5000000 /dev/zero")
    with pytest.raises(UsageError, match="the token op://a/b/c cannot be looked up: 'op read' prints more than 4 MiB"):
        resolve_secret("op://a/b/c", "token", environ)


def test_a_program_gets_no_input_and_the_given_environment(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "op", 'cat; echo "$OP_ACCOUNT"') | {"OP_ACCOUNT": "me"}
    assert resolve_secret("op://a/b/c", "token", environ).reveal() == "me"


def test_references_are_told_from_secrets() -> None:
    for text in ("env://A", "file:///x", "op://a/b/c", "NSC://o/a/u"):
        assert is_reference(text)
    for text in ("hunter2", "data:;base64,aGk=", "https://hc/uuid", "op:x", "a/op://b"):
        assert not is_reference(text)
    assert [needs_program(text) for text in ("op://a", "NSC://a", "env://A", "x")] == ["op", "nsc", None, None]


@given(st.text(max_size=60), st.binary(max_size=60))
def test_any_reference_is_a_secret_or_a_usage_error(text: str, raw: bytes) -> None:
    encoded = base64.b64encode(raw).decode()
    for candidate in (text, f"data:;base64,{text}", f"data:;base64,{encoded}", f"env://{text}", f"op://{text}"):
        with contextlib.suppress(UsageError):
            resolve_secret(candidate, "password", {})
        with contextlib.suppress(UsageError):
            resolve_reference(candidate, "credentials file", {})


def test_every_way_to_log_in_takes_a_reference(tmp_path: Path) -> None:
    seed, jwt = new_seed(), "eyJ0.eyJh.c2ln"
    environ = program(tmp_path / "bin", "op", f'cat "{tmp_path}/$(basename "$2")"')
    for name, content in {"seed": seed, "jwt": jwt, "word": PLANTED, "creds": creds_text(jwt, seed)}.items():
        (tmp_path / name).write_text(f"{content}\n")
    context = tmp_path / "shop.json"

    def login(**fields: str) -> object:
        context.write_text(json.dumps({"url": "nats://a", **fields}))
        made = source_connection(ConnectionOptions(context=str(context)), environ)
        return made.login or made.token

    shown = {
        "password": login(user="u", password="op://v/i/word"),
        "token": login(token="op://v/i/word"),
        "creds": login(creds="op://v/i/creds"),
        "nkey": login(nkey="op://v/i/seed"),
        "jwt": login(user_jwt="op://v/i/jwt", user_seed="op://v/i/seed"),
    }
    plain = {
        "password": login(user="u", password=PLANTED),
        "token": login(token=PLANTED),
        "creds": login(creds=str(tmp_path / "creds")),
        "nkey": login(nkey=str(tmp_path / "seed")),
        "jwt": login(user_jwt=jwt, user_seed=seed),
    }
    assert shown == plain
    for field in ("cert", "key", "ca"):
        with pytest.raises(UsageError, match="has to be a file, not a reference of the kind op://"):
            login(**{"cert": str(context), "key": str(context), field: "op://v/i/word"})


# --- beside the nats CLI's own library ---

_RAW = st.text(st.characters(codec="utf-8", exclude_characters="\0$~\ud800"), min_size=1, max_size=20)
_ODD = st.sampled_from(["", "/", "//", ":", "a b", "ü", "%2f", "%zz", "?x=1", "#f", "..", "\t"])
_FIELDS = ("password", "token", "user_jwt", "creds", "nkey")


@pytest.mark.natscli
@pytest.mark.timeout(900)
@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_natscontext_finds_the_same_secrets(tmp_path: Path, data: st.DataObject) -> None:
    """Where natscontext finds a login, we find the same; where it finds none, so do we, but for what the docstring of
    the module names."""
    seed, jwt = new_seed(), f"eyJ0.{random.token_hex(8)}.c2ln"
    creds = creds_text(jwt, seed)
    for name, content in {"creds": creds, "seed": f"{seed}\n", "word": f"{PLANTED}\r\n", "jwt": f"{jwt}\n"}.items():
        (tmp_path / name).write_text(content)
    environ = program(
        tmp_path / "bin", "op", f'test -f "{tmp_path}/$(basename "$2")" && cat "{tmp_path}/$(basename "$2")"'
    )
    program(tmp_path / "bin", "nsc", f'echo "{{\\"user_creds\\": \\"{tmp_path}/$(basename "$3")\\"}}"')
    environ |= {"D": str(tmp_path), "CREDS": creds, "SEED": seed, "WORD": f"{PLANTED}\n", "JWT": jwt, "EMPTY": ""}

    def reference(field: str) -> str:
        content = {"password": "word", "token": "word", "user_jwt": "jwt", "nkey": "seed"}.get(field, "creds")
        inline = base64.b64encode((tmp_path / content).read_bytes()).decode()
        literal = {"user_jwt": jwt, "password": "p", "token": "t"}.get(field, str(tmp_path / content))
        return data.draw(
            st.sampled_from(
                [
                    literal,
                    f"{tmp_path}/{content}",
                    f"$D/{content}",
                    f"${{D}}/{content}",
                    f"file://{tmp_path}/{content}",
                    f"FILE://$D/{content}",
                    f"file:///nonexistent/{content}",
                    f"env://{content.upper()}",
                    "Env://EMPTY",
                    "env://NOT_SET",
                    "env://",
                    f"data:;base64,{inline}",
                    f"DATA:text/plain; base64 ,{inline[:8]}\n{inline[8:]}",
                    f"data:,{inline}",
                    f"data:;base64,{inline}!",
                    f"op://vault/item/{content}",
                    f"OP://vault/{content}",
                    "op://vault/item/absent",
                    f"nsc://O/A/{content}",
                    "nsc://O/A/absent",
                    f"http://host/{content}",
                ]
            )
            | st.builds("{}{}".format, st.sampled_from(["op://", "env://", "x:", ""]), _ODD)
            | _RAW
        )

    documents = []
    for field in data.draw(st.lists(st.sampled_from(_FIELDS), min_size=12, max_size=12)):
        document = {"url": "nats://a", field: reference(field)}
        if field == "password":
            document["user"] = "u"
        documents.append(document)
    paths = []
    for number, document in enumerate(documents):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(document))
    for path, document, theirs in zip(paths, documents, jsm_logins(paths, environ), strict=True):
        ours = _login(path, environ)
        text = next(value for key, value in document.items() if key in _FIELDS)
        # What is no URL for Go has no scheme there.
        unlike = bool(re.search(r"[\x00-\x20\x7f%]", text)) and (is_reference(text) or text.lower().startswith("data:"))
        if theirs["error"]:
            assert ours is None or unlike, (document, theirs)
        elif ours is None:
            # We refuse what is no JWT before a server does.
            assert unlike or ("user_jwt" in document and theirs["jwt"] != jwt), document
        else:
            assert unlike or ours == {key: value for key, value in theirs.items() if key != "error"}, document


def _login(context: Path, environ: dict[str, str]) -> dict[str, str] | None:
    """What a client would send, in the words of `jsm_logins`; None if it cannot be found out."""
    try:
        made = source_connection(ConnectionOptions(context=str(context)), environ)
    except UsageError:
        return None
    found = dict.fromkeys(("user", "password", "token", "jwt", "nkey", "signature"), "")
    found["url"] = "nats://a"
    seed = None
    match made.login:
        case UserPassword():
            found |= {"user": made.login.user, "password": made.login.password.reveal()}
        case Nkey():
            seed = made.login.seed.reveal()
            found["nkey"] = nkeys.from_seed(bytearray(seed.encode())).public_key.decode()
        case UserJwt():
            found["jwt"], seed = made.login.jwt.reveal(), made.login.seed and made.login.seed.reveal()
    if seed is not None:
        found["signature"] = base64.b64encode(nkeys.from_seed(bytearray(seed.encode())).sign(b"nonce")).decode()
    if made.token is not None:
        found["token"] = made.token.reveal()
    return found
