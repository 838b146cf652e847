"""Knobs of providers: who embeds and who summarizes, how services are called, what a language model is told.

The services are those of ``model_server``, on loopback.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from support.config.knobs.case import Case, Knobs, Place
from support.configs import HASH_PROVIDER
from support.llm.model_server import CERTIFICATE, ModelServer, changed, serving, slow, status
from support.llm.services import KEY, KEY_NAME, count, embedding_section, summarizer_section
from support.waits import let_run

from caliber.config import CaliberConfig, RetryConfig
from caliber.config.profiles import services
from caliber.llm.prompts import load_prompts
from caliber.llm.registry import build_embedding_provider, build_summarization_provider
from caliber.llm.retry import Retry, backoff_ms, retrying, retrying_summarization
from caliber.model.deadline import within
from caliber.model.errors import CaliberError, InvalidResponse, RequestFailed
from caliber.model.providers import ExtractionTurn
from caliber.model.trajectory import TurnRole

EMBEDS, EMBEDDED, SUMMARIZES = "embedding_provider", "previous_embedding_provider", "summarization_provider"
TEXT = "one two three four five six"


def serve(place: Place, **settings: Any) -> ModelServer:
    server: ModelServer = place.keep(serving(**settings))
    server.replies["summarize"] = lambda _: {"summary": "Short."}
    return server


def section_of(section: str, server: ModelServer, **http: Any) -> dict[str, Any]:
    make = summarizer_section if section == SUMMARIZES else embedding_section
    return make(server, http=http)


def service(section: str, **http: Any) -> Callable[[Place], Knobs]:
    """Return the overrides for a provider of a service that runs while the observation does."""

    def also(place: Place) -> Knobs:
        place.environment(**{KEY_NAME: KEY, "NO_PROXY": None, "no_proxy": None})
        server = place.known["server"] = serve(place)
        return {section: section_of(section, server, **http)}

    return also


def provider_of(section: str, config: CaliberConfig, place: Place) -> Any:
    settings: Any = getattr(config, section)
    if section == SUMMARIZES:
        made: Any = build_summarization_provider(settings, None, count)
    else:
        made = build_embedding_provider(settings, count, field=section)
    if "server" in place.known:
        place.known["server"].callers.append(made)
    return made


def outcome(provider: Any, text: str = TEXT) -> str:
    """Ask, and return ``answered`` or the name of the error."""
    try:
        provider.summarize(text, 3) if hasattr(provider, "summarize") else provider.embed(text)
    except CaliberError as error:
        return type(error).__name__
    return "answered"


Seen = Callable[[Any, ModelServer, Place], Any]


def asked(section: str, show: Seen) -> Callable[[CaliberConfig, Place], Any]:
    """Return the observation of what a provider does with its service."""

    def see(config: CaliberConfig, place: Place) -> Any:
        return show(provider_of(section, config, place), place.known["server"], place)

    return see


def document(*names: str) -> Seen:
    """Return an observation of fields of the request that was sent."""

    def show(provider: Any, server: ModelServer, _: Place) -> Any:
        outcome(provider)
        return [server.asked[-1].document.get(name) for name in names]

    return show


# --- the provider ----------------------------------------------------------------------------------


def path_asked(provider: Any, server: ModelServer, _: Place) -> str:
    outcome(provider)
    return server.asked[-1].path


def key_sent(provider: Any, server: ModelServer, place: Place) -> str | None:
    place.environment(CALIBER_TEST_ANOTHER_KEY="another-key")
    outcome(provider)
    return server.asked[-1].headers.get("authorization")


def server_asked(provider: Any, server: ModelServer, place: Place) -> tuple[int, int]:
    outcome(provider)
    return len(server.asked), len(place.known["other"].asked)


def other_endpoint(place: Place) -> str:
    return str(place.known["other"].endpoint)


def two_services(section: str) -> Callable[[Place], Knobs]:
    def also(place: Place) -> Knobs:
        place.known["other"] = serve(place)
        return service(section)(place)

    return also


def length(section: str) -> Callable[[CaliberConfig, Place], Any]:
    return lambda config, place: len(provider_of(section, config, place).embed("text"))


def accepted(config: CaliberConfig, place: Place) -> str:
    try:
        provider_of(SUMMARIZES, config, place)
    except CaliberError as error:
        return type(error).__name__
    return "built"


def provider_cases(section: str) -> Sequence[Case]:
    chat = section == SUMMARIZES
    of_kind = services.SUMMARIZATION if chat else services.EMBEDDING
    paths = ("/chat/completions", "/api/chat") if chat else ("/embeddings", "/api/embed")
    option, field = ("answer_format", "response_format") if chat else ("encoding_format", "encoding_format")
    given: tuple[Any, Any] = ("json_object", "none") if chat else ("base64", "float")
    sent = ([{"type": "json_object"}], [None]) if chat else (["base64"], ["float"])
    size: Case
    if chat:
        size = Case(f"{section}.dimensions", accepted, (None, "built"), (8, "IncompatibleOptions"), service(section))
    else:
        size = Case(f"{section}.dimensions", length(section), (8, 8), (16, 16), {section: HASH_PROVIDER})
    options = dict(of_kind["openai"]["options"])
    return (
        Case(
            f"{section}.provider_type",
            asked(section, path_asked),
            ("openai", paths[0]),
            ("ollama", paths[1]),
            service(section),
            beside=({}, {f"{section}.options": of_kind["ollama"]["options"]}),
        ),
        Case(f"{section}.model", asked(section, document("model")), ("a", ["a"]), ("b", ["b"]), service(section)),
        Case(
            f"{section}.endpoint",
            asked(section, server_asked),
            (lambda place: place.known["server"].endpoint, (1, 0)),
            (other_endpoint, (0, 1)),
            two_services(section),
        ),
        size,
        Case(
            f"{section}.api_key",
            asked(section, key_sent),
            (f"env:{KEY_NAME}", f"Bearer {KEY}"),
            ("env:CALIBER_TEST_ANOTHER_KEY", "Bearer another-key"),
            service(section),
        ),
        Case(
            f"{section}.options",
            asked(section, document(field)),
            ({**options, option: given[0]}, sent[0]),
            ({**options, option: given[1]}, sent[1]),
            service(section),
        ),
    )


# --- how it is called ------------------------------------------------------------------------------


def never_answered(provider: Any, server: ModelServer, _: Place) -> str:
    """Return the first limit to pass: that of the request, or that of the call."""
    server.always = slow(60)
    return never_connected(provider)


def never_connected(provider: Any, *_: Any) -> str:
    """Return the first limit to pass, in one of three attempts: a busy machine may let both pass."""
    found = ""
    for _ in range(3):
        with within(0.2):
            found = outcome(provider)
        if found != "Unavailable":
            break
    return found


def simply(provider: Any, *_: Any) -> str:
    return outcome(provider)


def silent(section: str) -> Callable[[Place], Knobs]:
    """Return the overrides for a service that takes connections and never answers."""

    def also(place: Place) -> Knobs:
        knobs = service(section, trusted=str(CERTIFICATE))(place)
        listening = place.keep(closing(socket.create_server(("127.0.0.1", 0))))
        return {**knobs, f"{section}.endpoint": f"https://127.0.0.1:{listening.getsockname()[1]}"}

    return also


def two_in_a_minute(provider: Any, *_: Any) -> list[str]:
    with within(20):
        return [outcome(provider), outcome(provider)]


def two_that_cost_much(provider: Any, server: ModelServer, place: Place) -> list[str]:
    server.always = changed(lambda answer: {**answer, "usage": {"total_tokens": 10_000_000}})
    return two_in_a_minute(provider, server, place)


def one_beside_another(provider: Any, server: ModelServer, _: Place) -> str:
    """Return the outcome of a request while another waits for its answer."""
    arrived = threading.Event()

    def hold(handler: Any, _: Any) -> bool:
        arrived.set()
        handler.pause(60)
        return False

    server.script.append(hold)
    threading.Thread(target=outcome, args=(provider,), daemon=True).start()
    assert arrived.wait(20)
    found = ""
    for _ in range(3):
        if found != "answered":
            with within(0.12):
                found = outcome(provider)
    server.stopping.set()
    return found


def connections_made(provider: Any, server: ModelServer, _: Place) -> int:
    outcome(provider)
    let_run(0.01)  # longer than the shorter of the two, however busy the machine is
    outcome(provider)
    return server.connections


def long_answer(provider: Any, server: ModelServer, _: Place) -> str:
    server.always = changed(lambda answer: {**answer, "more": "x" * 5_000})
    return outcome(provider)


def through_a_proxy(provider: Any, server: ModelServer, place: Place) -> tuple[int, int]:
    proxy = serve(place)
    proxy.always = status(404)
    place.environment(http_proxy=proxy.endpoint)
    outcome(provider)
    return len(server.asked), len(proxy.asked)


def encrypted(section: str) -> Callable[[Place], Knobs]:
    def also(place: Place) -> Knobs:
        knobs = service(section)(place)
        return {**knobs, f"{section}.endpoint": serve(place, tls=CERTIFICATE).endpoint}

    return also


def http_cases(section: str) -> Sequence[Case]:
    http = f"{section}.http"
    plain = service(section)

    def case(knob: str, show: Any, one: Any, other: Any, also: Any = plain) -> Case:
        return Case(f"{http}.{knob}", asked(section, show), one, other, also)

    return (
        case("timeout_ms", never_answered, (10, "RequestFailed"), ("60s", "Unavailable")),
        case("requests_per_minute", two_in_a_minute, (1, ["answered", "RateLimited"]), (0, ["answered", "answered"])),
        case(
            "tokens_per_minute",
            two_that_cost_much,
            (1_000_000, ["answered", "RateLimited"]),
            (0, ["answered", "answered"]),
        ),
        case("max_connections", one_beside_another, (1, "Unavailable"), (2, "answered")),
        case("proxy", through_a_proxy, ("none", (1, 0)), ("environment", (0, 1))),
        case("trusted", simply, ("usual", "RequestFailed"), (str(CERTIFICATE), "answered"), encrypted(section)),
    )


# --- what a language model is told -----------------------------------------------------------------


def requests(provider: Any, server: ModelServer, _: Place) -> int:
    outcome(provider, "This is a sentence. " * 100)
    return len(server.asked)


def artifacts(*contents: str) -> Seen:
    """Return an observation of how many of some artifacts are taken."""
    found = [{"artifact_type": "fact", "content": content, "confidence": 0.9, "source_turn": 1} for content in contents]

    def show(provider: Any, server: ModelServer, _: Place) -> int:
        server.replies["extract_artifacts"] = lambda _: {"artifacts": found}
        try:
            return len(provider.extract_artifacts([ExtractionTurn(1, TurnRole.USER, TEXT)]))
        except InvalidResponse:
            return -1

    return show


def asked_again(provider: Any, server: ModelServer, _: Place) -> int:
    """Return how often a model is asked that cannot keep to the form of its answer."""
    server.replies["summarize"] = lambda _: "perhaps"
    retry = RetryConfig(**{**RETRY, "max_retries": 2, "initial_backoff": 1})
    outcome(retrying_summarization(provider, Retry(retry, threading.Event())))
    return len(server.asked)


def instructions(provider: Any, server: ModelServer, _: Place) -> str:
    outcome(provider)
    return str(server.asked[-1].document["messages"][0]["content"])


def own_prompts(place: Place) -> str:
    for call, text in load_prompts("builtin").items():
        (place.folder / f"{call}.txt").write_text(f"Mine. {text}")
    return str(place.folder)


def chat_cases() -> Sequence[Case]:
    def case(knob: str, show: Seen, one: Any, other: Any) -> Case:
        see = asked(SUMMARIZES, show)
        return Case(f"{SUMMARIZES}.chat.{knob}", see, one, other, service(SUMMARIZES))

    builtin = load_prompts("builtin")["summarize"]
    limit = document("max_completion_tokens")
    return (
        case("max_input_tokens", requests, (64, 8), (1_000, 1)),
        case("max_output_tokens", limit, (100, [100]), (200, [200])),
        case("retry_invalid", asked_again, (False, 1), (True, 3)),
        case("prompts", instructions, ("builtin", builtin), (own_prompts, f"Mine. {builtin}")),
        case("temperature", document("temperature"), ("unsent", [None]), (0.5, [0.5])),
    )


# --- asking again ----------------------------------------------------------------------------------

RETRY = {
    "max_retries": 3,
    "initial_backoff": 100,
    "max_backoff": 10_000,
    "backoff_multiplier": 2.0,
    "jitter": 0.0,
    "max_retry_after": 60_000,
}


def attempts(server_says: Callable[[], Any]) -> Callable[[CaliberConfig, Place], int]:
    """Return the observation of how often a service is asked that never answers rightly."""

    def see(config: CaliberConfig, place: Place) -> int:
        server = place.known["server"]
        server.always = server_says()
        provider = provider_of(EMBEDS, config, place)
        outcome(retrying(provider, Retry(config.llm_retry_config, threading.Event())))
        return len(server.asked)

    return see


def waits(config: CaliberConfig, _: Place) -> list[float]:
    """The waits before three further attempts, when half is left to chance and goes against us."""
    failed = RequestFailed(provider="test", status=503, message="")
    return [backoff_ms(config.llm_retry_config, attempt, failed, 0.5) for attempt in range(3)]


def retry_cases() -> Sequence[Case]:
    def case(knob: str, one: Any, other: Any) -> Case:
        also = {f"llm_retry_config.{name}": value for name, value in RETRY.items() if name != knob}
        return Case(f"llm_retry_config.{knob}", waits, one, other, also)

    quick = {"llm_retry_config.initial_backoff": 1, "llm_retry_config.max_backoff": 1}

    def served(place: Place) -> Knobs:
        return {**service(EMBEDS)(place), **quick}

    return (
        Case("llm_retry_config.max_retries", attempts(lambda: status(503)), (0, 1), (2, 3), served),
        case("initial_backoff", (10, [10, 20, 40]), (20, [20, 40, 80])),
        case("max_backoff", (150, [100, 150, 150]), (300, [100, 200, 300])),
        case("backoff_multiplier", (2.0, [100, 200, 400]), (3.0, [100, 300, 900])),
        case("jitter", (0.0, [100, 200, 400]), (0.5, [75, 150, 300])),
        Case(
            "llm_retry_config.max_retry_after",
            attempts(lambda: status(429, retry_after_ms="2")),
            (1, 1),
            (10, 4),
            served,
        ),
    )


CASES: tuple[Case, ...] = (
    *(case for section in (EMBEDS, EMBEDDED, SUMMARIZES) for case in provider_cases(section)),
    *http_cases(EMBEDS),
    *chat_cases(),
    *retry_cases(),
)
