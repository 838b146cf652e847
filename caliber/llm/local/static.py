"""Local embedding provider: the mean of static token vectors from the ``wordllama`` wheel.

The weights and the tokenizer are read directly: importing ``wordllama`` would cost 0.4 s, an HTTP client and a changed
logging configuration. Weights are memory-mapped, so processes share them and only rows in use are read.

Source: M-004, C-246; docs/decisions/0013-local-embeddings.md (also the model's licence).
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.tokens.tokenizer import open_tokenizer
from caliber.llm.local.base import LocalEmbedding
from caliber.llm.protocols import FloatVector
from caliber.llm.texts import valid_unicode
from caliber.model.errors import EmbeddingFailed, ExtraNotInstalled, InvalidConfigValue
from caliber.model.process.files import open_file

MODEL = "wordllama-l2-supercat"
WEIGHT_FILE = Path("weights", "l2_supercat_256.safetensors")
TOKENIZER_FILE = Path("tokenizers", "l2_supercat_tokenizer_config.json")
TENSOR = "embedding.weight"
# The model was trained so that the first 64 or 128 of its 256 dimensions are embeddings of their own.
DIMENSIONS = (64, 128, 256)

# The tokenizer holds the GIL while it works: 8,192 characters are about 4 ms of it.
BLOCK_CHARS = 8_192
_FEATURE = "the static embedding provider"
_DTYPES = {"F16": np.float16, "F32": np.float32}
_SAFETENSORS_HEADER_MAX = 1 << 20


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StaticModel:
    """Token vectors and the tokenizer that numbers them."""

    rows: NDArray[Any]
    tokenizer: Any


_shared: dict[Path, StaticModel] = {}
"""Models that were opened: texts and single words are embedded by one, for the life of the process. Reading a tokenizer
takes a tenth of a second, which the next handle is not to pay again; the weights are mapped, not read."""


class StaticEmbeddingProvider(LocalEmbedding):
    """Mean-pooled, L2-normalised static token embeddings; equal to ``WordLlama.embed(norm=True)``.

    Nothing is read until the first text arrives. Threads may share it, and it works after fork.

    Raises: ExtraNotInstalled without the extra ``embed``; InvalidConfigValue for other dimensions than 64, 128, 256.
    """

    def __init__(self, dimensions: int = DIMENSIONS[-1]) -> None:
        if dimensions not in DIMENSIONS:
            raise InvalidConfigValue(
                field="embedding_provider.dimensions", value=dimensions, reason=f"{MODEL} has 64, 128 or 256"
            )
        self._folder = static_model_folder()
        self._dimensions = dimensions

    @property
    def model_id(self) -> str:
        return MODEL

    @property
    def dimensions(self) -> int:
        return self._dimensions

    def _vector(self, text: str) -> FloatVector:
        model = load_static_model(self._folder)
        total: NDArray[np.float64] | None = None
        count = 0
        # ``encode`` and not ``encode_batch``: the batch form starts a thread pool, which warns on stderr after fork.
        for block in blocks(valid_unicode(text)):
            ids = model.tokenizer.encode(block, add_special_tokens=False).ids
            if not ids:
                continue
            part = model.rows[ids].astype(np.float32).sum(axis=0, dtype=np.float32).astype(np.float64)
            total = part if total is None else total + part
            count += len(ids)
        if total is None:
            raise EmbeddingFailed(reason="the model knows no token of this text")
        mean = total[: self._dimensions] / count
        norm = math.sqrt(float((mean * mean).sum()))
        if norm == 0.0:
            raise EmbeddingFailed(reason="the token vectors of this text cancel each other")
        return (mean / norm).astype(np.float32)


def static_model_folder(feature: str = _FEATURE) -> Path:
    """Return the folder of the model's files. Raises: ExtraNotInstalled, naming the feature that needs them."""
    folder = installed_folder()
    if folder is None:
        raise ExtraNotInstalled(feature=feature, extra="embed")
    return folder


@functools.cache
def installed_folder() -> Path | None:
    """Return the folder of the installed model; looking for it takes a tenth of opening a tenant."""
    spec = importlib.util.find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("tokenizers") is None:
        return None
    return Path(spec.submodule_search_locations[0])


def load_static_model(folder: Path) -> StaticModel:
    """Open tokenizer and weights, or return them where they are open. Raises: ExtraNotInstalled, EmbeddingFailed."""
    shared = _shared.get(folder)
    if shared is not None:
        return shared
    from caliber.storage.waiting import apart

    return apart(lambda: _load(folder))


def _load(folder: Path) -> StaticModel:
    try:
        rows = _map_tensor(folder / WEIGHT_FILE, TENSOR)
        tokenizer = open_tokenizer(folder / TOKENIZER_FILE)
    except EmbeddingFailed:
        raise
    except ImportError as error:  # installed, but not for this Python or platform
        raise ExtraNotInstalled(feature=_FEATURE, extra="embed") from error
    except Exception as error:  # tokenizers raises a bare Exception for a file that is missing or damaged
        raise EmbeddingFailed(reason="the model files of the installed wordllama package cannot be read") from error
    if tokenizer.get_vocab_size() > len(rows) or rows.shape[1] != DIMENSIONS[-1]:
        raise EmbeddingFailed(reason="tokenizer and weights of the installed wordllama package do not fit each other")
    # Two threads may both come here: they read the same data, and no lock is held while another thread forks.
    return _shared.setdefault(folder, StaticModel(rows, tokenizer))


def _map_tensor(path: Path, name: str) -> NDArray[Any]:
    """Map one tensor of a safetensors file: header length in eight bytes, JSON header, raw little-endian data."""
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= _SAFETENSORS_HEADER_MAX:
            raise EmbeddingFailed(reason=f"{path.name} is not a safetensors file")
        header: dict[str, Any] = json.loads(file.read(length))
    tensor = header[name]
    dtype = np.dtype(_DTYPES[tensor["dtype"]]).newbyteorder("<")
    rows, columns = (int(size) for size in tensor["shape"])
    start, end = tensor["data_offsets"]
    if end - start != rows * columns * dtype.itemsize:
        raise EmbeddingFailed(reason=f"{path.name} is damaged: the size of {name} is wrong")
    mapped = np.memmap(path, dtype=dtype, mode="r", offset=8 + length + start, shape=(rows, columns))
    return mapped.view(np.ndarray)


def blocks(text: str) -> Iterator[str]:
    """Cut a long text at spaces after a word, which the tokenizer turns into the start of the next word: same tokens.

    Only a run of more than 8,192 characters without a space is cut inside, which may change two of its tokens.
    """
    start = 0
    while len(text) - start > BLOCK_CHARS:
        limit = start + BLOCK_CHARS
        cut = _space_before(text, start + 1, limit)
        if cut < 0:
            yield text[start:limit]
            start = limit
        else:
            yield text[start:cut]
            start = cut + 1
    if start < len(text):
        yield text[start:]


def _space_before(text: str, floor: int, limit: int) -> int:
    # Not inside a run of spaces, whose tokens hang together, and not beside ``<s>`` and the like, where the tokenizer
    # starts anew: there the two pieces would not have the tokens of the whole.
    cut = text.rfind(" ", floor, limit)
    while cut >= 0 and (text[cut - 1] in " \u2581>" or text[cut + 1] == "<"):
        cut = text.rfind(" ", floor, cut)
    return cut
