"""Users and certificates for tests: an operator with accounts and JWT users, and a certificate authority."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nkeys
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Key:
    """An nkey pair of some role."""

    def __init__(self, role: int = nkeys.PREFIX_BYTE_USER) -> None:
        self.seed: str = nkeys.encode_seed(os.urandom(32), role).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public: str = self._pair.public_key.decode()

    def jwt(self, subject: str, name: str, claims: dict[str, Any], **outer: Any) -> str:
        """A JWT of the NATS kind, signed by this key."""
        body = {"iat": int(time.time()), "iss": self.public, "jti": name, "name": name, "sub": subject, **outer}
        parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, {**body, "nats": {**claims, "version": 2}})
        signed = ".".join(_base64url(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_base64url(self._pair.sign(signed.encode()))}"


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


_UNLIMITED = dict.fromkeys(
    (
        "subs",
        "data",
        "payload",
        "imports",
        "exports",
        "conn",
        "leaf",
        *(_STORED := ("mem_storage", "disk_storage", "streams", "consumer")),
    ),
    -1,
)


class Operator:
    """An operator with a system account and others, by name; `config` makes a server trust it.

    `tiers` are JetStream limits of the accounts by their number of replicas, such as `{"R1": {"streams": 1}}`. `twins`
    are names of more accounts, which others may have too; `keys` are those of all accounts.
    """

    def __init__(
        self,
        tiers: Mapping[str, Mapping[str, int]] | None = None,
        accounts: Sequence[str] = ("APP",),
        twins: Sequence[str] = (),
    ) -> None:
        operator, system = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_ACCOUNT)
        self.system = system
        self.accounts = {name: Key(nkeys.PREFIX_BYTE_ACCOUNT) for name in accounts}
        self.account = self.accounts[accounts[0]]
        named = [*self.accounts.items(), *((name, Key(nkeys.PREFIX_BYTE_ACCOUNT)) for name in twins)]
        named.sort(key=lambda one: accounts.index(one[0]))
        self.keys = [key for _, key in named]
        jwt = operator.jwt(operator.public, "op", {"type": "operator", "system_account": system.public})
        limits = {"type": "account", "limits": {**_UNLIMITED, "wildcards": True}}
        flat = {key: value for key, value in _UNLIMITED.items() if key not in _STORED} | {"wildcards": True}
        # The system account must not have JetStream.
        system_limits = {"type": "account", "limits": flat}
        if tiers is not None:
            own = {name: {**dict.fromkeys(_STORED, -1), **given} for name, given in tiers.items()}
            limits = {"type": "account", "limits": {**flat, "tiered_limits": own}}
        preload = "\n".join(
            f"  {key.public}: {operator.jwt(key.public, name, claims)}"
            for key, name, claims in (
                (system, "SYS", system_limits),
                *((key, name, limits) for name, key in named),
            )
        )
        self.config = (
            f"operator: {jwt}\nsystem_account: {system.public}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"
        )

    def user(
        self,
        *,
        account: str = "",
        key: Key | None = None,
        bearer: bool = False,
        expires: int | None = None,
        publish: Sequence[str] = (),
    ) -> tuple[str, str]:
        """JWT and seed of a new user, of the first account if none is named (or given by its key); with `publish` it
        may publish no more."""
        user = Key()
        claims: dict[str, Any] = {"type": "user", "subs": -1, "data": -1, "payload": -1}
        if bearer:
            claims["bearer_token"] = True
        if publish:
            claims["pub"] = {"allow": list(publish)}
        outer = {} if expires is None else {"exp": expires}
        key = key or (self.accounts[account] if account else self.account)
        return key.jwt(user.public, "ann", claims, **outer), user.seed

    def system_user(self, *, publish: Sequence[str] = ()) -> tuple[str, str]:
        """JWT and seed of a new user of the system account."""
        return self.user(key=self.system, publish=publish)


def creds_text(jwt: str, seed: str) -> str:
    """As `nsc` writes a credentials file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


@dataclass(frozen=True, slots=True)
class Certificate:
    cert: Path
    key: Path


class Authority:
    """A certificate authority that signs for 127.0.0.1 and for client names. Files go to `directory`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        cert = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.cert = directory / f"{name}.pem"
        self.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *, address: str = "127.0.0.1", password: bytes | None = None) -> Certificate:
        """A certificate for server and client use, with its key, encrypted if there is a password."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        cert = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
            .add_extension(names, critical=False)
            .add_extension(usages, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        made.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        made.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return made

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )
