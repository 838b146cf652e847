"""Subject of an erasure: names recognised in texts and bytes, and removed from a window's record."""

from __future__ import annotations

import dataclasses
import html
import json
import unicodedata
import urllib.parse
import uuid
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cases import each
from support.evidence import examples

from caliber.erasure.proving import Proof
from caliber.erasure.redaction import Redactor
from caliber.erasure.subject import MARK, Subject
from caliber.kernels.tokens.estimators import open_estimator
from caliber.model import EntityRef, EntityType
from caliber.model.erasure import ErasureKind, ForgetReport, Searched
from caliber.model.errors import AmbiguousSubject, DTypeError
from caliber.schema import relation as declared
from caliber.schema.erase import Erase, Redaction
from caliber.schema.relation import Relation, blob, integer, json_, text_array, uuid_, uuid_array
from caliber.storage.protocol import Place

NAME = "Zoë O'Brien-Łuk"


@each("text", [
    "{}", "«{}»", "x\n{}'s", "to:{}@example.org", "_{}_", "{}\u0301",
])  # fmt: skip
@each("form", ["NFC", "NFD", "NFKC", "NFKD"])
@each("case", [str, str.upper, str.lower, str.swapcase])
def test_a_name_is_found_however_it_is_written(text: str, form: str, case: type[str]) -> None:
    subject = Subject((), (NAME,))
    written = text.format(unicodedata.normalize(form, case(NAME)))
    if text.endswith("\u0301"):
        assert not subject.mentioned(written), "with another accent it is another name"
        return
    assert subject.mentioned(written)
    assert subject.without(written) == text.format(MARK)
    assert subject.without_in(written.encode()) == text.format(MARK).encode()


@pytest.mark.parametrize(
    "written", ["Zoë  O’Brien–Łuk", "Zoë\u00a0O'Brien-Łuk", "Zo\u200bë O'Brien-\u00adŁuk", "ＺＯë O'Brien-Łuk"]
)
def test_a_name_is_found_with_other_signs(written: str) -> None:
    assert Subject((), (NAME,)).without(f"a {written} b") == f"a {MARK} b"


def test_a_name_is_found_as_other_notations_spell_it() -> None:
    subject = Subject((), (NAME,))
    for written in (
        json.dumps(NAME),
        json.dumps(json.dumps(NAME)),
        "Zo%C3%AB%20O%27Brien-%C5%81uk",
        "Zoë O&#x27;Brien-Łuk",
    ):
        assert subject.mentioned(written), written
        assert "Brien" not in subject.without(written)


def entities(text: str) -> str:
    return "".join(f"&#{ord(sign)};" if not sign.isalnum() or not sign.isascii() else sign for sign in text)


def named_entities(text: str) -> str:
    return html.escape(text).replace("ë", "&euml;").replace(" ", "&nbsp;")


def javascript(text: str) -> str:
    return "".join(sign if sign.isascii() and sign.isalnum() else f"\\u{ord(sign):04X}" for sign in text)


ENCODERS = (
    entities,
    named_entities,
    javascript,
    html.escape,
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps({"who": text}),
    urllib.parse.quote,
    lambda text: urllib.parse.quote(text, safe=""),
    lambda text: text.replace(" ", "<br/>") if "<" not in text else text,
    lambda text: f"<p class='a'>{text}</p>",
)


@pytest.mark.parametrize("written", [
    "Zo&euml; O&#39;Brien-&#x141;uk",
    "Zo&#235;&nbsp;O&apos;Brien-&#321;uk",
    "<b>Zoë</b><br>O'Brien-Łuk",
    "<td>Zoë</td><td>O&rsquo;Brien-Łuk</td>",
    "Zoë\\nO'Brien-Łuk",
    "\\tZoë\\u0020O'Brien-\\u0141uk\\n",
    "Zo%25C3%25AB%2520O%2527Brien-%25C5%2581uk",
    "Zo%EB%20O'Brien-%C5%81uk",
    "Zoë+O'Brien-Łuk",
    "Zo&amp;euml; O&amp;#39;Brien-&amp;#x141;uk",
    '<a title="Zo&euml; O&#39;Brien-&#x141;uk">',
    "<a href='?u=%3Fn%3DZo%25C3%25AB%2520O%2527Brien-%25C5%2581uk'>",
    "if a<b then Zo&euml; O&#39;Brien-&#x141;uk > c",
    "\\\\u005ao\\\\u00eb O'Brien-\\\\u0141uk",
])  # fmt: skip
def test_a_name_is_found_under_escapes(written: str) -> None:
    subject = Subject((), (NAME,))
    assert subject.mentioned(written)
    out = subject.without(f"before {written} after")
    assert not subject.mentioned(out)
    assert MARK in out
    assert out.startswith("before ")
    assert out.endswith(" after")
    assert "Brien" not in out


@given(st.lists(st.sampled_from(ENCODERS), max_size=4), st.text(st.sampled_from('ab &<%\\"é'), max_size=6))
def test_a_name_is_found_under_any_few_layers_of_escapes(layers: list[Any], around: str) -> None:
    subject = Subject((), (NAME,))
    written = f"{around} {NAME} {around}"
    for layer in layers:
        written = layer(written)
    assert subject.mentioned(written)
    out = subject.without(written)
    assert not subject.mentioned(out)
    assert subject.without(out) == out


@given(st.text(st.sampled_from("ab&#;<>%\\u0041 eé12x/"), max_size=40))
def test_escapes_of_others_are_left_as_they_are(text: str) -> None:
    assert Subject((), ("Zebedee Quux",)).without(text) == text


def test_a_long_text_of_escapes_is_read_in_time_of_its_length() -> None:
    """No escape is looked at more often than there are layers, whatever it is made of."""
    for piece in ("&amp;", "<a ", "%25", "\\\\", "\\u0026", "&#38;"):
        text = piece * 20_000
        assert Subject((), (NAME,)).without(text) == text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_a_name_is_taken_out_of_content_that_is_not_utf8(encoding: str) -> None:
    name = "Zoë Brontë"
    raw = f"é {name.upper()} é".encode(encoding)
    out = Subject((), (name,)).without_in(raw)
    assert out.decode(encoding) == f"é {MARK} é"
    binary = b"\xff\xfe\xfd\x00" + "Zoë Brontë".encode() + b"\x00\xff"
    assert Subject((), (name,)).without_in(binary) == b"\xff\xfe\xfd\x00" + MARK.encode() + b"\x00\xff"


def test_parts_of_longer_words_are_somebody_else() -> None:
    subject = Subject((), ("Ann", "王明", "ada@x.org"))
    for text in ("Annual", "Joann", "Ann1", "nada@x.org", "ada@x.organ", "Anné"):
        assert not subject.mentioned(text), text
    for text in ("Ann.", "(Ann)", "Ann_2", "我是Ann吗", "找王明了", "<ada@x.org>"):
        assert subject.mentioned(text), text


def test_ids_are_found_in_texts_and_bytes() -> None:
    who = EntityRef(EntityType.USER, uuid.uuid4())
    subject = Subject.of(who, ())
    for text in (str(who.id), who.id.hex.upper(), f"urn:uuid:{who.id}"):
        assert subject.mentioned(text)
    assert subject.mentioned_in(b"\xff" + who.id.bytes)
    with pytest.raises(DTypeError):
        Subject.of(None, "Ada")


_WORDS = st.text(st.sampled_from("abAB éÉ-'_1王ß\u0301\u200b\n"), max_size=12)


@settings(max_examples=examples(40))
@given(_WORDS.filter(bool), _WORDS, _WORDS)
def test_nothing_of_a_name_is_left_and_nothing_else_is_lost(name: str, before: str, after: str) -> None:
    try:
        subject = Subject((), (name,))
    except AmbiguousSubject:
        assume(False)
    text = f"{before}. {name} .{after}"
    out = subject.without(text)
    assert subject.mentioned(text)
    assert not subject.mentioned(out)
    assert subject.without(out) == out
    if not subject.mentioned(before) and not subject.mentioned(after):
        assert out.startswith(f"{before}. ")
        assert out.endswith(f" .{after}")


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(1, 64))
def test_bytes_are_found_across_the_pieces_of_a_file(before: bytes, after: bytes, size: int) -> None:
    subject = Subject((), ("Beeblebrox",))
    raw = before + b"\0BEEBLEBROX\0" + after
    parts = [raw[at : at + size] for at in range(0, len(raw), size)]
    proof = Proof(subject, ())
    found, read = proof.in_parts(Place("file", "file", iter(parts)), None)
    assert read == len(raw)
    assert found == 1


def test_digests_are_found_in_files_and_values() -> None:
    digest = bytes(range(32))
    proof = Proof(Subject((), ("Beeblebrox",)), (digest,))
    from caliber.erasure.proving import heads_of

    heads = heads_of(proof.hashes)
    for parts in ([b"x" * 99 + digest + b"y"], [b"x" * 20 + digest[:7], digest[7:] + b"y"]):
        assert proof.in_parts(Place("file", "file", iter(parts)), heads)[0] == 1
    assert proof.in_parts(Place("column", "column", iter([digest, b"z"]), apart=True), heads)[0] == 1


def test_a_report_is_proven_only_when_all_was_read_and_nothing_found() -> None:
    clean, dirty = Searched("a", "file", 1, 0), Searched("b", "file", 1, 2)
    log = Searched("c", "log", 1, 5)
    kind = ErasureKind.SUBJECT
    assert ForgetReport(kind, False, searched=(clean, log)).proven
    assert not ForgetReport(kind, False, searched=(clean, dirty)).proven
    assert not ForgetReport(kind, False).proven
    assert not ForgetReport(kind, True, searched=(clean,)).proven
    assert not ForgetReport(kind, False, searched=(clean,), remaining=("later",)).proven
    assert ForgetReport(kind, False, searched=(clean, log)).findings == 0


@dataclasses.dataclass(frozen=True)
class _Block:
    block_id: uuid.UUID
    label: str
    body: dict[str, object]
    tags: tuple[str, ...]
    owner: uuid.UUID | None
    seen_by: tuple[uuid.UUID, ...]
    raw: bytes
    idempotency_key: str | None
    size: int


_BLOCK = Relation(
    name="block",
    plural="blocks",
    entity=_Block,
    code=99,
    comment="A relation that forgetting knows nothing of.",
    derived=None,
    erase=Erase(),
    links=None,
    trust=None,
    exported=None,
    key=("block_id",),
    columns=(
        uuid_("block_id"),
        declared.text("label"),
        json_("body", dict, dict, redact=Redaction.WORDS),
        text_array("tags"),
        uuid_("owner", nullable=True),
        uuid_array("seen_by"),
        blob("raw", redact=Redaction.WORDS),
        declared.text("idempotency_key", nullable=True, redact=Redaction.NEW_KEY),
        integer("size"),
    ),
)


def test_a_relation_that_nobody_thought_of_is_redacted_by_its_types() -> None:
    # issue 5, item 8: "memory blocks whatever relations exist"
    who, other = uuid.uuid4(), uuid.uuid4()
    block = _Block(
        uuid.uuid4(), "about Zoë Łuk", {"ZOË ŁUK": ["x", {"y": "zoë łuk!"}], "n": 1}, ("zoë łuk", "b"), who,
        (who, other), "Zoë Łuk".encode("utf-16-le") + b"\xff", "Zoë Łuk:1", 3,
    )  # fmt: skip
    redactor = Redactor(Subject((who,), ("Zoë Łuk",)), open_estimator("bytes", bytes_per_token=4, vocabulary=None))
    changed = redactor.without(_BLOCK, block)
    assert changed.label == f"about {MARK}"
    assert changed.body == {MARK: ["x", {"y": f"{MARK}!"}], "n": 1}
    assert changed.tags == (MARK, "b")
    assert changed.owner is None
    assert changed.seen_by == (other,)
    assert changed.raw == MARK.encode("utf-16-le") + b"\xff"
    assert changed.idempotency_key.startswith("forgotten:")
    assert (changed.block_id, changed.size) == (block.block_id, 3)
    assert redactor.without(_BLOCK, changed) is changed


def test_a_text_with_zero_characters_is_a_text() -> None:
    # issue 5 item 8: forgetting Ann leaves Annual and Joanna alone, whatever stands between them
    subject = Subject((), ("Ann",))
    assert subject.without_in(b"The Annual\0report of Joanna") == b"The Annual\0report of Joanna"
    assert subject.without_in(b"Ann\0Annual") == f"{MARK}\0Annual".encode()
    wide = "from Ann".encode("utf-16-le")
    assert subject.without_in(wide) == f"from {MARK}".encode("utf-16-le")
