"""Keys reach the service and nothing else; connections are verified, redirects not followed, proxies asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER, config
from support.llm.model_server import (
    CERTIFICATE,
    WRONG_CERTIFICATE,
    ModelServer,
    changed,
    cut,
    raw,
    serving,
    slow,
    status,
    vector_of,
)
from support.llm.services import (
    KEY,
    KEY_NAME,
    RETRIES,
    embedding_section,
    embeddings,
    language_model,
    summarizer_section,
)
from support.waits import until

import caliber
from caliber.config import ProviderConfig
from caliber.llm.registry import build_embedding_provider
from caliber.model.errors import (
    AuthenticationFailed,
    CaliberError,
    IncompatibleOptions,
    InvalidConfigValue,
    MissingRequired,
    RequestFailed,
)

KEYS = (KEY, KEY.encode().hex(), repr(KEY.encode())[2:-1])


def seen(error: BaseException) -> str:
    """Return everything that can be shown of an error: itself, what it came from, and the variables of its frames."""
    shown = [str(error), repr(error), repr(error.__dict__), repr(pickle.dumps(error))]
    # The first frame is the test's own, which knows the key.
    own = error.__traceback__
    told = traceback.TracebackException(type(error), error, own and own.tb_next, capture_locals=True)
    shown += ["".join(told.format()), "".join(traceback.format_exception(error))]
    for other in (error.__cause__, error.__context__):
        if other is not None:
            shown.append(seen(other))
    return "\n".join(shown)


def quoting(code: int) -> Callable[[Any, Any], bool]:
    """Refuse as some services do: with the key in body and headers."""

    def fault(handler: Any, _: Any) -> bool:
        given = handler.headers.get("authorization") or handler.headers.get("x-api-key")
        body = {"error": {"code": given, "type": KEY, "message": f"Incorrect API key provided: {given}"}}
        handler.send_document(body, code, **{"x-echo": given, "location": f"http://elsewhere/?key={given}"})
        return True

    return fault


def nonsense(handler: Any, _: Any) -> bool:
    handler.wfile.write(f"HTTP/1.1 200 OK\r\nbad header {KEY}\x00\r\n\r\n".encode())
    handler.close_connection = True
    return True


FAULTS = {
    "401": quoting(401), "403": quoting(403), "400": quoting(400), "429": quoting(429), "500": quoting(500),
    "302": quoting(302), "no HTTP": nonsense, "cut": cut(-1), "cut in the body": cut(30), "late": slow(5),
    "not JSON": raw(f'{{"key": {KEY}'.encode()),
    "other fields": changed(lambda _: {"data": [{"index": 0, KEY: KEY}], "usage": KEY}),
    "other type": raw(KEY.encode(), "text/plain"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["openai", "voyage"])
@pytest.mark.parametrize("name", FAULTS)
def test_no_error_and_no_log_holds_the_key(
    server: ModelServer, name: str, kind: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    # C-105, M-005, M-006, M-013, K-203
    caplog.set_level(logging.DEBUG)
    server.always = FAULTS[name]
    provider = embeddings(server, kind, http={"timeout_ms": 400 if name == "late" else 10_000})
    with pytest.raises(CaliberError) as caught:
        provider.embed("a")
    until(lambda: bool(server.asked))  # it may come to read after the request has been given up
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    shown = seen(caught.value) + "\n".join(record.getMessage() + repr(record.args) for record in caplog.records)
    assert "openai" in shown or "voyage" in shown
    printed = capfd.readouterr()
    for key in KEYS:
        assert key not in shown
        assert key not in printed.out + printed.err


@pytest.mark.parametrize("name", FAULTS)
def test_no_error_of_a_language_model_holds_the_key(server: ModelServer, name: str) -> None:
    server.always = FAULTS[name]
    server.replies["verify_contradiction"] = lambda _: {"contradiction": True}
    with pytest.raises(CaliberError) as caught:
        language_model(
            server, "anthropic", http={"timeout_ms": 400 if name == "late" else 10_000}
        ).verify_contradiction("a", "b")
    until(lambda: bool(server.asked))
    assert server.asked[0].headers["x-api-key"] == KEY
    assert server.asked[0].headers["anthropic-version"]
    assert KEY not in seen(caught.value)


def test_the_search_for_keys_would_find_one() -> None:
    # The checker is itself tested: a key in any of these places is seen.
    def raising(where: str) -> None:
        held = KEY
        del held
        if where == "variable":
            key = KEY
            raise RequestFailed(provider="p", status=500, message=f"{len(key)}")
        if where == "context":
            raise RequestFailed(provider="p", status=500, message="m", key=KEY)
        try:
            raise ValueError(KEY)
        except ValueError as error:
            if where == "cause":
                raise RequestFailed(provider="p", status=500, message="m") from error
            raise RequestFailed(provider="p", status=500, message="m") from None

    for where in ("variable", "context", "cause", "hidden context"):
        with pytest.raises(RequestFailed) as caught:
            raising(where)
        assert KEY in seen(caught.value), where


def test_nothing_that_is_kept_holds_the_key(server: ModelServer) -> None:
    # C-105: attributes included, however deep
    provider = embeddings(server)
    provider.embed("a")
    found: list[str] = []

    def walk(value: Any, path: str, known: set[int]) -> None:
        if id(value) in known or path.count(".") > 8:
            return
        known.add(id(value))
        if KEY in repr(value):
            found.append(path)
        inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for name, item in dict(inner).items():
            walk(item, f"{path}.{name}", known)
        if isinstance(value, list | tuple | set | frozenset):
            for item in value:
                walk(item, f"{path}.item", known)

    walk(provider, "provider", set())
    assert found == []


def test_a_rotated_key_is_used_at_once(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = embeddings(server)
    provider.embed("a")
    monkeypatch.setenv(KEY_NAME, "sk-another")
    provider.embed("b")
    assert [asked.headers["authorization"] for asked in server.asked] == [f"Bearer {KEY}", "Bearer sk-another"]


@pytest.mark.parametrize("value", [f"{KEY}\n", f"{KEY}\r\nx-admin: yes", f"{KEY} ", f"{KEY}é", f"\t{KEY}"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(KEY_NAME, value)
    with pytest.raises(InvalidConfigValue, match=f"env:{KEY_NAME}") as caught:
        embeddings(server).embed("a")
    assert KEY not in seen(caught.value)
    assert server.asked == []


def test_a_missing_key_is_named(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_NAME)
    with pytest.raises(MissingRequired, match=KEY_NAME):
        embeddings(server).embed("a")
    assert server.asked == []


def test_a_refused_key_is_not_tried_again_and_says_which_variable(server: ModelServer) -> None:
    # M-006
    server.always = status(401, {"error": {"code": "invalid_api_key"}})
    settings = config(
        ":memory:",
        embedding_provider=embedding_section(server),
        **{**RETRIES, "embedding.embed.note": "commit", "embedding.embed.turn": "off"},
    )
    with caliber.open(settings) as memory:
        with pytest.raises(AuthenticationFailed) as caught:
            memory.add_note(entity="e", entity_type="t", note_type="fact", content="c", confidence=1.0)
        assert str(caught.value) == (f"openai answered 401: the key in env:{KEY_NAME} was refused (invalid_api_key)")
        assert not caught.value.retryable
        assert len(server.asked) == 1
        assert memory.storage.notes.count() == 0


def test_no_event_and_no_file_holds_the_key(server: ModelServer, tmp_path: Path) -> None:
    # C-105: the whole of a store on disk, after failures of every kind
    settings = config(
        str(tmp_path / "store.db"),
        embedding_provider=embedding_section(server),
        summarization_provider=summarizer_section(server, "anthropic"),
        **{**RETRIES, "embedding.embed": {"default": "behind"}},
    )
    caliber.create(settings)
    with caliber.open(settings) as memory:
        task = memory.start_trajectory("goal", initiator=USER)
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None
        for number, fault in enumerate((quoting(401), quoting(500), cut(-1))):
            server.always = fault
            memory.append_turn(scope.scope_id, role="user", content=f"words {number}")
            window = memory.assemble_context(task.trajectory_id, query=f"words {number}")
            assert window.status == "degraded"
            assert KEY not in repr({each.name: getattr(window, each.name) for each in dataclasses.fields(window)})
            assert KEY not in repr(memory.search(f"words {number}"))
            until(lambda: "refused" in repr(list(memory.storage.events.all())))  # the worker's first failure
        memory.close_scope(scope.scope_id)
        events = list(memory.storage.events.all())
        assert "refused" in repr(events)
        assert not [event for event in events if KEY in repr(event)]
        assert KEY not in repr(memory.admin.stats()) + repr(settings) + repr(memory)
    for path in tmp_path.rglob("*"):
        assert KEY.encode() not in path.read_bytes()


# --- where a key may go --------------------------------------------------------------------------


def test_redirects_are_not_followed(server: ModelServer) -> None:
    with serving() as elsewhere:
        for code in (301, 302, 307, 308):
            server.script.append(status(code, location=f"{elsewhere.endpoint}/embeddings"))
            with pytest.raises(RequestFailed, match=f"answered {code}: it redirects, which is not followed") as caught:
                embeddings(server).embed("a")
            assert not caught.value.retryable
        assert elsewhere.asked == []


def test_cookies_are_not_kept(server: ModelServer) -> None:
    def fault(handler: Any, document: Any) -> bool:
        handler.send_document(handler.server.model.answer(handler.path, document), set_cookie="session=1")
        return True

    server.always = fault
    provider = embeddings(server)
    provider.embed("a")
    provider.embed("b")
    assert "cookie" not in server.asked[1].headers


def test_a_key_does_not_travel_unencrypted(server: ModelServer) -> None:
    section = embedding_section(server)
    for endpoint in ("http://api.example.com/v1", "http://192.0.2.1:8080"):
        with pytest.raises(IncompatibleOptions, match="use https"):
            build_embedding_provider(ProviderConfig(**{**section, "endpoint": endpoint}), len)
    without = {name: value for name, value in section.items() if name != "api_key"}
    build_embedding_provider(ProviderConfig(**{**without, "endpoint": "http://192.0.2.1:8080"}), len)


def test_certificates_are_verified() -> None:
    with serving(tls=CERTIFICATE) as server:
        provider = embeddings(server)
        with pytest.raises(RequestFailed, match="its certificate is not trusted") as caught:
            provider.embed("a")
        assert not caught.value.retryable
        assert server.asked == []
        trusting = embeddings(server, http={"trusted": str(CERTIFICATE)})
        assert (trusting.embed("a") == vector_of("a")).all()
    with serving(tls=WRONG_CERTIFICATE) as server:
        with pytest.raises(RequestFailed, match="its certificate is not trusted"):
            embeddings(server, http={"trusted": str(WRONG_CERTIFICATE)}).embed("a")
        assert server.asked == []


def test_requests_over_tls_end_in_time_and_when_closed() -> None:
    with serving(tls=CERTIFICATE) as server:
        server.script.append(slow(5))
        provider = embeddings(server, http={"trusted": str(CERTIFICATE), "timeout_ms": 500})
        with pytest.raises(RequestFailed, match="no answer within 500 ms"):
            provider.embed("a")
        for _ in range(50):  # a busy machine may need longer for an answer too
            with contextlib.suppress(RequestFailed):
                assert (provider.embed("b") == vector_of("b")).all()
                break
        else:
            pytest.fail("it is of no use any more")
        provider.close()


def test_a_file_of_certificates_that_is_none_is_refused(server: ModelServer, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigValue, match="there is no such file"):
        embeddings(server, http={"trusted": str(tmp_path / "none.pem")})
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    server.endpoint = server.endpoint.replace("http://", "https://")
    with pytest.raises(InvalidConfigValue, match="not a readable file of certificates"):
        embeddings(server, http={"trusted": str(empty)}).embed("a")


def test_proxies_of_the_environment_are_followed_only_when_asked_to(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "no_proxy", "NO_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving() as proxy:
        monkeypatch.setenv("http_proxy", proxy.endpoint.replace("http://", "http://me:pass@"))
        embeddings(server).embed("a")
        assert (len(server.asked), len(proxy.asked)) == (1, 0)
        proxy.always = status(404)  # it is no proxy, but it was asked
        with pytest.raises(RequestFailed):
            embeddings(server, http={"proxy": "environment"}).embed("a")
        assert (len(server.asked), len(proxy.asked)) == (1, 1)
        assert proxy.asked[0].path == f"{server.endpoint}/embeddings"
        assert proxy.asked[0].headers["proxy-authorization"].startswith("Basic ")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        embeddings(server, http={"proxy": "environment"}).embed("a")
        assert (len(server.asked), len(proxy.asked)) == (2, 1)
        monkeypatch.delenv("no_proxy")
        monkeypatch.setenv("http_proxy", "socks5://me:pass@127.0.0.1:1")
        with pytest.raises(InvalidConfigValue, match="socks5 are not supported") as caught:
            embeddings(server, http={"proxy": "environment"}).embed("a")
        assert "pass" not in str(caught.value)


def test_a_proxy_of_an_encrypted_service_sees_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "no_proxy", "NO_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(tls=CERTIFICATE) as server, serving() as proxy:
        monkeypatch.setenv("https_proxy", proxy.endpoint)
        way = {"proxy": "environment", "trusted": str(CERTIFICATE), "timeout_ms": 30_000}
        provider = embeddings(server, http=way)
        assert (provider.embed("a") == vector_of("a")).all()
        assert proxy.tunnels == [server.endpoint.removeprefix("https://")]
        assert proxy.asked == []
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
        server.script.append(slow(5))
        hurried = embeddings(server, http={**way, "timeout_ms": 500})
        with pytest.raises(RequestFailed, match="no answer within 500 ms"):
            hurried.embed("b")
