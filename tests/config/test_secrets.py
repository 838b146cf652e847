"""Secrets are references: never in a configuration, its repr, its pickle, its hash, or an error."""

from __future__ import annotations

import copy
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import caliber
from caliber.config import CaliberConfig, SecretRef, profiles
from caliber.config.manual.render import render_json, render_toml
from caliber.config.secret import has_credentials, is_secret_name, scrub, show
from caliber.model.errors import InvalidValue, MissingRequired, MultipleErrors

MARK = "hunter2swordfish"
PROVIDER = {"provider_type": "remote", "model": "m", "dimensions": 32, "api_key": "env:CALIBER_TEST_KEY"}


def config(**provider: Any) -> CaliberConfig:
    return profiles.reference("store.db", embedding_provider={**PROVIDER, **provider})


def everything_said(error: BaseException) -> str:
    """All the ways in which an error can be seen."""
    return "\n".join(
        [
            str(error),
            repr(error),
            repr(getattr(error, "context", "")),
            repr(pickle.dumps(error)),
            "".join(traceback.format_exception(error)),
            repr(error.__cause__),
            repr(error.__context__),
        ]
    )


def test_a_reference_shows_its_name_and_never_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    # C-105 K-203
    monkeypatch.setenv("CALIBER_TEST_KEY", MARK)
    made = config()
    key = made.embedding_provider.api_key if made.embedding_provider else None
    assert key.resolve() == MARK
    shown = [
        *(repr(key), str(key), f"{key}", repr(vars(type(key))), repr(pickle.dumps(key))),
        *(repr(made), str(made), repr(made.embedding_provider), repr(pickle.dumps(made)), made.canonical_json()),
        *(render_toml(made), render_json(made), repr(made.model_dump()), made.model_dump_json(), repr(made.__dict__)),
    ]
    assert not [text for text in shown if MARK in text]
    assert str(key) == "env:CALIBER_TEST_KEY"
    assert repr(key) == "SecretRef('env:CALIBER_TEST_KEY')"


def test_a_logged_configuration_holds_no_secret(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # C-105
    monkeypatch.setenv("CALIBER_TEST_KEY", MARK)
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("%s %r %r", config(), config(), config().embedding_provider)
    assert "CaliberConfig(" in caplog.text
    assert MARK not in caplog.text


def test_a_reference_is_resolved_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    # C-105, design section 8
    key = SecretRef("env:CALIBER_TEST_KEY")
    monkeypatch.setenv("CALIBER_TEST_KEY", "first")
    assert key.resolve() == "first"
    monkeypatch.setenv("CALIBER_TEST_KEY", "second")
    assert key.resolve() == "second"
    for unset in (lambda: monkeypatch.setenv("CALIBER_TEST_KEY", ""), lambda: monkeypatch.delenv("CALIBER_TEST_KEY")):
        unset()
        with pytest.raises(MissingRequired, match="CALIBER_TEST_KEY") as caught:
            key.resolve()
        assert caught.value.context == {"field": "env:CALIBER_TEST_KEY"}


def test_a_reference_is_a_value() -> None:
    key = SecretRef("env:A_KEY")
    assert key == SecretRef("env:A_KEY")
    assert key != SecretRef("env:B_KEY")
    assert key != "env:A_KEY"
    assert len({key, SecretRef("env:A_KEY"), copy.copy(key), pickle.loads(pickle.dumps(key))}) == 1
    for change in (lambda: setattr(key, "name", "X"), lambda: delattr(key, "name"), lambda: setattr(key, "x", 1)):
        with pytest.raises(AttributeError):
            change()


@pytest.mark.parametrize(
    "text", ["", "env:", "A_KEY", "ENV:A_KEY", "env:A-KEY", "env:1A", "env:A KEY", "env:A\n", MARK]
)
def test_only_a_reference_is_a_reference(text: str) -> None:
    # C-105
    with pytest.raises(ValueError, match="reference") as caught:
        SecretRef(text)
    assert MARK not in everything_said(caught.value)
    with pytest.raises(MultipleErrors):
        config(api_key=text)


def broken(change: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
    def call() -> object:
        data = config().to_mapping()
        change(data)
        return CaliberConfig.from_mapping(data)

    return call


LEAKS: dict[str, Callable[[], object]] = {
    "key in clear": lambda: config(api_key=MARK),
    "key of another kind": lambda: config(api_key={"value": MARK}),
    "key in options": lambda: config(options={"apiKey": MARK}),
    "key deep in options": lambda: config(options={"headers": [{"Authorization": MARK}]}),
    "credentials in options": lambda: config(options={"proxy": f"http://u:{MARK}@host"}),
    "options of a wrong kind": lambda: config(options=MARK),
    "credentials in endpoint": lambda: config(endpoint=f"https://user:{MARK}@host/v1"),
    "another scheme": lambda: config(endpoint=f"postgres://user:{MARK}@host/v1"),
    "dsn as path": lambda: profiles.reference(f"postgres://user:{MARK}@host/db"),
    "dsn of an adapter to come": lambda: profiles.reference(
        f"postgres://user:{MARK}@host/db", **{"storage.adapter": "postgres"}
    ),
    "dsn without a scheme's slashes": lambda: profiles.reference(f"host=h password={MARK}\0"),
    "dsn as adapter": lambda: profiles.reference("a.db", **{"storage.adapter": f"redis://:{MARK}@host"}),
    "provider that is a key": lambda: profiles.reference("a.db", embedding_provider=MARK),
    "knob that is an address": broken(lambda data: data["storage"].update({f"postgres://u:{MARK}@h/db": 1})),
    "knob that says a password": broken(lambda data: data.update({f"password={MARK}": 1})),
    "section that is a key": broken(lambda data: data.update(storage=MARK)),
    "section that is a list": broken(lambda data: data.update(storage=[MARK])),
    "unknown knob": broken(lambda data: data.update(openai_api_key=MARK)),
    "unknown harmless knob": broken(lambda data: data["embedding_provider"].update(colour=MARK)),
    "unknown section": broken(lambda data: data.update(secrets={"a": MARK})),
    "override through a knob": lambda: config().with_overrides(**{"token_budget.api_key": MARK}),
    "override of a provider": lambda: config().with_overrides(**{"embedding_provider.api_key": MARK}),
    "unparsable json": lambda: CaliberConfig.from_json(f'{{"api_key": "{MARK}", '),
    "unparsable json address": lambda: CaliberConfig.from_json(f'{{"path": "postgres://u:{MARK}@h/db", '),
    "unparsable toml": lambda: CaliberConfig.from_toml(f'[p]\napi_key = "{MARK}"\nx = ='),
    "unparsable toml unquoted": lambda: CaliberConfig.from_toml(f"password = {MARK}"),
    "unparsable toml cut short": lambda: CaliberConfig.from_toml(f"{'#' * 80}\ntoken = '{MARK} and more and more"),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_refused_secret_is_not_repeated(name: str) -> None:
    # C-093 C-105 K-072
    with pytest.raises((MultipleErrors, InvalidValue)) as caught:  # the latter of a path with a NUL
        LEAKS[name]()
    assert MARK not in everything_said(caught.value)


def test_a_file_that_does_not_parse_does_not_leak(tmp_path: Path) -> None:
    file = tmp_path / "caliber.toml"
    file.write_text(f"[storage]\npath = 'postgres://u:{MARK}@h/db'\nreaders = = 1\n", encoding="utf-8")
    with pytest.raises(MultipleErrors) as caught:
        caliber.load_config(file)
    assert MARK not in everything_said(caught.value)
    assert "readers = = 1" in caught.value.errors[0].context["value"], "the rest is still quoted"


def test_harmless_values_are_shown() -> None:
    # the other side: an error that hides everything helps nobody
    with pytest.raises(MultipleErrors, match=r"storage\.durability = 'fast'"):
        profiles.reference("a.db", **{"storage.durability": "fast"})
    with pytest.raises(MultipleErrors, match="token_budget = -5"):
        profiles.reference("a.db", token_budget=-5)


def test_long_values_are_cut() -> None:
    with pytest.raises(MultipleErrors) as caught:
        profiles.reference("a.db", **{"storage.durability": "x" * 10_000, "aio.workers": 10**5_000})
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("name", "secret"), [
    *((name, True) for name in ("api_key", "apiKey", "OPENAI_API_KEY", "password", "auth_token", "Authorization")),
    *((name, True) for name in ("dsn", "client-secret", "connection_string", "credentials", "token")),
    *((name, False) for name in ("max_tokens", "tokens", "keyboard", "author", "model", "monkey")),
    *((name, False) for name in ("token_budget", "bytes_per_token", "key_size")),
])  # fmt: skip
def test_names_that_hold_secrets_are_told_from_others(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_credentials_in_addresses_are_seen() -> None:
    assert has_credentials("https://user:pw@host")
    assert has_credentials("redis://:pw@host/0")
    assert not has_credentials("https://host/path@v1")
    assert not has_credentials("user@host")


def test_shown_values_are_short_and_plain() -> None:
    assert show(True) == "True"
    assert show(None) == "None"
    assert show(1.5) == "1.5"
    assert show(10**200) == "a very large number"
    assert show({"a": 1}) == "a table"
    assert show([1]) == "a list"
    assert show(b"abc") == "a value of type bytes"
    assert show("abc") == "'abc'"
    assert show("abc", ("provider", "api_key")) == "<redacted>"
    assert show("sk-abcdef") == show("postgres://h/db") == show("password=abc") == "<redacted>"


def test_scrubbing_keeps_the_rest() -> None:
    assert scrub('a = 1\napi_key = "abc"\nb = 2') == "a = 1\napi_key = <redacted>\nb = 2"
    assert scrub('{"token": "abc", "x": 1}') == '{"token": <redacted>, "x": 1}'
    assert scrub("see http://u:p@h/x y") == "see <redacted> y"
