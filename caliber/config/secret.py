"""References to secrets in environment variables, literal connection strings, and redaction in errors.

A configuration holds the name of an environment variable, never the secret itself: a value that is not there cannot be
logged, pickled, hashed or stored with a window.

Source: C-105, K-072, K-203, design section 8.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, PlainSerializer, PlainValidator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from caliber.model.errors import MissingRequired
from caliber.model.lazy_dataclass import dataclass

PREFIX = "env:"
REDACTED = "<redacted>"
SHOWN_CHARS = 100
NAME_CHARS = 64

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_PLAIN_DSN = re.compile(r"postgres(?:ql)?://[\w.,:\[\]-]*(?:/[\w.-]*)?\Z", re.ASCII)
_SECRET_WORDS = frozenset(
    (
        *("apikey", "secret", "password", "passwd", "pwd", "dsn", "credential", "credentials"),
        *("auth", "authorization", "bearer", "cookie", "connection"),
    )
)
_SECRET_LAST_WORDS = frozenset(("key", "token"))  # api_key and auth_token are secrets, key_size and token_budget not
_WORD = re.compile(r"[A-Za-z]+")
_SECRET_TEXT = re.compile(
    r"://|\b(sk|pk|rk|ghp|gho|ghs|github_pat|xox[abprs]|glpat|hf)[-_][A-Za-z0-9]|\bAKIA[0-9A-Z]|\beyJ[A-Za-z0-9]"
    r"|-----BEGIN|(?i:password|passwd|pwd|secret|token|api[-_ ]?key|authorization)\W{0,4}[=:]"
)
_CREDENTIALS = re.compile(r"://[^/\s?#]*@")
_ASSIGNMENT = re.compile(
    r"""(?ix) ([\w.-]{0,60}(?:key|secret|password|passwd|pwd|token|dsn|credentials?|auth\w{0,40})["']?\s*[=:]\s*)
    (?:"[^"]*"?|'[^']*'?|\S+)"""
)
_URL = re.compile(r"[A-Za-z][\w+.-]{0,40}://\S*")


@dataclass(frozen=True, slots=True)
class SecretRef:
    """The name of an environment variable that holds a secret; the value is read only by ``resolve``."""

    reference: str

    def __post_init__(self) -> None:
        if not is_reference(self.reference):
            raise ValueError("a secret is given as a reference such as env:MY_API_KEY, never as the secret itself")

    @property
    def name(self) -> str:
        """The variable."""
        return self.reference.removeprefix(PREFIX)

    def resolve(self) -> str:
        """Return the secret.

        Raises: MissingRequired when the variable is unset or empty.
        """
        value = os.environ.get(self.name, "")
        if not value:
            raise MissingRequired(f"the environment variable {self.name} is required", field=str(self))
        return value

    @property
    def is_set(self) -> bool:
        """True if there is a secret to resolve."""
        return bool(os.environ.get(self.name))

    def __str__(self) -> str:
        return self.reference

    def __repr__(self) -> str:
        return f"SecretRef('{self}')"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def _validate(cls, value: Any) -> SecretRef:
        if isinstance(value, SecretRef):
            return value
        if isinstance(value, str) and is_reference(value):
            return cls(value)
        raise PydanticCustomError("secret", "must be a reference such as env:MY_API_KEY, never the secret itself")


@dataclass(frozen=True, slots=True)
class LiteralDsn:
    """A connection string that a configuration holds directly.

    A string with only host, port and database is shown as it is. Any other may hold a password: it is sealed, which
    means used by ``resolve`` and never shown, written, hashed or pickled. Source: K-072.
    """

    _text: str

    @property
    def is_sealed(self) -> bool:
        """True if it may contain a password."""
        return not is_plain_dsn(self._text)

    @property
    def is_set(self) -> bool:
        """True if there is something to resolve."""
        return self._text not in ("", REDACTED)

    def resolve(self) -> str:
        """Return the connection string. Raises: MissingRequired when it was omitted from the stored configuration."""
        if not self.is_set:
            raise MissingRequired(
                "the file does not contain the connection string: set it to env:MY_DSN", field="storage.dsn"
            )
        return self._text

    def __str__(self) -> str:
        return REDACTED if self.is_sealed else self._text

    def __repr__(self) -> str:
        return f"LiteralDsn('{self}')"

    def __copy__(self) -> LiteralDsn:
        return self

    def __deepcopy__(self, _: object) -> LiteralDsn:
        return self

    def __reduce__(self) -> tuple[type[LiteralDsn], tuple[str]]:
        if self.is_sealed:
            raise TypeError("a connection string that may hold a password is not pickled; name it as env:MY_DSN")
        return LiteralDsn, (self._text,)


def _dsn(value: Any) -> SecretRef | LiteralDsn:
    if isinstance(value, SecretRef | LiteralDsn):
        return value
    if isinstance(value, str) and is_reference(value):
        return SecretRef(value)
    if isinstance(value, str) and is_plain_dsn(value):
        return LiteralDsn(value)
    if value == REDACTED:
        raise PydanticCustomError(
            "secret", "the address was not written, as it may contain a password: set it to env:MY_DSN"
        )
    raise PydanticCustomError("secret", "must be a reference such as env:MY_DSN, never the secret itself")


Dsn = Annotated[SecretRef | LiteralDsn, PlainValidator(_dsn), PlainSerializer(str, return_type=str)]
"""A reference to a connection string, or one without a password."""


def is_plain_dsn(text: str) -> bool:
    """Return whether a connection string names a host, a port and a database, and nothing else."""
    return _PLAIN_DSN.match(text) is not None


def is_reference(text: str) -> bool:
    """Return whether ``text`` is an ``env:NAME`` reference."""
    return _REFERENCE.match(text) is not None


def is_secret_name(name: str) -> bool:
    """Return whether a key of this name probably holds a secret: ``api_key`` does, ``max_tokens`` does not."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = [word.lower() for word in _WORD.findall(spaced)]
    if not _SECRET_WORDS.isdisjoint(words):
        return True
    return bool(words) and words[-1] in _SECRET_LAST_WORDS and "per" not in words


def has_credentials(text: str) -> bool:
    """Return whether ``text`` is an address with a user or a password in it."""
    return _CREDENTIALS.search(text) is not None


def show(value: object, names: tuple[str, ...] = ()) -> str:
    """Return ``value``, found under the keys ``names``, in a form for errors: short, without secrets."""
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if abs(value) < 10**SHOWN_CHARS else "a very large number"
    if not isinstance(value, str):
        if isinstance(value, Mapping):
            return "a table"
        return "a list" if isinstance(value, (list, tuple)) else f"a value of type {type(value).__name__}"
    if any(is_secret_name(name) for name in names) or _SECRET_TEXT.search(value):
        return REDACTED
    text = repr(value[:SHOWN_CHARS])
    return text + "..." if len(value) > SHOWN_CHARS else text


def readable(name: str) -> str:
    """Return a name from a file as an error may repeat it: short, and printable on any terminal and in any log."""
    clean = scrub(name[: 4 * NAME_CHARS])
    short = clean if len(clean) <= NAME_CHARS else clean[:NAME_CHARS] + "..."
    return short if short.isprintable() else ascii(short)[1:-1]


def scrub(text: str) -> str:
    """Return ``text`` with everything that looks like a secret blanked; for quotes from files that do not parse."""
    return _ASSIGNMENT.sub(rf"\g<1>{REDACTED}", _URL.sub(REDACTED, text))
