"""Embeddings over HTTP, against a service on loopback that speaks the protocols and misbehaves on purpose."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.configs import USER, config
from support.llm.embedding import embed_texts
from support.llm.model_server import ModelServer, changed, cut, dripping, raw, refusing, slow, status, vector_of
from support.llm.services import KEY, embedding_section, embeddings, retry
from support.threads import at_once, begin
from support.waits import until

import caliber
from caliber.llm.cache import EmbeddingCache
from caliber.llm.embedding import embed_records
from caliber.llm.remote import http
from caliber.llm.retry import retrying
from caliber.llm.texts import LongText, LongTextMode
from caliber.model.deadline import within
from caliber.model.errors import (
    AuthenticationFailed,
    CaliberError,
    DimensionMismatch,
    EmbeddingFailed,
    InvalidResponse,
    InvalidVector,
    RateLimited,
    RequestFailed,
    Unavailable,
)

KINDS = ("openai", "voyage", "ollama")
RULE = LongText(LongTextMode.CHUNK_MEAN, 1_000, lambda text: len(text.split()))


def texts(count: int) -> list[str]:
    return [f"text number {number}" for number in range(count)]


def expected(wanted: list[str]) -> np.ndarray:
    return np.stack([vector_of(text) for text in wanted])


# --- the protocols -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_come_back_in_the_order_of_their_texts(server: ModelServer, kind: str) -> None:
    # C-246, C-247, M-004: one request a batch
    provider = embeddings(server, kind)
    np.testing.assert_array_equal(provider.embed_batch(texts(5)), expected(texts(5)))
    assert [asked.path for asked in server.asked] == ["/api/embed" if kind == "ollama" else "/embeddings"]
    np.testing.assert_array_equal(provider.embed("alone"), vector_of("alone"))
    assert provider.embed_batch([]).shape == (0, 16)
    assert len(server.asked) == 2
    provider.close()


def test_each_protocol_is_asked_in_its_own_words(server: ModelServer) -> None:
    # C-104, K-002: what is sent is what the options say
    embeddings(server, "openai", send_dimensions=False, encoding_format="float").embed("a")
    embeddings(server, "voyage", input_type="document").embed("a")
    embeddings(server, "ollama", send_dimensions=True, keep_alive="2m").embed("a")
    openai, voyage, ollama = server.asked
    assert openai.document == {"model": "text-embedding-3-small", "input": ["a"], "encoding_format": "float"}
    assert openai.headers["authorization"] == f"Bearer {KEY}"
    assert voyage.document == {
        "model": "voyage-3.5", "input": ["a"], "truncation": False, "encoding_format": "base64", "output_dimension": 16,
        "input_type": "document",
    }  # fmt: skip
    assert ollama.document["truncate"] is False
    assert (ollama.document["keep_alive"], ollama.document["dimensions"]) == ("2m", 16)
    assert "authorization" not in ollama.headers


def test_what_vectors_are_compared_with_is_named(server: ModelServer) -> None:
    # C-245
    assert embeddings(server, "openai").model_id == "openai:text-embedding-3-small"
    assert embeddings(server, "voyage").model_id == "voyage:voyage-3.5"
    assert embeddings(server, "voyage", input_type="query").model_id == "voyage:voyage-3.5/query"


def test_a_batch_is_as_many_requests_as_its_tokens_need(server: ModelServer) -> None:
    # M-007
    provider = embeddings(server, batch_tokens=7)  # two texts of three words
    np.testing.assert_array_equal(provider.embed_batch(texts(5)), expected(texts(5)))
    assert [len(asked.texts) for asked in server.asked] == [2, 2, 1]


def test_text_that_is_no_unicode_is_sent_as_replacement(server: ModelServer) -> None:
    embeddings(server).embed("lone \ud800 surrogate")
    assert server.embedded() == ["lone \ufffd surrogate"]


def test_connections_are_used_again(server: ModelServer) -> None:
    provider = embeddings(server)
    for number in range(5):
        provider.embed(str(number))
    assert server.connections == 1
    provider.close()


def test_threads_share_a_provider(server: ModelServer) -> None:
    provider = embeddings(server, http={"max_connections": 3})
    server.always = slow(0.02)
    results: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        results[number] = provider.embed_batch([f"{number} {at}" for at in range(3)])

    at_once([partial(work, number) for number in range(12)])
    for number in range(12):
        np.testing.assert_array_equal(results[number], expected([f"{number} {at}" for at in range(3)]))
    assert server.connections <= 3


# --- batches that fail in part ---------------------------------------------------------------------


def data(change: Any) -> Any:
    """Return a fault that changes the list of vectors of an answer."""

    def apply(document: Any) -> Any:
        document["data"] = change(document["data"])
        return document

    return changed(apply)


def with_vector(item: Any, vector: Any) -> Any:
    return {**item, "embedding": vector}


def test_reordered_answers_are_put_in_order_by_their_index(server: ModelServer) -> None:
    server.script.append(data(lambda items: items[::-1]))
    np.testing.assert_array_equal(embeddings(server).embed_batch(texts(4)), expected(texts(4)))


@pytest.mark.parametrize(("fault", "kind"), [
    (lambda items: [*items[:2], *items[3:]], InvalidResponse),  # M-012: one is missing
    (lambda items: [*items[:2], with_vector(items[2], [0.5] * 8), *items[3:]], DimensionMismatch),  # M-011
    (lambda items: [*items[:2], with_vector(items[2], [float("nan")] * 16), *items[3:]], InvalidVector),
    (lambda items: [*items[:2], with_vector(items[2], [float("inf")] * 16), *items[3:]], InvalidVector),
    (lambda items: [*items[:2], with_vector(items[2], [0.0] * 16), *items[3:]], InvalidVector),  # K-116
    (lambda items: [*items[:2], with_vector(items[2], [None] * 16), *items[3:]], InvalidResponse),
    (lambda items: [*items[:2], with_vector(items[2], ["0.5"] * 16), *items[3:]], InvalidResponse),
    (lambda items: [*items[:2], with_vector(items[2], [[0.5] * 16]), *items[3:]], InvalidResponse),
    (lambda items: [*items[:2], with_vector(items[2], "no base64!"), *items[3:]], InvalidResponse),
])  # fmt: skip
def test_one_bad_vector_costs_the_others_nothing(server: ModelServer, fault: Any, kind: type[CaliberError]) -> None:
    # C-487, M-011, M-012
    server.script.append(data(fault))
    results = embeddings(server, encoding_format="float").embed_some(texts(5))
    assert [isinstance(result, CaliberError) for result in results] == [False, False, True, False, False]
    assert isinstance(results[2], kind)
    for at in (0, 1, 3, 4):
        np.testing.assert_array_equal(results[at], vector_of(texts(5)[at]))


def test_only_what_failed_is_asked_again_and_only_what_failed_for_good_is_named(server: ModelServer) -> None:
    # C-487, C-107: keeps its successes, names and retries the rest
    missing = data(lambda items: [item for item in items if item["index"] not in (1, 3)])
    server.script.append(missing)
    provider = retrying(embeddings(server), retry())
    np.testing.assert_array_equal(provider.embed_batch(texts(5)), expected(texts(5)))
    assert [asked.texts for asked in server.asked] == [texts(5), [texts(5)[1], texts(5)[3]]]

    server.always = data(lambda items: items[:-1])
    with pytest.raises(EmbeddingFailed, match=r"1 of 5 texts failed \(4\)") as caught:
        provider.embed_batch(texts(5))
    assert caught.value.indexes == (4,)
    assert caught.value.retryable
    assert isinstance(caught.value.__cause__, InvalidResponse)


def test_what_succeeded_stays_in_the_cache_when_the_rest_fails(server: ModelServer) -> None:
    # C-487
    cache = EmbeddingCache(max_entries=100)
    server.script.append(data(lambda items: [*items[:3], with_vector(items[3], [1.0])]))
    provider = embeddings(server)
    results = embed_records(provider, cache, texts(4), long_text=RULE)
    assert [isinstance(result, CaliberError) for result in results] == [False, False, False, True]
    np.testing.assert_array_equal(embed_texts(provider, cache, texts(4), long_text=RULE), expected(texts(4)))
    assert [asked.texts for asked in server.asked] == [texts(4), texts(4)[3:]]


@pytest.mark.parametrize("change", [
    lambda items: [*items, items[0]],  # more than were asked for
    lambda items: [items[0], {**items[1], "index": 0}, *items[2:]],  # twice the same
    lambda items: [{**items[0], "index": -1}, *items[1:]],
    lambda items: [{**items[0], "index": 5}, *items[1:]],
    lambda items: [{**items[0], "index": "0"}, *items[1:]],
    lambda items: [{**items[0], "index": True}, *items[1:]],
    lambda items: [{"embedding": item["embedding"]} for item in items[1:]],  # fewer, and no telling which
    lambda items: items[0],
    lambda items: [1, 2, 3],
])  # fmt: skip
def test_an_answer_that_does_not_say_what_belongs_to_what_is_refused_whole(server: ModelServer, change: Any) -> None:
    # K-113: pairing what is there would give texts the vectors of others
    server.script.append(data(change))
    results = embeddings(server).embed_some(texts(3))
    assert all(isinstance(result, InvalidResponse) for result in results)
    assert not any(result.retryable for result in results if isinstance(result, CaliberError))


def test_ollama_has_no_indexes_so_a_wrong_count_is_refused_whole(server: ModelServer) -> None:
    server.script.append(changed(lambda document: {**document, "embeddings": document["embeddings"][1:]}))
    results = embeddings(server, "ollama").embed_some(texts(3))
    assert all(isinstance(result, InvalidResponse) for result in results)


@pytest.mark.parametrize("count", [1, 2, 7, 33])
@pytest.mark.parametrize("code", [400, 413, 422])
def test_a_text_the_service_refuses_is_found_by_halving(server: ModelServer, count: int, code: int) -> None:
    server.always = refusing("poison", code)
    for place in {0, count // 2, count - 1}:
        server.asked.clear()
        wanted = texts(count)
        wanted[place] = "poison"
        results = embeddings(server).embed_some(wanted)
        failures = {at: result for at, result in enumerate(results) if isinstance(result, CaliberError)}
        assert list(failures) == [place], failures
        failed = results[place]
        assert isinstance(failed, RequestFailed)
        assert (failed.status, failed.code, failed.retryable) == (code, "CALIBER_LLM", False)
        assert "context_length_exceeded" in str(failed)
        assert "poison" not in str(failed)
        assert len(server.asked) <= 2 * count.bit_length() + 1


def test_a_service_that_refuses_everything_is_not_asked_for_each_text(server: ModelServer) -> None:
    server.always = status(400)
    results = embeddings(server).embed_some(texts(64))
    assert all(isinstance(result, RequestFailed) for result in results)
    assert len(server.asked) <= 8


def test_an_empty_text_is_an_error_of_its_own(server: ModelServer) -> None:
    # M-014
    results = embeddings(server).embed_some(["a", " ", "b"])
    assert [isinstance(result, EmbeddingFailed) for result in results] == [False, True, False]
    assert server.embedded() == ["a", "b"]
    with pytest.raises(EmbeddingFailed, match="empty text"):
        embeddings(server).embed("")


def test_an_outage_half_way_leaves_what_came_before(server: ModelServer) -> None:
    server.script.extend([None, status(503)])
    results = embeddings(server, batch_tokens=3).embed_some(texts(4))
    assert [isinstance(result, RequestFailed) for result in results] == [False, True, True, True]
    assert len(server.asked) == 2


# --- services that are down, slow, or send nonsense --------------------------------------------------


@pytest.mark.parametrize("fault", [status(500), status(503), status(529), status(408), cut(-1), cut(0), cut(40)])
def test_a_failure_that_passes_is_not_the_callers(server: ModelServer, fault: Any) -> None:
    # M-010: the connection is cut before the answer, before the body, and in the middle of it
    server.script.extend([fault, fault])
    provider = retrying(embeddings(server), retry())
    np.testing.assert_array_equal(provider.embed("a"), vector_of("a"))
    assert len(server.asked) == 3


def test_a_failure_that_stays_is_raised_after_the_retries(server: ModelServer) -> None:
    # C-107, M-010
    server.always = status(502)
    with pytest.raises(RequestFailed, match="openai answered 502: the service failed") as caught:
        retrying(embeddings(server), retry()).embed("a")
    assert caught.value.retryable
    assert len(server.asked) == 4


@pytest.mark.parametrize("fault", [slow(5), dripping(0.02), dripping(0.02, headers=True)])
def test_a_request_ends_when_its_time_is_up_however_the_service_dawdles(server: ModelServer, fault: Any) -> None:
    # M-009: all of a request, not each read
    server.script.append(fault)
    provider = embeddings(server, http={"timeout_ms": 400})
    with within(30), pytest.raises(RequestFailed, match="no answer within 400 ms") as caught:
        provider.embed("a")
    assert caught.value.retryable
    assert caught.value.status is None
    # It is of use again; a busy machine may take its time too.
    found = retrying(provider, retry(max_retries=50)).embed("b")
    np.testing.assert_array_equal(found, vector_of("b"))


@pytest.mark.parametrize("fault", [slow(5), dripping(0.02)])
def test_the_callers_deadline_ends_it_sooner(server: ModelServer, fault: Any) -> None:
    server.script.append(fault)
    provider = embeddings(server)
    with within(0.15), pytest.raises(Unavailable, match="deadline passed while openai was asked") as caught:
        provider.embed("a")
    assert caught.value.reason == "timeout"


@pytest.mark.parametrize(("fault", "says"), [
    (raw(b"<html>hello</html>", "text/html"), "not JSON by its content type"),
    (raw(b"{}", ""), "not JSON by its content type"),
    (raw(b'{"data": [', "application/json"), "not valid JSON"),
    (raw(b"\xff\xfe", "application/json"), "not valid JSON"),
    (raw(b"[" * 6_000), "not valid JSON"),
    (raw(b'{"data": ' + b"9" * 5_000 + b"}"), "not valid JSON"),
    (raw(b"null"), "should be an object"),
    (raw(b"[]"), "should be an object"),
    (raw(b"{}"), "no field data"),
    (raw(b'{"data": {}}'), "data should be a list"),
    (raw(b"{}", content_encoding="gzip"), "compressed"),
    (raw(b" " * 9_000), "more than 8192 bytes"),
    (raw(b"", content_length="999999999999"), "more than 8192 bytes"),
])  # fmt: skip
def test_nonsense_is_a_typed_error_that_does_not_quote_it(
    server: ModelServer, fault: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 8_192)
    server.always = fault
    provider = embeddings(server)
    with pytest.raises(InvalidResponse, match=says) as caught:
        retrying(provider, retry()).embed("a")
    assert not caught.value.retryable
    assert len(server.asked) == 1
    assert "hello" not in str(caught.value)


def test_an_answer_of_any_length_is_not_read_beyond_the_limit(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 1 << 20)

    def endless(handler: Any, _: Any) -> bool:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        try:
            while not handler.server.model.stopping.is_set():
                handler.wfile.write(b" " * 65_536)
        except OSError:
            pass
        handler.close_connection = True
        return True

    server.script.append(endless)
    with pytest.raises(InvalidResponse, match="more than"):
        embeddings(server).embed("a")


def test_nobody_at_the_address_is_an_outage(server: ModelServer) -> None:
    server.endpoint = "http://127.0.0.1:9"  # discard: nobody listens
    with pytest.raises(RequestFailed, match="openai: not reached") as caught:
        embeddings(server).embed("a")
    assert caught.value.retryable


# --- limits ----------------------------------------------------------------------------------------


def test_a_service_that_asks_to_wait_is_waited_for(server: ModelServer) -> None:
    # M-008, C-111
    server.script.append(status(429, retry_after_ms="60"))
    waits: list[float] = []

    class Watched(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return super().wait(timeout)

    provider = retrying(embeddings(server), retry(Watched()))
    np.testing.assert_array_equal(provider.embed("a"), vector_of("a"))
    assert len(server.asked) == 2
    assert waits == [pytest.approx(0.06)]


def test_a_service_that_asks_to_wait_too_long_is_not_waited_for(server: ModelServer) -> None:
    server.always = status(429, {"error": {"code": "rate_limit_exceeded"}}, retry_after="86400")
    provider = retrying(embeddings(server), retry())
    with pytest.raises(RateLimited, match=r"too many requests .rate_limit_exceeded.; wait 86400 s") as caught:
        provider.embed("a")
    assert caught.value.retry_after_ms == 86_400_000
    assert caught.value.retryable
    assert any("60000 ms at most" in note for note in caught.value.__notes__)
    # Nobody else of this process asks meanwhile.
    with pytest.raises(RateLimited):
        provider.embed("b")
    assert len(server.asked) == 1


def test_an_exhausted_account_is_no_rate_limit(server: ModelServer) -> None:
    server.always = status(429, {"error": {"code": "insufficient_quota"}})
    with pytest.raises(RequestFailed, match="no more quota") as caught:
        retrying(embeddings(server), retry()).embed("a")
    assert not caught.value.retryable
    assert len(server.asked) == 1


def test_a_wait_beyond_the_deadline_is_not_begun(server: ModelServer) -> None:
    server.always = status(503, retry_after_ms="50000")
    with within(10), pytest.raises(RequestFailed) as caught:
        retrying(embeddings(server), retry(max_retries=50)).embed("a")
    assert any("the deadline" in note for note in caught.value.__notes__)
    assert len(server.asked) == 1


def test_requests_are_paced(server: ModelServer) -> None:
    # M-016
    provider = embeddings(server, http={"requests_per_minute": 2, "tokens_per_minute": 0})
    provider.embed("a")
    provider.embed("b")
    with within(1), pytest.raises(RateLimited) as caught:
        provider.embed("c")
    assert 25_000 < caught.value.retry_after_ms <= 30_001
    assert len(server.asked) == 2


def test_what_the_service_counted_corrects_the_estimate(server: ModelServer) -> None:
    # M-016: 100 words are estimated, 1 token is counted
    provider = embeddings(server, http={"tokens_per_minute": 100})
    for number in range(5):
        provider.embed(f"{number} " * 50)
    assert len(server.asked) == 5
    server.always = changed(lambda document: {**document, "usage": {"total_tokens": 10_000}})
    provider.embed("one more")
    with within(1), pytest.raises(RateLimited):
        provider.embed("one too many")


# --- closing and forking -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [slow(20), dripping(0.02)])
def test_closing_ends_requests_under_way(server: ModelServer, fault: Any) -> None:
    server.always = fault
    provider = embeddings(server)
    outcome: list[BaseException] = []

    def work() -> None:
        try:
            provider.embed("a")
        except CaliberError as error:
            outcome.append(error)

    thread = begin(work)
    until(lambda: server.asked)
    provider.close()
    thread.result(timeout=5)
    (error,) = outcome
    assert isinstance(error, Unavailable)
    assert error.reason == "closed"
    with pytest.raises(Unavailable, match="closed"):
        provider.embed("b")
    provider.close()


def test_closing_a_store_does_not_wait_for_an_answer(server: ModelServer) -> None:
    server.always = slow(30)
    embed = {"turn": "behind", "default": "off"}
    settings = config(":memory:", embedding_provider=embedding_section(server), embedding__embed=embed)
    memory = caliber.open(settings)
    task = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    memory.append_turn(scope.scope_id, role="user", content="words")
    until(lambda: server.asked)
    before = time.monotonic()
    memory.close()
    assert time.monotonic() - before < 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # threads and fork, which is what this is about
def test_a_child_process_has_connections_of_its_own(server: ModelServer) -> None:
    provider = embeddings(server)
    provider.embed("parent")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status_code = b"?"
        try:
            status_code = b"y" if np.array_equal(provider.embed("child"), vector_of("child")) else b"n"
        finally:
            os.write(write, status_code)
            os._exit(0)
    assert os.read(read, 1) == b"y"
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    provider.embed("parent again")
    assert [asked.connection for asked in server.asked] == [1, 2, 1]


def test_a_key_is_needed_where_the_service_wants_one(server: ModelServer) -> None:
    # M-006
    server.always = status(401)
    with pytest.raises(AuthenticationFailed, match="it wants a key: set api_key") as caught:
        embeddings(server, api_key=None).embed("a")
    assert not caught.value.retryable
