"""HTTP connections in which every socket read and write is bounded by the deadline of the whole call.

httpcore bounds single reads, so a service that sends a byte at a time is never late. Here each operation on a socket is
bounded by the time that remains for the whole request (``deadline.remaining_s``), and closing wakes every waiting
thread.

Source: docs/decisions/0046-http-with-one-deadline.md.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import urllib.request
import weakref
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import certifi
import httpcore

from caliber.model.deadline import remaining_s
from caliber.model.joining import refuse_inside
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import let_through

_WRITE_BYTES = 64 * 1024
_LEAST_S = 0.001
"""0 would ask the socket not to wait at all."""

_sending: ContextVar[bool] = ContextVar("caliber_sending", default=False)


class _Unsaid(logging.Filter):
    """Drops the log records of httpcore for our requests: they hold answers, and services quote keys in answers."""

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002  (the logger matters, not the record)
        return not _sending.get()


_UNSAID = _Unsaid()
_LOGGERS = ("httpcore.connection", "httpcore.http11", "httpcore.proxy")


@dataclass(frozen=True, slots=True)
class Reply:
    """A service's answer; ``body`` is None when it was larger than allowed. Its repr shows no content."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)


class Failure(Exception):
    """A request that got no answer. ``kind``: timeout, refused_certificate, connect, lost."""

    def __init__(self, kind: str, detail: str, origin: BaseException | None) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail
        self.origin = origin


def trusted_context(trusted: str) -> ssl.SSLContext:
    """Return the context that verifies a service's certificate: the usual authorities, or those in a file.

    Raises: OSError (ssl.SSLError among them) when the file cannot be used.
    """
    return ssl.create_default_context(cafile=certifi.where() if trusted == "usual" else str(Path(trusted).expanduser()))


def environment_proxy(url: str) -> str | None:
    """Return the address of the proxy that the environment names for ``url``, if any."""
    parts = urlsplit(url)
    found = urllib.request.getproxies_environment()
    if urllib.request.proxy_bypass_environment(parts.netloc, found):  # type: ignore[attr-defined]
        return None
    return found.get(parts.scheme) or found.get("all")


class Wire:
    """Connections to one service. Threads may share it; it does not survive fork."""

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None,
        proxy: str | None,
        max_connections: int,
        keepalive_s: float,
    ) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_UNSAID)  # once, however often
        self._backend = _Backend()
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            proxy=None if proxy is None else _proxy(proxy),
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=keepalive_s,
            network_backend=self._backend,
        )

    def request(
        self, url: str, headers: Iterable[tuple[str, str]], content: bytes, connect_s: float
    ) -> httpcore.Request:
        """Return a request to ``send``: its own object, whose repr shows no header."""
        refuse_inside(f"a call in it asks {urlsplit(url).netloc}")
        remaining = remaining_s()
        assert remaining is not None  # the caller has set the bound of the request
        timeouts = {"connect": min(connect_s, remaining), "read": remaining, "write": remaining, "pool": remaining}
        fields = {
            "host": urlsplit(url).netloc,
            "accept": "application/json",
            "accept-encoding": "identity",  # the unpacked size of compressed data is unbounded
            "user-agent": "caliber",
            "content-type": "application/json",
            "content-length": str(len(content)),
        }
        return httpcore.Request(
            "POST", url, headers=[*fields.items(), *headers], content=content, extensions={"timeout": timeouts}
        )

    def send(self, request: httpcore.Request, max_bytes: int) -> Reply:
        """Send a request and read its answer, up to ``max_bytes``. Raises: Failure."""
        token = _sending.set(True)
        try:
            response = self._pool.handle_request(request)
            try:
                headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
                return Reply(response.status, headers, _body(response, headers, max_bytes))
            finally:
                response.close()
        except Exception as error:
            let_through(error)
            failure = _failure_of(error)
            if failure is None:
                raise
        finally:
            _sending.reset(token)
        # Outside the handlers: the frames of a request hold its headers, which must not travel with the error.
        if failure.origin is not None:
            failure.origin = failure.origin.with_traceback(None)
            failure.origin.__context__ = failure.origin.__cause__ = None
        raise failure

    def close(self) -> None:
        """Close all connections; requests under way fail."""
        self._backend.shut_down()
        self._pool.close()


def _failure_of(error: Exception) -> Failure | None:
    """Return the failure of a request that an error of its libraries stands for, if it is one of theirs."""
    if isinstance(error, httpcore.TimeoutException):
        return Failure("timeout", type(error).__name__, error)
    if isinstance(error, httpcore.ConnectError):
        return _not_connected(error)
    if isinstance(error, httpcore.ProxyError):
        return Failure("connect", "the proxy refused", error)
    if isinstance(error, httpcore.NetworkError | OSError):
        return Failure("lost", type(error).__name__, error)
    # Errors of the protocol quote sent or received data: they are not passed on. The others are those of a connection
    # that ``close`` ended under the request.
    lost = httpcore.ProtocolError | RuntimeError | ValueError
    return Failure("lost", type(error).__name__, None) if isinstance(error, lost) else None


def _not_connected(error: httpcore.ConnectError) -> Failure:
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, ssl.SSLCertVerificationError):
            return Failure("refused_certificate", reason.verify_message, reason)
        if isinstance(reason, socket.gaierror):
            return Failure("connect", "its host is not known", error)
        reason = reason.__cause__ or reason.__context__
    return Failure("connect", "no connection", error)


def _body(response: httpcore.Response, headers: Mapping[str, str], max_bytes: int) -> bytes | None:
    announced = headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > max_bytes):
        return None
    parts: list[bytes] = []
    size = 0
    for part in response.iter_stream():
        size += len(part)
        if size > max_bytes:
            return None
        parts.append(part)
    return b"".join(parts)


def _proxy(address: str) -> httpcore.Proxy:
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"proxies of kind {parts.scheme} are not supported")
    auth = None
    if parts.username is not None:
        auth = (unquote(parts.username).encode(), unquote(parts.password or "").encode())
    return httpcore.Proxy(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", auth=auth)


class _Backend(httpcore.NetworkBackend):
    """Open sockets, recorded so that closing can wake the threads that wait for them."""

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()
        self._open: weakref.WeakSet[_Stream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._shut = False

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return self.remember(self._inner.connect_tcp(host, port, _bounded(timeout), local_address, socket_options))

    def remember(self, stream: httpcore.NetworkStream) -> _Stream:
        tracked = _Stream(stream, self)
        with self._lock:
            self._open.add(tracked)
            shut = self._shut
        if shut:
            tracked.close()
            raise httpcore.ConnectError("closed")
        return tracked

    def shut_down(self) -> None:
        with self._lock:
            self._shut = True
            streams = list(self._open)
        for stream in streams:
            stream.shut_down()


class _Stream(httpcore.NetworkStream):
    """A connection whose reads and writes end when the request must."""

    def __init__(self, inner: httpcore.NetworkStream, backend: _Backend) -> None:
        self._inner = inner
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if remaining_s() == 0:
            raise httpcore.ReadTimeout("the time of the request is up")
        return self._inner.read(max_bytes, _bounded(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITE_BYTES):
            if remaining_s() == 0:
                raise httpcore.WriteTimeout("the time of the request is up")
            self._inner.write(buffer[start : start + _WRITE_BYTES], _bounded(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return self._backend.remember(self._inner.start_tls(ssl_context, server_hostname, _bounded(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)

    def shut_down(self) -> None:
        """End both directions: a thread that waits here reads the end of the stream."""
        raw = self.get_extra_info("socket")
        if isinstance(raw, socket.socket):
            try:
                # Of the plain socket: that of TLS would also take the session from under the waiting thread.
                socket.socket.shutdown(raw, socket.SHUT_RDWR)
            except OSError as error:
                let_through(error)
                return  # not connected any more


def _bounded(timeout: float | None) -> float | None:
    remaining = remaining_s()
    if remaining is None:
        return timeout
    return max(_LEAST_S, remaining if timeout is None else min(timeout, remaining))
