"""A service of embeddings and language models on loopback: it speaks the real protocols, and misbehaves when told to.

It answers ``/embeddings`` and ``/chat/completions`` (OpenAI, Voyage), ``/messages`` (Anthropic), ``/api/embed`` and
``/api/chat`` (Ollama). Vectors are hashes of the texts, so a test knows which vector belongs to which text.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from support.threads import begin

from caliber.llm.local.hashed import HashEmbeddingProvider

DIMENSIONS = 16
CERTIFICATE = Path(__file__).parent / "tls" / "localhost.pem"
WRONG_CERTIFICATE = CERTIFICATE.with_name("elsewhere.pem")
"""Sound, but of another host."""

Fault = Callable[["Handler", Any], bool]
"""Answers a request in its own way; returns False to have it answered as it should be."""


def vector_of(text: str, dimensions: int = DIMENSIONS) -> np.ndarray:
    """Return the vector that the service gives a text."""
    return HashEmbeddingProvider(dimensions, "service").embed(text)


@dataclass
class Asked:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    document: Any
    connection: int

    @property
    def texts(self) -> list[str]:
        """The texts of a request for embeddings."""
        return list(self.document["input"])


@dataclass
class ModelServer:
    """A model service with a script: ``script`` has a fault, or None, for each of the next requests."""

    dimensions: int = DIMENSIONS
    script: deque[Fault | None] = field(default_factory=deque)
    always: Fault | None = None
    replies: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    tunnels: list[str] = field(default_factory=list)
    connections: int = 0
    endpoint: str = ""
    callers: list[Any] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_fault(self) -> Fault | None:
        with self.lock:
            return self.script.popleft() if self.script else self.always

    def embedded(self) -> list[str]:
        """Return every text that was asked for, in order."""
        return [text for asked in self.asked for text in asked.texts]

    # --- answers as they should be ---------------------------------------------------------------

    def answer(self, path: str, document: Any) -> Any:
        if path == "/api/embed":
            return {
                "model": document["model"],
                "embeddings": [vector_of(text, self.dimensions).tolist() for text in document["input"]],
                "prompt_eval_count": len(document["input"]),
            }
        if path == "/embeddings":
            return {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": at, "embedding": self._encoded(text, document)}
                    for at, text in enumerate(document["input"])
                ],
                "model": document["model"],
                "usage": {"total_tokens": len(document["input"])},
            }
        return self._chat(path, document)

    def _encoded(self, text: str, document: Any) -> Any:
        vector = vector_of(text, self.dimensions)
        if document.get("encoding_format") == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()

    def _chat(self, path: str, document: Any) -> Any:
        material = json.loads(document["messages"][-1]["content"])
        if path == "/messages":
            call = document["tool_choice"]["name"]
            reply = self._reply(call, material)
            given = {"type": "tool_use", "id": "t1", "name": call, "input": reply}
            content = [{"type": "text", "text": "Here it is."}, given]
            if isinstance(reply, str):
                content = [{"type": "text", "text": reply}]
            return {
                "type": "message",
                "role": "assistant",
                "content": content,
                "stop_reason": "tool_use",
                "usage": {"input_tokens": 10, "output_tokens": 5},
            }
        call = self._call_of(document)
        reply = self._reply(call, material)
        text = reply if isinstance(reply, str) else json.dumps(reply)
        message = {"role": "assistant", "content": text}
        if path == "/api/chat":
            return {"message": message, "done": True, "done_reason": "stop", "prompt_eval_count": 10, "eval_count": 5}
        return {
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }

    def _call_of(self, document: Any) -> str:
        """Return which call is asked, by the one field that only its answer has."""
        instructions = document["messages"][0]["content"]
        fields = {
            '"summary"': "summarize",
            '"artifacts", a list': "extract_artifacts",
            '"notes", a list': "generate_notes",
            '"contradiction"': "verify_contradiction",
            '"decisions", a list': "decide_consolidation",
            '"content", text': "merge_notes",
            '"facts", a list': "extract_facts",
            '"actions", a list': "decide_facts",
        }
        return next(call for mark, call in fields.items() if f"one field: {mark}" in instructions)

    def _reply(self, call: str, material: Any) -> Any:
        return self.replies[call](material)


class Handler(BaseHTTPRequestHandler):
    """One connection; kept alive as HTTP/1.1 has it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.model.lock:
            self.server.model.connections += 1
            self.number = self.server.model.connections

    def do_POST(self) -> None:
        model = self.server.model
        document = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with model.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            model.asked.append(Asked(self.path, headers, document, self.number))
        fault = model.next_fault()
        if fault is not None and fault(self, document):
            return
        self.send_document(model.answer(self.path, document))

    def do_CONNECT(self) -> None:
        """Be a proxy: open a way to another server and pass on what comes."""
        with self.server.model.lock:
            self.server.model.tunnels.append(self.path)
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as far:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = begin(pass_on, far, self.connection)
            pass_on(self.connection, far)
            back.result(timeout=5)
        self.close_connection = True

    def send_document(self, document: Any, status: int = 200, **headers: str) -> None:
        self.send_raw(json.dumps(document).encode(), status, **{"content-type": "application/json", **headers})

    def send_raw(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        fields = {
            "content-length": str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def hang_up(self) -> None:
        """Cut the connection where it is, without a goodbye of HTTP."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def pause(self, seconds: float) -> None:
        self.server.model.stopping.wait(seconds)

    def log_message(self, *_: Any) -> None:
        """Say nothing: a test looks at what was asked, not at lines."""


def pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on until either side ends."""
    try:
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    model: ModelServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


@contextmanager
def serving(*, tls: Path | None = None, **settings: Any) -> Iterator[ModelServer]:
    """Run a service on a free port of loopback; ``tls`` is its certificate."""
    server = _Server(("127.0.0.1", 0), Handler)
    model = server.model = ModelServer(**settings)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    model.endpoint = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.002}, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.stopping.set()
        for caller in model.callers:
            caller.close()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


# --- misbehaviour --------------------------------------------------------------------------------


def status(code: int, body: Any = None, **headers: str) -> Fault:
    """Refuse with a status."""

    def fault(handler: Handler, _: Any) -> bool:
        handler.send_document({} if body is None else body, code, **headers)
        return True

    return fault


def changed(change: Callable[[Any], Any]) -> Fault:
    """Answer with a document that was changed."""

    def fault(handler: Handler, document: Any) -> bool:
        handler.send_document(change(handler.server.model.answer(handler.path, document)))
        return True

    return fault


def raw(body: bytes, content_type: str = "application/json", **headers: str) -> Fault:
    """Answer with these bytes."""

    def fault(handler: Handler, _: Any) -> bool:
        handler.send_raw(body, **{"content-type": content_type, **headers})
        return True

    return fault


def cut(after: int) -> Fault:
    """Hang up after so many bytes of the body; -1 before any answer."""

    def fault(handler: Handler, document: Any) -> bool:
        if after >= 0:
            body = json.dumps(handler.server.model.answer(handler.path, document)).encode()
            handler.send_response(200)
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body[:after])
            handler.wfile.flush()
        handler.hang_up()
        return True

    return fault


def slow(seconds: float) -> Fault:
    """Answer rightly, but late."""

    def fault(handler: Handler, _: Any) -> bool:
        handler.pause(seconds)
        return False

    return fault


def dripping(every: float, *, headers: bool = False) -> Fault:
    """Send a byte at a time, of the headers or of the body, for ever."""

    def fault(handler: Handler, _: Any) -> bool:
        start = (
            b"HTTP/1.1 200 OK\r\nx-long: " if headers else b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
        )
        handler.wfile.write(start)
        try:
            while not handler.server.model.stopping.wait(every):
                handler.wfile.write(b" ")
        except OSError:
            pass
        handler.close_connection = True
        return True

    return fault


def refusing(word: str, code: int = 400) -> Fault:
    """Refuse every request with a text that holds ``word``."""

    def fault(handler: Handler, document: Any) -> bool:
        if not any(word in text for text in document["input"]):
            return False
        handler.send_document({"error": {"code": "context_length_exceeded", "message": f"bad: {word}"}}, code)
        return True

    return fault
