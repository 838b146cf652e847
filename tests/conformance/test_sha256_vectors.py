"""SHA-256 against published vectors: FIPS 180 examples and NIST's SHA256ShortMsg.rsp. C-306."""

from __future__ import annotations

import hashlib
from uuid import UUID

import numpy as np
import pytest
from support.kernels.instruction_sets import COMPILED, PORTABLE, running_on

from caliber import kernels
from caliber.kernels import identifiers

pytestmark = pytest.mark.prove

FIPS_180: list[tuple[bytes, str]] = [
    (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    (
        b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
    ),
    (
        b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1",
    ),
    (b"a" * 1_000_000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
]
SHORT_MESSAGES: list[tuple[bytes, str]] = [
    (bytes.fromhex("d3"), "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1"),
    (bytes.fromhex("11af"), "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98"),
    (bytes.fromhex("b4190e"), "dff2e73091f6c05e528896c4c831b9448653dc2ff043528f6769437bc7b975c2"),
    (bytes.fromhex("74ba2521"), "b16aa56be3880d18cd41e68384cf1ec8c17680c45a02b1575dc1518923ae8b0e"),
    (bytes.fromhex("bd"), "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b"),
    (bytes.fromhex("c98c8e55"), "7abc22c0ae5af26ce93dbb94433a0e0b2e119d014f8e7f65bd56c61ccccd9504"),
]
# NIST's additional ones, at the edges of a block.
FILLED: list[tuple[bytes, str]] = [
    (bytes(55), "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7"),
    (bytes(56), "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb"),
    (bytes(57), "65a16cb7861335d5ace3c60718b5052e44660726da4cd13bb745381b235a1785"),
    (bytes(64), "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b"),
    (b"A" * 1000, "c2e686823489ced2017f6059b8b239318b6364f6dcd835d0a519105a1eadd6e4"),
    (b"U" * 1005, "f4d62ddec0f3dd90ea1380fa16a5ff8dc4c54b21740650f24afc4120903552b0"),
]
VECTORS = FIPS_180 + SHORT_MESSAGES + FILLED


@pytest.mark.parametrize("path", COMPILED)
def test_published_vectors(path: str) -> None:
    with running_on(path):
        found = kernels.sha256_batch([message for message, _ in VECTORS])
    assert [row.tobytes().hex() for row in found] == [digest for _, digest in VECTORS]


@pytest.mark.parametrize("path", COMPILED)
def test_published_vectors_as_spans_of_one_buffer(path: str) -> None:
    joined = b"".join(message for message, _ in VECTORS)
    offsets = np.cumsum([0, *(len(message) for message, _ in VECTORS)]).astype(np.int32)
    with running_on(path):
        found = kernels.sha256_spans(np.frombuffer(joined, np.uint8), offsets)
    assert [row.tobytes().hex() for row in found] == [digest for _, digest in VECTORS]


@pytest.mark.parametrize("path", COMPILED)
def test_the_monte_carlo_procedure(path: str) -> None:
    """NIST's SHAVS 6.4: each message is the last three digests; hashlib runs the same chain."""
    seed = hashlib.sha256(b"caliber").digest()
    ours, theirs = [seed] * 3, [seed] * 3
    with running_on(path):
        for _ in range(300):
            ours = [*ours[1:], kernels.sha256_batch([b"".join(ours)])[0].tobytes()]
            theirs = [*theirs[1:], hashlib.sha256(b"".join(theirs)).digest()]
    assert ours == theirs


# --- RFC 9562 --------------------------------------------------------------------------------------


EXAMPLE = UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")
UNIX_MS = 0x017F22E279B0  # Tuesday, February 22, 2022 2:22:22.00 PM GMT-05:00
RAND_A = 0xCC3
RAND_B = 0x18C4DC0C0C07398F


@pytest.mark.parametrize("path", PORTABLE)
def test_the_published_example_comes_out_of_its_fields(path: str) -> None:
    # rand_a is our counter: it reaches the example's value by counting on from the one before.
    state = np.array((UNIX_MS, RAND_A - 1), dtype=identifiers.STATE)
    with running_on(path):
        raw = identifiers.fill(state, UNIX_MS, RAND_B.to_bytes(8, "big") + bytes(2), 1)
    assert UUID(bytes=raw) == EXAMPLE


@pytest.mark.parametrize("path", PORTABLE)
def test_fields_are_where_the_layout_puts_them(path: str) -> None:
    state = np.zeros((), dtype=identifiers.STATE)
    with running_on(path):
        ones = int.from_bytes(identifiers.fill(state, 2**48 - 1, b"\xff" * 10, 1), "big")
        state[...] = (0, 0)
        zeros = int.from_bytes(identifiers.fill(state, 1, bytes(10), 1), "big")
    assert f"{ones:0128b}" == "1" * 48 + "0111" + "0" + "1" * 11 + "10" + "1" * 62
    assert f"{zeros:0128b}" == "0" * 47 + "1" + "0111" + "0" * 12 + "10" + "0" * 62
