"""HTTP client for provider services: sends and receives JSON, and maps each failure to a typed error.

A key is read from the environment when a request is made, and is kept nowhere: in no attribute, error or event. Bodies
of refusals are read for their codes only, because services quote keys and texts in them.

Source: M-005 to M-013, M-016, C-105, K-203.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import threading
import time
import weakref
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import SplitResult, urlsplit

from caliber.llm.remote.answers import Answer
from caliber.llm.remote.limiter import RateLimiter
from caliber.model.deadline import deadline_passed, remaining_s, within
from caliber.model.errors import (
    AuthenticationFailed,
    CaliberError,
    ExtraNotInstalled,
    IncompatibleOptions,
    InvalidConfigValue,
    InvalidResponse,
    RateLimited,
    RequestFailed,
    Unavailable,
)
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import let_through
from caliber.storage.waiting import Flag

if TYPE_CHECKING:
    from caliber.config.providers import HttpConfig
    from caliber.config.secret import SecretRef
    from caliber.llm.remote.wire import Failure, Reply, Wire

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
CONNECT_TIMEOUT_S: Final = 5.0
KEEPALIVE_S: Final = 30.0
"""Time that an idle connection stays open."""
MAX_RESPONSE_BYTES: Final = 32 << 20
_UNCOMPRESSED: Final = "identity"
_CODE: Final = re.compile(r"[a-z]{1,24}(_[a-z]{1,24}){0,5}\Z")  # words only: no key looks like that
_KEY: Final = re.compile(r"[\x21-\x7e]+\Z")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?\Z")
_RETRIED: Final = frozenset({408, 409, 425})
_REFUSAL_BYTES: Final = 64 * 1024
_ADDRESS_CHARS: Final = 2_000
_NO_MORE: Final = frozenset({"insufficient_quota", "billing_not_active", "billing_hard_limit_reached"})
"""Codes of a 429 that waiting does not end."""

_clients: weakref.WeakSet[HttpClient] = weakref.WeakSet()


_inherited: list[object] = []
"""Connections of a parent process: kept open for ever, so that the child sends nothing on them."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service: its name in errors, its address, and the way it gets the key.

    ``key_header`` is the header that takes the key, ``key_prefix`` stands before it; ``headers`` are sent besides.
    """

    name: str
    endpoint: str
    key: SecretRef | None
    key_header: str = "authorization"
    key_prefix: str = "Bearer "
    headers: tuple[tuple[str, str], ...] = ()


class HttpClient:
    """Calls one service. Threads may share it, and it works after fork; ``close`` ends it.

    Raises: ExtraNotInstalled without the extra ``http``; IncompatibleOptions where a key would travel unencrypted;
        InvalidConfigValue when there is no file of certificates as named.
    """

    def __init__(self, service: Service, settings: HttpConfig) -> None:
        if any(importlib.util.find_spec(name) is None for name in ("httpcore", "certifi")):
            raise ExtraNotInstalled(feature=f"provider {service.name}", extra="http")
        parts = _address(service.endpoint)
        if service.key is not None and parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise IncompatibleOptions(
                option_a="endpoint",
                option_b="api_key",
                reason="over http:// the key could be read on its way: use https",
            )
        if settings.trusted != "usual" and not Path(settings.trusted).expanduser().is_file():
            raise InvalidConfigValue(field="http.trusted", value=repr(settings.trusted), reason="there is no such file")
        self._service = service
        self._settings = settings
        self._closed = Flag()
        self._lock = threading.Lock()
        self._wire: Wire | None = None
        self._limiter = self._new_limiter()
        _clients.add(self)

    def __repr__(self) -> str:
        return f"HttpClient({self._service.name})"

    def post(self, path: str, document: Mapping[str, Any], *, tokens: int) -> Answer:
        """Send a JSON document and return the answer.

        Units: ``tokens`` as estimated, for the rate limit. Errors are retryable where the fault may pass.

        Raises: AuthenticationFailed, RateLimited, RequestFailed, InvalidResponse, Unavailable (the deadline passed,
            closed), MissingRequired (the key's variable is not set).
        """
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        wire = self._opened()
        self._limiter.take(tokens)
        settings = self._settings
        allowed_s = settings.timeout_ms / 1_000
        remaining = remaining_s()
        hurried = remaining is not None and remaining < allowed_s
        with within(allowed_s):
            reply = self._sent(wire, f"{self._service.endpoint.rstrip('/')}{path}", body, hurried)
        return self._document(reply)

    def settle(self, estimated: int, used: int | None) -> None:
        """Correct the rate limit by the tokens that the service reports, if it does."""
        if used is not None:
            self._limiter.settle(estimated, used)

    def close(self) -> None:
        """Close the connections; requests under way end with Unavailable. Closing twice changes nothing."""
        self._closed.set()
        with self._lock:
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    # --- connections -----------------------------------------------------------------------------

    def _new_limiter(self) -> RateLimiter:
        return RateLimiter(
            self._service.name,
            requests_per_minute=self._settings.requests_per_minute,
            tokens_per_minute=self._settings.tokens_per_minute,
            closed=self._closed,
        )

    def _opened(self) -> Wire:
        with self._lock:
            if self._closed.is_set():
                raise self._was_closed()
            if self._wire is None:
                self._wire = self._new_wire()
            return self._wire

    def forked(self) -> None:
        """Take note that this process is a child: connections are the parent's, and its threads may hold the locks."""
        _inherited.append((self._wire, self._limiter, self._lock, self._closed))
        closed = self._closed.is_set()
        self._lock, self._wire, self._closed = threading.Lock(), None, Flag()
        if closed:
            self._closed.set()
        self._limiter = self._new_limiter()

    def _new_wire(self) -> Wire:
        from caliber.llm.remote.wire import Wire, environment_proxy, trusted_context

        settings = self._settings
        proxy = environment_proxy(self._service.endpoint) if settings.proxy == "environment" else None
        unusable = ""
        try:
            # Reading the usual certificates takes longer than the whole of a request on this machine.
            context = trusted_context(settings.trusted) if self._service.endpoint.startswith("https://") else None
        except OSError as error:
            let_through(error)
            raise InvalidConfigValue(
                field="http.trusted", value=settings.trusted, reason="is not a readable file of certificates"
            ) from error
        try:
            return Wire(
                context=context,
                proxy=proxy,
                max_connections=settings.max_connections,
                keepalive_s=KEEPALIVE_S,
            )
        except ValueError as error:
            unusable = str(error).partition("\n")[0] if "not supported" in str(error) else "is no address"
        # Outside the handler: the address of a proxy may hold a password.
        raise InvalidConfigValue(field="http.proxy", value="environment", reason=f"the proxy {unusable}")

    def _was_closed(self) -> Unavailable:
        return Unavailable(f"{self._service.name} was closed", reason="closed", retryable=False)

    # --- asking ----------------------------------------------------------------------------------

    def _sent(self, wire: Wire, url: str, body: bytes, hurried: bool) -> Reply:
        from caliber.llm.remote.wire import Failure

        self._check_key()
        request = wire.request(url, self._headers(), body, CONNECT_TIMEOUT_S)
        failure: Failure | None = None
        try:
            reply = wire.send(request, MAX_RESPONSE_BYTES)
        except Failure as error:
            failure = error
        else:
            # A body without a length ends where the connection does, also when it is ``close`` that ends it.
            if self._closed.is_set():
                raise self._was_closed()
            return reply
        raise self._failed(failure, hurried) from failure.origin

    def _check_key(self) -> None:
        # Not in the frame that raises: tools that show the variables of frames would show the key.
        if self._service.key is not None and not _is_key(self._service.key):
            raise InvalidConfigValue(
                field=str(self._service.key),
                value="<redacted>",
                reason="a key is printable ASCII without spaces and line breaks",
            )

    def _headers(self) -> list[tuple[str, str]]:
        service = self._service
        out = list(service.headers)
        if service.key is not None:
            out.append((service.key_header, service.key_prefix + service.key.resolve()))
        return out

    def _failed(self, failure: Failure, hurried: bool) -> CaliberError:
        """Return the error of a request that got no answer; ``hurried`` by the deadline of the call."""
        name = self._service.name
        if self._closed.is_set():
            return self._was_closed()
        if failure.kind == "timeout" and failure.detail == "ConnectTimeout" and remaining_s() != 0:
            message = f"not reached within {CONNECT_TIMEOUT_S:g} s"
        elif failure.kind == "timeout" and hurried:
            return deadline_passed(f"{name} was asked")
        elif failure.kind == "timeout":
            message = f"no answer within {self._settings.timeout_ms} ms ({failure.detail})"
        elif failure.kind == "refused_certificate":
            message = f"its certificate is not trusted: {failure.detail}; http.trusted can name a file of others"
        elif failure.kind == "connect":
            message = f"not reached: {failure.detail}"
        else:
            message = f"the connection was lost ({failure.detail})"
        return RequestFailed(
            f"{name}: {message}",
            provider=name,
            status=None,
            message=message,
            retryable=failure.kind != "refused_certificate",
        )

    # --- reading answers -------------------------------------------------------------------------

    def _document(self, reply: Reply) -> Answer:
        name = self._service.name
        if not 200 <= reply.status < 300:
            self._refused(reply)
        if reply.body is None:
            raise InvalidResponse(provider=name, reason=f"more than {MAX_RESPONSE_BYTES} bytes")
        kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise InvalidResponse(provider=name, reason="it is not JSON by its content type: is the endpoint right?")
        if reply.headers.get("content-encoding", _UNCOMPRESSED).lower() != _UNCOMPRESSED:
            raise InvalidResponse(provider=name, reason="it is compressed, although no compression was requested")
        fault = ""
        try:
            return Answer(json.loads(reply.body), name)
        except (ValueError, RecursionError) as error:
            fault = type(error).__name__
        # Outside the handler: the error of the parser holds the whole document.
        raise InvalidResponse(provider=name, reason=f"it is not valid JSON ({fault})")

    def _refused(self, reply: Reply) -> NoReturn:
        """Raise the error of a status other than 2xx."""
        name, status = self._service.name, reply.status
        code = _code(reply.body)
        detail = f" ({code})" if code else ""
        wait = retry_after_s(reply.headers.get("retry-after-ms"), reply.headers.get("retry-after"))
        if status in (401, 403):
            key = self._service.key
            what = "it wants a key: set api_key" if key is None else f"the key in {key} was refused"
            raise AuthenticationFailed(provider=name, status=status, message=f"{what}{detail}")
        if status == 429 and code not in _NO_MORE:
            if wait is not None:
                self._limiter.hold(wait)
            raise RateLimited(
                f"{name} answered 429: too many requests{detail}" + ("" if wait is None else f"; wait {wait:g} s"),
                provider=name,
                retry_after_ms=None if wait is None else int(wait * 1_000),
            )
        context: dict[str, Any] = {"provider": name, "status": status, "code": code}
        if wait is not None:
            context["retry_after_ms"] = int(wait * 1_000)
        raise RequestFailed(
            **context, message=f"{_meaning(status)}{detail}", retryable=status >= 500 or status in _RETRIED
        )


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _address(endpoint: str) -> SplitResult:
    """Return the parts of a service's address. Raises: InvalidConfigValue where nothing could be added to it."""
    fault = ""
    try:
        parts = urlsplit(endpoint)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        fault = "is not a URL: it must be like https://host/path"
    elif parts.query or parts.fragment:
        fault = "must end with its path: an endpoint has no ? or #"
    elif not endpoint.isascii() or not endpoint.isprintable() or " " in endpoint or len(endpoint) > _ADDRESS_CHARS:
        fault = "must be plain ASCII, at most 2,000 characters; international names are written as xn--..."
    if fault:
        raise InvalidConfigValue(field="endpoint", value=ascii(endpoint[:100]), reason=fault)
    return parts


def _is_key(key: SecretRef) -> bool:
    return _KEY.match(key.resolve()) is not None


def _meaning(status: int) -> str:
    if 300 <= status < 400:
        return "it redirects, which is not followed: the key would go along; name the final address as endpoint"
    if status == 404:
        return "there is no such address or model: are endpoint and model right?"
    if status == 413:
        return "the request is too large"
    if status == 429:
        return "the account has no more quota"
    return "the service failed" if status >= 500 else "the request was refused"


def _code(body: bytes | None) -> str | None:
    """Return the code in the body of a refusal; never its text, which may quote the key or the request."""
    if body is None or len(body) > _REFUSAL_BYTES:
        return None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict):
        for name in ("code", "type"):
            value = error.get(name)
            if isinstance(value, str) and _CODE.match(value):
                return value
    return None


def retry_after_s(milliseconds: str | None, seconds_or_date: str | None) -> float | None:
    """Return the wait that the headers ``retry-after-ms`` and ``Retry-After`` request; None if they are absent."""
    wait_ms = (milliseconds or "").strip()
    if _SECONDS.match(wait_ms):
        return float(wait_ms) / 1_000
    if seconds_or_date is None:
        return None
    text = seconds_or_date.strip()
    if _SECONDS.match(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
