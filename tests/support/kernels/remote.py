"""The native ABI in another process: what ``lib`` of the native module offers, with every call sent there and back.

Generated from the declarations that cffi has, so that whatever is in caliber.h can be called. tests/native/remote.c is
the other end; the layout of structs there is compared with the one here when it is compiled.
"""

from __future__ import annotations

import os
import re
import resource
import select
import struct
import subprocess
import tempfile
import threading
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from caliber._native import ffi, lib
from caliber.kernels.vectors import scoring

ROOT = Path(__file__).resolve().parents[3]
ANSWER_SECONDS = 60
LINE = 64
MASK = (1 << 64) - 1


class Parameter(NamedTuple):
    type: str  # without the const before it
    name: str
    constant: bool


class Function(NamedTuple):
    number: int
    name: str
    result: str
    parameters: tuple[Parameter, ...]


def _declared() -> dict[str, Function]:
    text = (ROOT / "csrc" / "ffi" / "native.cdef.txt").read_text(encoding="utf-8")
    found = {}
    prototypes = re.findall(r"^(\w+) (cal_\w+)\(([^)]*)\);", text, re.MULTILINE)
    for number, (result, name, parameters) in enumerate(prototypes):
        words = [] if parameters == "void" else [" ".join(each.split()) for each in parameters.split(",")]
        parts = [re.fullmatch(r"(const )?(\w+ (?:\*|\*const \*)?)(\w+)", each) for each in words]
        assert all(parts), f"{name}: a kind of parameter that is new here: {parameters}"
        found[name] = Function(
            number, name, result, tuple(Parameter(m[2].strip(), m[3], bool(m[1])) for m in parts if m)
        )
    assert set(found) == {name for name in dir(lib) if name.startswith("cal_")}
    return found


FUNCTIONS = _declared()

# How many elements a pointer within memory leads to; for pointers to pointers, also what each of those leads to.
Length = int | tuple[int, Sequence[int]]
Call = Mapping[str, Any]  # the arguments of a call by name


def _segment(segment: Any, call: Call) -> dict[str, Length]:
    count, dimensions = segment.count, call["dimensions"]
    each = {"rows": dimensions, "codes": scoring.code_stride(dimensions)}
    return {name: count * each.get(name, 1) for name in ("rows", "norms", "codes", "scales", "errors", "live")}


def _columns(columns: Any, call: Call) -> dict[str, Length]:
    return {name: call["n"] * (2 if name == "tie" else 1) for name, _ in ffi.typeof("cal_rank_columns").fields}


def _words(table: Any, call: Call) -> dict[str, Length]:
    return {"slots": table.slot_count, "starts": table.capacity + 1, "arena": table.arena_size}


def _lending(lending: Any, call: Call) -> dict[str, Length]:
    count = call["documents"] if lending.before else 0
    return {"before": count, "after": count, "asks": count}


def _postings(postings: Any, call: Call) -> dict[str, Length]:
    count = postings.segment_count
    terms = dict.fromkeys(("first", "chain", "tail", "left", "level"), postings.terms)
    return {**terms, "segments": (count, [lib.CAL_POSTING_SEGMENT] * count)}


def _part(part: Any, call: Call) -> dict[str, Length]:
    count = call["count"]
    return {"scores": count, "less": count, "near": part.near_count, "flags": call["row_count"]}


def _copy_column(column: Any, call: Call) -> dict[str, Length]:
    rows, items = call["rows"], column.item_count
    given = {"values": column.size, "validity": (column.first + rows + 7) // 8}
    given["item_validity"] = (column.item_first + items + 7) // 8
    return {**given, "offsets32": rows + 1, "offsets64": rows + 1, "items32": items + 1, "items64": items + 1}


def _copy_buffer(buffer: Any, call: Call) -> dict[str, Length]:
    rows = call.get("rows") if isinstance(call.get("rows"), int) else 0  # a scan looks at no buffer
    bits = (rows + 7) // 8
    return {"validity": bits, "values": buffer.size, "offsets": rows + 1, "items": buffer.item_count + 1}


# C knows these from what else it is given, as caliber.h says.
FIELDS: dict[str, Callable[[Any, Call], dict[str, Length]]] = {
    "cal_segment": _segment, "cal_rank_columns": _columns, "cal_words": _words, "cal_postings": _postings,
    "cal_lending": _lending, "cal_part": _part, "cal_copy_column": _copy_column, "cal_copy_buffer": _copy_buffer,
}  # fmt: skip
ARGUMENTS: dict[tuple[str, str], Callable[[Call], Length]] = {
    ("cal_topk_f32", "segments"): lambda call: call["segment_count"],
    ("cal_scores_f32", "segments"): lambda call: call["segment_count"],
    ("cal_join", "parts"): lambda call: call["part_count"],
    ("cal_join_told", "parts"): lambda call: call["part_count"],
    ("cal_copy_encode", "columns"): lambda call: call["column_count"],
    ("cal_copy_scan", "columns"): lambda call: call["column_count"],
    ("cal_copy_decode", "columns"): lambda call: call["column_count"],
    ("cal_phrase_matches", "documents"): lambda call: (call["count"], list(call["sizes"])),
}


def calls_h() -> str:
    """Return the C that calls a function by its number, and checks that structs are laid out as they are here."""
    lines = ["#include <stddef.h>", ""]
    for name in ffi.list_types()[0]:
        kind = ffi.typeof(name)
        lines.append(f'_Static_assert(sizeof({name}) == {ffi.sizeof(kind)}, "{name}");')
        lines += [
            f'_Static_assert(offsetof({name}, {field}) == {place.offset}, "{name}.{field}");'
            for field, place in kind.fields
        ]
    lines += ["", "static inline double number(uint64_t bits) {", "    double value;"]
    lines += ["    memcpy(&value, &bits, sizeof value);", "    return value;", "}", ""]
    lines += ["static uint64_t call(uint64_t function, const argument *a) {", "    switch (function) {"]
    for function in FUNCTIONS.values():
        given = []
        for at, parameter in enumerate(function.parameters):
            if parameter.type.endswith("*"):
                given.append(f"a[{at}].pointer")
            elif parameter.type in ("float", "double"):
                given.append(f"({parameter.type})number(a[{at}].bits)")
            else:
                given.append(f"({parameter.type})a[{at}].bits")
        lines.append(f"    case {function.number}: return (uint64_t){function.name}({', '.join(given)});")
    lines += ['    default: fail("an unknown function");', "    }", "    return 0;", "}"]
    return "\n".join(lines) + "\n"


class _Block(NamedTuple):
    memory: Any  # a buffer of cffi
    residue: int
    returned: bool
    pointers: list[int]  # offsets of addresses of this process

    def fill(self, answer: bytearray) -> None:
        """Take what the other process made of it, except its addresses."""
        for at in self.pointers:
            answer[at : at + 8] = self.memory[at : at + 8]
        self.memory[:] = answer


class _Request:
    """One call: blocks of memory, and where they point to each other."""

    def __init__(self, function: Function, arguments: Sequence[Any]) -> None:
        assert len(arguments) == len(function.parameters), f"{function.name} takes {len(function.parameters)} arguments"
        self.blocks: list[_Block] = []
        self.links: list[int] = []
        self.call = dict(zip((p.name for p in function.parameters), arguments, strict=True))
        values = [self._argument(function, p, a) for p, a in zip(function.parameters, arguments, strict=True)]
        # Which of the two layouts is a matter of what goes in, so that a failure can be repeated.
        seed = zlib.crc32(repr(values).encode())
        for block in self.blocks:
            if not block.returned and not block.pointers:
                seed = zlib.crc32(block.memory, seed)
        words = [function.number, len(values), len(self.blocks), len(self.links) // 3, seed & 1]
        for block in self.blocks:
            words += [len(block.memory), block.residue, block.returned]
        for bits, at in values:
            words += [bits, at]
        self.data = b"".join([array("Q", words + self.links), *(block.memory for block in self.blocks)])

    def _argument(self, function: Function, parameter: Parameter, value: Any) -> tuple[int, int]:
        if not parameter.type.endswith("*"):
            if parameter.type in ("float", "double"):
                return struct.unpack("<Q", struct.pack("<d", value))[0], 0
            return int(value) & MASK, 0
        if value == ffi.NULL:
            return 0, 0
        length = ARGUMENTS.get((function.name, parameter.name))
        if length is not None:
            count = length(self.call)
        else:
            count = len(value) if ffi.typeof(value).kind == "array" else 1
        return 0, 1 + self._block(value, count, returned=not parameter.constant)

    def _block(self, pointer: Any, length: Length, *, returned: bool) -> int:
        """Add the memory a pointer leads to, and all that lies behind; return its number."""
        count, behind = length if isinstance(length, tuple) else (length, ())
        item = ffi.typeof(pointer).item
        size = ffi.sizeof(item)
        number = len(self.blocks)
        memory = ffi.buffer(pointer, count * size)
        self.blocks.append(_Block(memory, int(ffi.cast("uintptr_t", pointer)) % LINE, returned, []))
        if item.kind == "pointer":
            for at, inner in enumerate(behind):
                self._link(number, at * size, pointer[at], inner, returned=returned)
        elif item.cname in FIELDS:
            for at in range(count):
                lengths = FIELDS[item.cname](pointer[at], self.call)
                for name, field in item.fields:
                    if field.type.kind == "pointer":
                        target = getattr(pointer[at], name)
                        self._link(number, at * size + field.offset, target, lengths[name], returned=returned)
        return number

    def _link(self, number: int, offset: int, pointer: Any, length: Length, *, returned: bool) -> None:
        self.blocks[number].pointers.append(offset)
        if pointer != ffi.NULL:
            self.links += [number, offset, self._block(pointer, length, returned=returned)]


class Remote:
    """Stands in for ``lib`` of the native module; a process that dies is an AssertionError, and is started again."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._command = list(map(str, command))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        function = FUNCTIONS.get(name)
        value = getattr(lib, name) if function is None else partial(self._call, function)
        setattr(self, name, value)
        return value

    def close(self) -> None:
        """End the process by ending its input."""
        with self._lock:
            if self._process is not None:
                self._end(self._process)

    def _call(self, function: Function, *arguments: Any) -> Any:
        request = _Request(function, arguments)
        with self._lock:
            process = self._process or self._start()
            try:
                self._send(process, request.data)
                result = bytearray(8)
                self._receive(process, result)
                for block in request.blocks:
                    if block.returned:
                        answer = bytearray(len(block.memory))
                        self._receive(process, answer)
                        block.fill(answer)
            except (EOFError, TimeoutError, BrokenPipeError) as error:
                raise AssertionError(f"{function.name}: {self._obituary(process, error)}") from None
        value = int.from_bytes(result, "little")
        return value - (1 << 64) if function.result == "int32_t" and value >> 63 else value

    def _start(self) -> subprocess.Popen[bytes]:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        pipe = subprocess.PIPE
        # What is to be loaded into this process, as a sanitizer is, is not for another machine.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=self._said, bufsize=0, env=environment
        )
        resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))  # some of them are meant to crash
        return self._process

    @staticmethod
    def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
        assert process.stdin is not None
        left = memoryview(data)
        while left:
            left = left[process.stdin.write(left) :]

    @staticmethod
    def _receive(process: subprocess.Popen[bytes], into: Any) -> None:
        assert process.stdout is not None
        left = memoryview(into)
        while left:
            if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
                raise TimeoutError
            got = os.readv(process.stdout.fileno(), [left])
            if got == 0:
                raise EOFError
            left = left[got:]

    def _obituary(self, process: subprocess.Popen[bytes], error: Exception) -> str:
        if isinstance(error, TimeoutError):
            process.kill()
        code = self._end(process)
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        if isinstance(error, TimeoutError):
            return f"no answer within {ANSWER_SECONDS} s"
        return f"the process ended by signal {-code}: {said}" if code < 0 else f"the process ended with {code}: {said}"

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        self._process = None
        assert process.stdout is not None
        process.stdin.close()
        code = process.wait()
        process.stdout.close()
        return code
