"""A bucket and a prefix in it, with a client: shared by the parts of the S3 store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from jsbackup.errors import ObjectExists
from jsbackup.model import S3Settings
from jsbackup.stores.s3_client import CANNOT, Refusal, make_client, s3_errors

__all__ = ["Bucket"]

_EXISTS = frozenset({"PreconditionFailed", "412"})


class Bucket:
    """A bucket. `folder` is the prefix followed by `/`, or empty. The client is made at the first use."""

    def __init__(self, name: str, folder: str, settings: S3Settings) -> None:
        self.name = name
        self.folder = folder
        self.settings = settings
        self._lock = threading.Lock()
        self._client: Any = None
        self._reached = False
        self._condition: Mapping[str, str] = {"IfNoneMatch": "*"}

    @property
    def location(self) -> str:
        return f"s3://{self.name}/{self.folder}".rstrip("/")

    @property
    def client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = make_client(self.settings)
                self._client.meta.events.register("response-received.s3", self._note_answer)
            return self._client

    def _note_answer(self, response_dict: object = None, **_others: object) -> None:
        self._reached = self._reached or response_dict is not None

    def target(self, key: str) -> dict[str, Any]:
        """Return the parameters that name an object."""
        return {"Bucket": self.name, "Key": self.folder + key}

    def explained(self, doing: str, asked: frozenset[str] = frozenset()) -> AbstractContextManager[None]:
        """Return the context manager for every use of the client: see `s3_client.explained`."""
        return s3_errors(doing, self.settings.endpoint, asked=asked, reached=self._reached)

    def create_only(self, key: str, doing: str, send: Callable[[Mapping[str, str]], object]) -> None:
        """Call `send` with the condition that there is no such object; without it if the store does not support it.

        Raises:
            ObjectExists: the condition does not hold.
        """
        condition = self._condition
        try:
            with self.explained(doing, _EXISTS | (CANNOT if condition else frozenset())):
                send(condition)
        except Refusal as refusal:
            if refusal.code in _EXISTS:
                raise ObjectExists(key) from None
            self._condition = {}
            with self.explained(doing):
                send({})
