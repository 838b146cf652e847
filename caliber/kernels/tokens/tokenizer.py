"""Third-party tokenizers, imported on first use: for embedding models, and for counting an LLM's tokens.

``tokenizers`` (extra ``embed``) reads the tokenizer of an embedding model; ``quicktok`` (extra ``tokens``), or
``tiktoken`` where its vocabulary file is on this machine already, counts the tokens of a language model.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from caliber.model.errors import ExtraNotInstalled
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.files import read_bytes, refuse_in_use
from caliber.model.process.interrupts import let_through

LONGEST_TOKEN: Final = 128
"""Bytes of the longest token of either vocabulary: no byte costs less than its share of one, in runs of spaces too."""
TIKTOKEN_FILES: Final = {
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}
"""The name of a vocabulary's file in tiktoken's cache, and its SHA-256."""


_FORK_WAITS_S: Final = 10.0
_reading = threading.RLock()
_forks: Final[list[Any]] = []


def _before_fork() -> None:
    """Wait until no other thread is in ``Tokenizer.from_file``: a child would inherit the locks of its library."""
    if _reading.acquire(timeout=_FORK_WAITS_S):
        _forks.append(_reading)


def _after_fork_in_parent() -> None:
    while _forks:
        _forks.pop().release()


def _after_fork_in_child() -> None:
    global _reading
    _reading = threading.RLock()
    _forks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def open_tokenizer(path: Path) -> Any:
    """Return the tokenizer described by a JSON file, without padding or truncation.

    Raises: ImportError without the package; the package's errors for an unusable file.
    """
    from tokenizers import Tokenizer

    refuse_in_use(path)

    with _reading:
        tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@dataclass(frozen=True, slots=True)
class TokenVocabulary:
    """The tokens of a language model. Units: ``longest`` bytes of any token; text is Unicode without surrogates."""

    name: str
    source: str
    longest: int
    count: Callable[[str], int]
    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], bytes]


@cache
def open_token_vocabulary(name: str) -> TokenVocabulary:
    """Return a vocabulary, read once a process: 0.2 to 0.4 s and about 100 MB.

    Both packages give the same tokens; the one that is here counts. Nothing is ever downloaded.

    Raises: ExtraNotInstalled
    """
    try:
        return _from_quicktok(name)
    except ImportError as error:
        cause: Exception = error
    except RuntimeError as error:  # its error for a vocabulary whose files are missing or damaged
        let_through(error)
        raise _missing(name, "the installed quicktok-v1 cannot read this vocabulary: reinstall it") from error
    if _tiktoken_has(name):
        try:
            return _from_tiktoken(name)
        except ImportError as error:
            cause = error
    raise _missing(name, "or install tiktoken with the vocabulary's file in TIKTOKEN_CACHE_DIR") from cause


def _missing(name: str, advice: str) -> ExtraNotInstalled:
    return ExtraNotInstalled(
        f"the estimator exact needs the vocabulary {name}: pip install 'caliber-memory[tokens]'; {advice}; "
        "or choose the estimator calibrated, which needs nothing",
        feature="the estimator exact",
        extra="tokens",
    )


def _from_quicktok(name: str) -> TokenVocabulary:
    import quicktok

    # Not get_encoding, which would also look for a vocabulary of that name in the user's cache.
    tokenizer = quicktok.Tokenizer(name, "")
    return TokenVocabulary(
        name,
        f"quicktok-v1 {_version('quicktok-v1')}",
        LONGEST_TOKEN,
        tokenizer.count,
        tokenizer.encode_ordinary,
        tokenizer.decode_bytes,
    )


def _from_tiktoken(name: str) -> TokenVocabulary:
    import tiktoken

    encoding = tiktoken.get_encoding(name)
    encode = encoding.encode_ordinary
    return TokenVocabulary(
        name,
        f"tiktoken {_version('tiktoken')}",
        LONGEST_TOKEN,
        lambda text: len(encode(text)),
        encode,
        encoding.decode_bytes,
    )


def _tiktoken_has(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether tiktoken's file exists and is intact: otherwise it would download one."""
    folder = environment.get("TIKTOKEN_CACHE_DIR", environment.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        folder = str(Path(tempfile.gettempdir(), "data-gym-cache"))
    key, digest = TIKTOKEN_FILES[name]
    try:
        return bool(folder) and sha256(read_bytes(Path(folder, key))).hexdigest() == digest
    except OSError as error:
        let_through(error)
        return False


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of an unknown version"
