"""AWS Signature Version 4: what a request's signature must be, and whether it is.

The signature is computed as AWS's documentation has it ("Create a signed AWS API request"), for
headers only; signatures in a query string are not taken. Paths are encoded once more than they
were sent, as for every service but S3.
"""

import hashlib
import hmac
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

from peagle.serve.sagemaker.errors import AwsError

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SERVICE: Final = "sagemaker"

_TERMINATOR: Final = "aws4_request"
_SKEW: Final = timedelta(minutes=5)
_TIMESTAMP: Final = "%Y%m%dT%H%M%SZ"
_TIMESTAMP_FORM: Final = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_PART: Final = re.compile(r"\s*([A-Za-z]+)=([^,\s]*)\s*")


@dataclass(frozen=True)
class SignedRequest:
    """What of a request its signature covers, beside the body.

    Attributes:
        method: As `POST`.
        path: As it was sent, percent-encoded.
        query: The same.
        headers: Names in lower case, and values, in the order they came.
    """

    method: str
    path: bytes
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]

    def values(self, name: str) -> list[bytes]:
        """Give the values of a header."""
        return [value for told, value in self.headers if told == name.encode()]

    def value(self, name: str) -> str | None:
        """Give the value of a header that comes once; None for one that does not."""
        values = self.values(name)
        return values[0].decode("latin-1").strip() if len(values) == 1 else None


@dataclass(frozen=True)
class Claim:
    """What an `Authorization` header says of itself.

    Attributes:
        access_key: Who signed.
        scope: Date, region and service for which the key was derived.
        signed_headers: Names of the headers that are signed, in order.
        signature: The signature, in hexadecimal.
    """

    access_key: str
    scope: tuple[str, str, str]
    signed_headers: tuple[str, ...]
    signature: str

    @classmethod
    def read(cls, authorization: str) -> Self:
        """Take the header apart.

        Raises:
            AwsError: It is not as AWS has it.
        """
        algorithm, _, rest = authorization.partition(" ")
        parts: dict[str, str] = {}
        for part in rest.split(","):
            found = _PART.fullmatch(part)
            if found is None or found[1] in parts:
                raise _incomplete("the Authorization header is not of the form NAME=VALUE, …")
            parts[found[1]] = found[2]
        if algorithm != ALGORITHM or parts.keys() != {"Credential", "SignedHeaders", "Signature"}:
            raise _incomplete(
                f"the Authorization header must be {ALGORITHM} with Credential, SignedHeaders and "
                "Signature"
            )
        credential = parts["Credential"].split("/")
        if len(credential) != 5 or credential[4] != _TERMINATOR or not all(credential):
            raise _incomplete(f"Credential must be ACCESS_KEY/DATE/REGION/SERVICE/{_TERMINATOR}")
        key, date, region, service, _ = credential
        names = tuple(parts["SignedHeaders"].split(";"))
        return cls(key, (date, region, service), names, parts["Signature"])


def read_claim(request: SignedRequest, secrets: Mapping[str, str], now: datetime) -> Claim:
    """Read who signed a request, and refuse what cannot be verified whatever the body is.

    Args:
        request: The request.
        secrets: Secret keys by access key.
        now: The time, in UTC.

    Raises:
        AwsError: It is not signed, not by one of the keys, not for this service, or not now.
    """
    claim = Claim.read(request.value("authorization") or "")
    timestamp = request.value("x-amz-date") or ""
    _check_scope(claim, timestamp)
    _check_headers(claim, request)
    if claim.access_key not in secrets or request.values("x-amz-security-token"):
        raise AwsError(
            403,
            "UnrecognizedClientException",
            "The security token included in the request is invalid. Sign with an access key of "
            "this server, and without a session token.",
        )
    _check_time(timestamp, now)
    return claim


def check_signature(request: SignedRequest, claim: Claim, secret: str, body: bytes) -> None:
    """Verify a signature.

    Args:
        request: The request.
        claim: What `read_claim` read.
        secret: The secret key of who signed it.
        body: All of the body.

    Raises:
        AwsError: Another request was signed, or with another secret.
    """
    body_hash = hashlib.sha256(body).hexdigest()
    told = request.values("x-amz-content-sha256")
    same_body = told in ([], [body_hash.encode()])
    expected = signature(request, claim, secret, body_hash)
    if not hmac.compare_digest(expected.encode(), claim.signature.encode()) or not same_body:
        raise _wrong(
            "The request signature we calculated does not match the signature you provided. Check "
            "the secret access key, and that nothing on the way changes the request."
        )


def signature(request: SignedRequest, claim: Claim, secret: str, body_hash: str) -> str:
    """Compute what the signature of a request must be.

    Args:
        request: The request.
        claim: Who signed which headers for what.
        secret: The secret key.
        body_hash: SHA-256 of the body, in hexadecimal.
    """
    canonical = canonical_request(request, claim.signed_headers, body_hash)
    scope = "/".join((*claim.scope, _TERMINATOR))
    timestamp = request.value("x-amz-date") or ""
    to_sign = "\n".join((ALGORITHM, timestamp, scope, hashlib.sha256(canonical).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in (*claim.scope, _TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def canonical_request(
    request: SignedRequest, signed_headers: Sequence[str], body_hash: str
) -> bytes:
    """Write a request in the one form in which it is signed.

    Args:
        request: The request.
        signed_headers: Names of the headers to sign, in lower case and in order.
        body_hash: SHA-256 of the body, in hexadecimal.
    """
    lines = [
        request.method.encode(),
        _canonical_path(request.path),
        _canonical_query(request.query),
    ]
    for name in signed_headers:
        # Space around values and runs of it within them do not count.
        values = [b" ".join(value.split()) for value in request.values(name)]
        lines.append(name.encode() + b":" + b",".join(values))
    lines += [b"", ";".join(signed_headers).encode(), body_hash.encode()]
    return b"\n".join(lines)


def _canonical_path(path: bytes) -> bytes:
    text = path.decode("latin-1")
    normal = posixpath.normpath("/" + text.lstrip("/"))
    if text.endswith("/") and normal != "/":
        normal += "/"
    return quote(normal, safe="/~", encoding="latin-1").encode()


def _canonical_query(query: bytes) -> bytes:
    pairs = []
    for pair in filter(None, query.split(b"&")):
        name, _, value = pair.partition(b"=")
        pairs.append(
            tuple(quote_from_bytes(unquote_to_bytes(one), safe="~") for one in (name, value))
        )
    return "&".join(f"{name}={value}" for name, value in sorted(pairs)).encode()


def _check_scope(claim: Claim, timestamp: str) -> None:
    date, _, service = claim.scope
    if _TIMESTAMP_FORM.fullmatch(timestamp) is None:
        raise _incomplete("X-Amz-Date must be there once, as in 20150830T123600Z")
    if date != timestamp[:8]:
        raise _wrong(
            f"Date in Credential scope ({date}) does not match that of X-Amz-Date ({timestamp})."
        )
    if service != SERVICE:
        raise _wrong(f"Credential should be scoped to the service {SERVICE!r}, not {service!r}.")


def _check_headers(claim: Claim, request: SignedRequest) -> None:
    """See that what decides about a request is signed."""
    signed = set(claim.signed_headers)
    needed = {"host"} | {
        name.decode("latin-1") for name, _ in request.headers if name.startswith(b"x-amz-")
    }
    missing = sorted(needed - signed)
    if missing:
        raise _incomplete(f"SignedHeaders must include {', '.join(missing)}")
    absent = [name for name in claim.signed_headers if not request.values(name)]
    if absent:
        raise _incomplete(
            f"SignedHeaders names {absent[0][:60]!r}, which the request does not have"
        )


def _check_time(timestamp: str, now: datetime) -> None:
    try:
        signed_at = datetime.strptime(timestamp, _TIMESTAMP).replace(tzinfo=UTC)
    except ValueError:
        raise _incomplete(f"X-Amz-Date {timestamp} is no time") from None
    here = now.strftime(_TIMESTAMP)
    if signed_at < now - _SKEW:
        raise _wrong(
            f"Signature expired: {timestamp} is more than 5 minutes before {here}, the time here. "
            "Sign again, and set the clock if this happens always."
        )
    if signed_at > now + _SKEW:
        raise _wrong(
            f"Signature not yet current: {timestamp} is more than 5 minutes after {here}, the time "
            "here. Set the clock."
        )


def _incomplete(reason: str) -> AwsError:
    return AwsError(
        403, "IncompleteSignatureException", f"The request cannot be verified: {reason}."
    )


def _wrong(reason: str) -> AwsError:
    return AwsError(403, "InvalidSignatureException", reason)
