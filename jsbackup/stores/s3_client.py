"""Calls of boto3 for the S3 store, and its errors in words. The only module that imports boto3 and botocore.

Nothing here retries: botocore's own retries are off, `RetryingStore` does it. Messages are ours, because those of
botocore and of servers may quote secrets; of an answer only the error code is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import boto3
from botocore import exceptions as boto
from botocore.config import Config
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from jsbackup.errors import StoreError
from jsbackup.model import S3Settings

__all__ = ["CANNOT", "DENIED", "Refusal", "denied", "make_client", "s3_access", "s3_errors"]

# Codes that callers handle; the numbers are statuses of answers to HEAD, which have no code.
CANNOT = frozenset({"NotImplemented", "501", "MethodNotAllowed", "405"})
DENIED = frozenset({"AccessDenied", "403"})

# More than the threads that use a store at a time: 64 streams, parts of large objects, and some to spare.
_CONNECTIONS = 100

# A store may request a pause, but not one so long that the backup fails.
_MAX_RETRY_AFTER_SECONDS = 60.0

_TEMPORARY_CODES = {
    "BadDigest",  # damaged in transit
    "ConditionalRequestConflict",
    "IncompleteBody",
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}
_TEMPORARY_STATUS = {408, 409, 425, 429, 500, 502, 503, 504, 507, 509, 529}

_CREDENTIALS = "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile."
_PERMISSIONS = (
    "The user needs s3:ListBucket, s3:ListBucketMultipartUploads and s3:GetBucketObjectLockConfiguration on the "
    "bucket, and s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on what is in it."
)
_REGION = "Name the region of the bucket with --s3-region."

# error code -> meaning, hint
_SENTENCES: dict[str, tuple[str, str]] = {
    "NoSuchBucket": ("there is no such bucket", "Make the bucket, or check its name and the endpoint."),
    "InvalidBucketName": ("no bucket can have this name", "Check the name of the bucket."),
    "AccessDenied": ("access is denied", _PERMISSIONS),
    "AllAccessDisabled": ("access is denied", _PERMISSIONS),
    "AccountProblem": ("the account is not in order", "See what the provider says about the account."),
    "InvalidAccessKeyId": ("the access key is not known to the store", _CREDENTIALS),
    "SignatureDoesNotMatch": ("the secret key is not the one of the access key", _CREDENTIALS),
    "InvalidToken": ("the session token is not valid", _CREDENTIALS),
    "InvalidClientTokenId": ("the credentials are not known to the store", _CREDENTIALS),
    "ExpiredToken": ("the session token has expired", "Get new credentials and run the command again."),
    "RequestTimeTooSkewed": ("the clocks of the store and of this machine differ too much", "Set the clock right."),
    "PermanentRedirect": ("the bucket is in another region", _REGION),
    "TemporaryRedirect": ("the bucket is in another region", _REGION),
    "AuthorizationHeaderMalformed": ("the bucket is in another region", _REGION),
    "IllegalLocationConstraintException": ("the bucket is in another region", _REGION),
    "InvalidRegionName": ("there is no such region", _REGION),
    "InvalidStorageClass": ("there is no such storage class", "Check --s3-storage-class."),
    "InvalidEncryptionAlgorithmError": ("this kind of encryption is not known to the store", "Check --s3-sse."),
    "InvalidObjectState": (
        "the object is in an archive class and cannot be read",
        "Let the store bring it back to a class that can be read.",
    ),
    "QuotaExceeded": ("the quota is used up", "Free some space; what was stored already is used again."),
    "NotImplemented": ("the store cannot do this", "Leave out the S3 options that the store does not know."),
}
# HEAD has no body and therefore no code.
_BY_STATUS = {301: "PermanentRedirect", 307: "TemporaryRedirect", 401: "AccessDenied", 403: "AccessDenied"}

_CODE = re.compile(r"[A-Za-z0-9.:_-]{1,64}")


def s3_access(settings: S3Settings) -> dict[str, str]:
    """Return how other libraries reach the same store, as far as it is known: `endpoint`, `region`, `access_key_id`,
    `secret_access_key`, `session_token`.
    """
    session = boto3.Session(profile_name=settings.profile, region_name=settings.region)
    access = {"endpoint": settings.endpoint, "region": session.region_name}
    credentials = session.get_credentials()
    if credentials is not None:
        frozen = credentials.get_frozen_credentials()
        access |= {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "session_token": frozen.token,
        }
    return {name: value for name, value in access.items() if value}


def make_client(settings: S3Settings) -> Any:
    """Return a boto3 client. Raises `StoreError` if the configuration is not valid."""
    custom = settings.endpoint is not None
    path_style = custom if settings.path_style is None else settings.path_style
    # boto3's default checksums break stores that do not support them, and ours are always sent.
    checksums = "when_required" if custom else "when_supported"
    with s3_errors("cannot set up S3", settings.endpoint):
        session = boto3.Session(profile_name=settings.profile)
        region = settings.region or session.region_name or ("us-east-1" if custom else None)
        return session.client(
            "s3",
            endpoint_url=settings.endpoint,
            region_name=region,
            verify=settings.ca,
            config=Config(
                s3={"addressing_style": "path" if path_style else "virtual"},
                connect_timeout=settings.connect_seconds,
                read_timeout=settings.read_seconds,
                retries={"total_max_attempts": 1},
                max_pool_connections=_CONNECTIONS,
                request_checksum_calculation=checksums,
                response_checksum_validation="when_required",
                user_agent_extra="jsbackup",
            ),
        )


class Refusal(Exception):
    """The store refused with one of the codes that the caller of `s3_errors` handles."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(code)
        self.code = code
        self.status = status


@contextmanager
def s3_errors(
    doing: str, endpoint: str | None, *, asked: frozenset[str] = frozenset(), reached: bool = False
) -> Iterator[None]:
    """Convert errors of botocore to a `StoreError` with a sentence; the codes in `asked` to `Refusal`.

    `doing` is what failed, `endpoint` where. `reached` says whether it has ever answered: an endpoint that never did
    and cannot be reached is probably wrong, rather than unavailable for a moment.
    """
    try:
        yield
    except boto.ClientError as error:
        refusal = _refusal(error)
        try:
            if refusal.code in asked:
                raise refusal from error
            raise _answer_error(doing, error, refusal) from error
        finally:
            # Otherwise a reference cycle with this frame would keep all callers' data until the next garbage
            # collection.
            del refusal
    except (boto.BotoCoreError, ResponseParserError, HTTPError, OSError) as error:
        raise _connection_error(doing, endpoint or "S3", error, reached) from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{doing}: the answer is not that of an S3 store", hint="Check that the endpoint is that of an S3 store."
        ) from error


def _refusal(error: boto.ClientError) -> Refusal:
    """Return code (a status such as `404` if there is none) and HTTP status of an answer. Malformed codes become ""."""
    answer: Mapping[str, Any] = error.response
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = str(answer.get("Error", {}).get("Code", ""))
    return Refusal(code if _CODE.fullmatch(code) else "", status if isinstance(status, int) else 0)


def _answer_error(doing: str, error: boto.ClientError, refusal: Refusal) -> StoreError:
    code, status = refusal.code, refusal.status
    headers: Mapping[str, str] = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if code in _TEMPORARY_CODES or (status in _TEMPORARY_STATUS and code not in _SENTENCES):
        return StoreError(
            f"{doing}: the store answers {status} {'' if code == str(status) else code}".rstrip(),
            hint="The store is in trouble or has too much to do; run the command again later.",
            temporary=True,
            retry_after_seconds=_retry_after(headers.get("retry-after", "")),
        )
    sentence = _SENTENCES.get(code) or _SENTENCES.get(_BY_STATUS.get(status, ""))
    if sentence is None:
        what, hint = f"the store answers {status} {'' if code == str(status) else code}".rstrip(), None
    else:
        what, hint = sentence
    region = headers.get("x-amz-bucket-region", "")
    if hint is _REGION and _CODE.fullmatch(region):
        what = f"the bucket is in the region {region}"
    return StoreError(f"{doing}: {what}", hint=hint)


def _retry_after(text: str) -> float:
    """Return seconds; a date is ignored, because the clocks may differ."""
    return min(float(text), _MAX_RETRY_AFTER_SECONDS) if re.fullmatch(r"[0-9]{1,9}", text) else 0.0


def denied(doing: str) -> StoreError:
    what, hint = _SENTENCES["AccessDenied"]
    return StoreError(f"{doing}: {what}", hint=hint)


def _connection_error(doing: str, where: str, error: Exception, reached: bool) -> StoreError:
    match error:
        case boto.NoCredentialsError() | boto.PartialCredentialsError():
            what, hint = "there are no credentials", "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile."
        case boto.ProfileNotFound():
            what, hint = "there is no such profile in the AWS configuration", "Check --s3-profile and ~/.aws/config."
        case boto.CredentialRetrievalError() | boto.SSOError() | boto.TokenRetrievalError():
            what, hint = "no credentials could be obtained", "Log in again, or check the profile."
        case boto.SSLError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
            what = f"the certificate of {where} is not signed by a known authority, or is for another name"
            hint = "Name the file of its authority with --s3-ca."
        case boto.EndpointConnectionError() | boto.ConnectTimeoutError() | boto.ProxyConnectionError():
            hint = "Check the endpoint, and that the store runs."
            return StoreError(f"{doing}: cannot reach {where}", hint=hint, temporary=reached)
        case boto.HTTPClientError() | boto.IncompleteReadError() | boto.SSLError() | HTTPError() | ConnectionError():
            how = "did not answer in time" if _is_timeout(error) else "broke the connection"
            hint = "Run the command again later; what was stored already is used again."
            return StoreError(f"{doing}: {where} {how}", hint=hint, temporary=True)
        case ResponseParserError():
            what, hint = "the answer is not that of an S3 store", "Check that the endpoint is that of an S3 store."
        case _:
            what, hint = (
                f"the S3 library failed ({type(error).__name__})",
                "Check the S3 options and the AWS configuration.",
            )
    return StoreError(f"{doing}: {what}", hint=hint)


def _is_timeout(error: Exception) -> bool:
    return isinstance(error, boto.ReadTimeoutError | TimeoutError)
