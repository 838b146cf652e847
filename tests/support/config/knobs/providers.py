"""Knobs of providers: who embeds and who summarizes, how services are called, what a language model is told.

The services are those of ``model_server``, on loopback.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from support.config.knobs.case import Case, Knobs, Place
from support.configs import HASH_PROVIDER
from support.llm.model_server import ModelServer, serving, status
from support.llm.services import KEY, KEY_NAME, count, embedding_section, summarizer_section

from caliber.config import CaliberConfig
from caliber.config.profiles import services
from caliber.llm.registry import build_embedding_provider, build_summarization_provider
from caliber.llm.retry import Retry, backoff_ms, retrying
from caliber.model.errors import CaliberError, RequestFailed

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


def provider_cases(section: str) -> Sequence[Case]:
    chat = section == SUMMARIZES
    of_kind = services.SUMMARIZATION if chat else services.EMBEDDING
    paths = ("/chat/completions", "/api/chat") if chat else ("/embeddings", "/api/embed")
    option, field = ("answer_format", "response_format") if chat else ("encoding_format", "encoding_format")
    given: tuple[Any, Any] = ("json_object", "none") if chat else ("base64", "float")
    sent = ([{"type": "json_object"}], [None]) if chat else (["base64"], ["float"])
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
        *(() if chat else (size,)),
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


# --- asking again ----------------------------------------------------------------------------------

RETRY = {
    "max_retries": 3,
    "initial_backoff": 100,
    "max_backoff": 10_000,
    "backoff_multiplier": 2.0,
    "jitter": 0.0,
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
    )


CASES: tuple[Case, ...] = (
    *(case for section in (EMBEDS, EMBEDDED, SUMMARIZES) for case in provider_cases(section)),
    *retry_cases(),
)
