"""The permissions of a user who may look at everything on a throwaway server, and change nothing.

Reading a stream needs consumers: clients create ephemeral ones, and delete them. Consumers that were restored are out
of reach, so that what they had delivered and acknowledged stays as it was. Permissions cannot tell where a new consumer
delivers to: it might deliver into a stream. So the streams are sealed, too (`serve.py`), and take no message from
anybody.

Measured, 2.10.26 and 2.15.2: a request to `CONSUMER.CREATE.<stream>`, the old form, that has the name of a consumer in
its body updates that consumer. Clients such as nats-py make ordered consumers by this form, so it stays allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsbackup.model import JsonObject
from jsbackup.names import is_name

__all__ = ["read_permissions"]

_ALLOWED = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.DIRECT.GET.>",
    "$JS.API.CONSUMER.NAMES.*",
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.CONSUMER.INFO.*.*",
    "$JS.API.CONSUMER.CREATE.>",
    "$JS.API.CONSUMER.MSG.NEXT.*.*",
    "$JS.API.CONSUMER.DELETE.*.*",
    "$JS.ACK.>",
    "$JS.FC.>",
    "$SYS.REQ.USER.INFO",
)
# Of a consumer that was restored: updating it, taking messages from it, deleting it, acknowledging.
_DENIED = (
    "$JS.API.CONSUMER.CREATE.{0}.{1}",
    "$JS.API.CONSUMER.CREATE.{0}.{1}.>",
    "$JS.API.CONSUMER.MSG.NEXT.{0}.{1}",
    "$JS.API.CONSUMER.DELETE.{0}.{1}",
    "$JS.ACK.{0}.{1}.>",
    "$JS.ACK.*.*.{0}.{1}.>",
)


def read_permissions(consumers: Mapping[str, Iterable[str]]) -> JsonObject:
    """Return the permissions for a server's configuration; `consumers` are those to protect, by stream."""
    denied = [
        text.format(stream, one)
        for stream, names in consumers.items()
        for one in names
        if is_name(stream) and is_name(one)  # others do not get onto a server
        for text in _DENIED
    ]
    publish: JsonObject = {"allow": list(_ALLOWED)}
    if denied:
        publish["deny"] = denied
    return {"publish": publish, "subscribe": {"allow": ["_INBOX.>"]}}
