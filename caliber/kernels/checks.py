"""Validation of arrays (type, shape, contiguity, bounds) before a C kernel gets a pointer to them.

cffi accepts a float64 array as ``float[]`` and would misread it, so every array goes through ``view``.

Source: design section 6; house.md, section 3.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.model.errors import DTypeError, InvalidValue, NonFiniteError, ShapeError

F32: np.dtype[np.float32] = np.dtype(np.float32)
F64: np.dtype[np.float64] = np.dtype(np.float64)
U8: np.dtype[np.uint8] = np.dtype(np.uint8)
I32: np.dtype[np.int32] = np.dtype(np.int32)
I64: np.dtype[np.int64] = np.dtype(np.int64)
U64: np.dtype[np.uint64] = np.dtype(np.uint64)

_BOOL: np.dtype[np.bool_] = np.dtype(np.bool_)


def view(array: Any, dtype: np.dtype[Any], ndim: int, *, field: str) -> npt.NDArray[Any]:
    """Return ``array`` itself after checking its type, dimensions, contiguity and alignment; never a copy.

    Raises:  DTypeError, ShapeError, InvalidValue
    """
    if not isinstance(array, np.ndarray):
        raise DTypeError(field=field, expected=f"a NumPy array of {dtype.name}", got=type(array).__name__)
    if array.dtype != dtype:
        raise DTypeError(field=field, expected=dtype.name, got=str(array.dtype))
    if array.ndim != ndim:
        raise ShapeError(field=field, expected=f"{ndim} dimension{'s' if ndim != 1 else ''}", got=array.shape)
    flags = array.flags
    if not flags.c_contiguous or not flags.aligned:
        raise InvalidValue(field=field, reason="must be C-contiguous and aligned (use numpy.ascontiguousarray)")
    return array


def shaped(array: Any, dtype: np.dtype[Any], shape: Sequence[int | None], *, field: str) -> npt.NDArray[Any]:
    """Return ``view(array, ...)`` after checking its shape too; None stands for any length.

    Raises:  DTypeError, ShapeError, InvalidValue
    """
    # Nearly every call passes this fast path.
    if type(array) is np.ndarray and array.dtype is dtype and array.shape == shape:
        flags = array.flags
        if flags.c_contiguous and flags.aligned:
            return array
    checked = view(array, dtype, len(shape), field=field)
    for got, expected in zip(checked.shape, shape, strict=True):
        if expected is not None and got != expected:
            wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
            raise ShapeError(field=field, expected=wanted, got=checked.shape)
    return checked


def at_least(array: Any, dtype: np.dtype[Any], length: int, *, field: str) -> npt.NDArray[Any]:
    """Return ``view(array, dtype, 1, ...)`` after checking that it has ``length`` elements or more.

    Raises:  DTypeError, ShapeError, InvalidValue
    """
    checked = view(array, dtype, 1, field=field)
    if checked.shape[0] < length:
        raise ShapeError(field=field, expected=f"at least {length}", got=checked.shape)
    return checked


def flags(array: Any, length: int, *, field: str) -> npt.NDArray[np.uint8]:
    """Return a mask of bool or uint8 as uint8 without copying.

    Raises:  DTypeError, ShapeError, InvalidValue
    """
    if isinstance(array, np.ndarray) and array.dtype == _BOOL:
        if array.shape == (length,) and array.flags.c_contiguous:  # bytes are always aligned
            return array.view(U8)
        return shaped(array, _BOOL, (length,), field=field).view(np.uint8)
    return shaped(array, U8, (length,), field=field)


def offsets(array: Any, *, field: str = "offsets") -> npt.NDArray[Any]:
    """Return Arrow-style offsets: int32 or int64, one more than there are spans.

    Raises:  DTypeError, ShapeError, InvalidValue
    """
    dtype = I32 if isinstance(array, np.ndarray) and array.dtype == I32 else I64
    checked = view(array, dtype, 1, field=field)
    if checked.shape[0] == 0:
        raise ShapeError(field=field, expected="at least one offset", got=checked.shape)
    return checked


def row_ids(array: Any, size: int, *, field: str = "ids") -> npt.NDArray[np.int64]:
    """Return int64 row ids below ``size``, contiguous; the one place that copies, as slices of ids are common.

    Raises:  DTypeError, ShapeError, InvalidValue
    """
    if isinstance(array, np.ndarray):
        array = np.ascontiguousarray(array) if array.ndim else array
    checked = view(array, I64, 1, field=field)
    # As unsigned numbers, negative values are the largest of all: one pass checks both bounds.
    if checked.shape[0] and int(checked.view(np.uint64).max()) >= size:
        raise InvalidValue(field=field, reason=f"a row id is outside [0, {size})")
    return checked


def whole(value: Any, *, field: str, low: int = 0, high: int = 2**63 - 1) -> int:
    """Return ``value`` as an int within bounds.

    Raises:  DTypeError, InvalidValue
    """
    if type(value) is int and low <= value <= high:
        return value
    if isinstance(value, bool):
        raise DTypeError(field=field, expected="an integer", got="bool")
    try:
        number = operator.index(value)
    except TypeError as error:
        raise DTypeError(field=field, expected="an integer", got=type(value).__name__) from error
    if not low <= number <= high:
        raise InvalidValue(field=field, reason=f"must be between {low} and {high}, got {number}")
    return number


def threshold(value: Any, *, field: str) -> float:
    """Return a score bound rounded to f32 like the scores it is compared with; infinities are allowed.

    Raises:  DTypeError, NonFiniteError
    """
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise DTypeError(field=field, expected="a number", got=type(value).__name__) from error
    if math.isnan(number):
        raise NonFiniteError(field=field)
    if -1.0 <= number <= 1.0:
        return float(np.float32(number))
    with np.errstate(over="ignore"):
        return float(np.float32(number))
