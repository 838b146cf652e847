"""Wrong answers planted in the kernels of bytes, identifiers, ranking and keywords: fuzz targets must see each.

A mutant is run on fixed inputs with every set of CPU features, so that a fault in one instruction set's file shows
wherever that set runs. The mutants of vector kernels are in tests/kernels/test_codes.py. Issue 3, item 8.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.evidence import share
from support.kernels import fuzzing, native_builds

pytestmark = [pytest.mark.prove, pytest.mark.skipif(native_builds.COMPILER is None, reason="needs a C compiler")]

# By room of csrc/: the target that must see its mutants, and how many inputs are made for it.
TARGETS = {
    "digest": ("sha256_spans", 2000), "uuid7": ("uuid7", 5000), "tokens": ("token_spans", 20_000),
    "rank": ("rank_and_fill", 3000), "keyword": ("keyword", 6000), "copy": ("copy", 40_000),
}  # fmt: skip
# By file of csrc/: what stands there, and what stands there instead.
MUTANTS: dict[str, dict[str, tuple[str, str]]] = {
    "digest/sha256.c": {
        "the length of 55 bytes gets a block of its own": ("rest + 1 + 8 <= BLOCK", "rest + 1 + 8 < BLOCK"),
        "the length of 56 bytes gets none": ("rest + 1 + 8 <= BLOCK", "rest + 8 <= BLOCK"),
        "the end of a span is not marked": ("l->tail[rest] = 0x80;", "l->tail[rest] = 0;"),
        "lanes run as long as the first": ("i < active && running[i]->blocks < blocks ?", "i < active && i == 0 ?"),
        "the last lane to end is not finished": ("for (; active > 0; active--) {", "for (; active > 1; active--) {"),
        "a lane that ends is not replaced by the last": ("running[i] = running[--active];", "--active;"),
        "an end at the end of the data is refused": ("(uint64_t)to > s->size", "(uint64_t)to >= s->size"),
        "an offset that falls is hashed": ("from < 0 || to < from ||", "from < 0 ||"),
    },
    "digest/sha256_avx2.c": {
        "the last lane is not stored": ("l < LANES; l++) {\n        _mm256_storeu",
                                        "l < LANES - 1; l++) {\n        _mm256_storeu"),
        "two lanes exchanged": ("r[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20)",
                                "r[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x02)"),
        "words of a block off by one": ("w[(t + 9) & 15]", "w[(t + 10) & 15]"),
        "the second half block is the first": ("load_words(data, 64 * block + 32, w + 8);",
                                               "load_words(data, 64 * block, w + 8);"),
    },
    "digest/sha256_shani.c": {
        "one schedule step too few": ("if (i < 12) {", "if (i < 11) {"),
        "the second lane adds the first's state": ("_mm_add_epi32(cdgh[l], cdgh_before[l])",
                                                   "_mm_add_epi32(cdgh[l], cdgh_before[0])"),
    },
    "digest/sha256_scalar.c": {"a rotation off by one": ("rotate(e, 25)", "rotate(e, 24)")},
    "uuid7/uuid7.c": {
        "the counter has 4097 values": ("state->counter < COUNTER_MAX", "state->counter <= COUNTER_MAX"),
        "the counter starts anywhere": ("COUNTER_SEED_BITS 0x7FFU", "COUNTER_SEED_BITS 0xFFFU"),
        "a full counter stays in its millisecond": ("state->unix_ms++;\n", "\n"),
        "a clock one behind is followed": ("unix_ms > state->unix_ms", "unix_ms + 1 > state->unix_ms"),
        "time goes one too far": ("state->unix_ms + 1 < TIMESTAMP_LIMIT", "state->unix_ms < TIMESTAMP_LIMIT"),
        "the variant has one bit": ("entropy[0] & 0x3FU", "entropy[0] & 0x7FU"),
        "the last byte is not random": ("for (int byte = 1; byte < 8; byte++) {",
                                        "for (int byte = 1; byte < 7; byte++) {"),
        "every id has the same random bits": ("entropy += ENTROPY_PER_ID, out", "out"),
    },
    "tokens/tokens.c": {
        "an estimate is rounded down": ("(rest * denominator + numerator - 1) / numerator",
                                        "rest * denominator / numerator"),
        "what overflows is returned": ("whole > ((uint64_t)INT64_MAX - partial) / denominator",
                                       "whole > UINT64_MAX / denominator"),
        "an end at the end of the data is refused": ("(uint64_t)to > size", "(uint64_t)to >= size"),
    },
    "rank/rank.c": {
        "older before younger": ("return ascending_i64(columns->age_us[i]);",
                                 "return ~ascending_i64(columns->age_us[i]);"),
        "halves of the tie exchanged": ("return columns->tie[2 * i];", "return columns->tie[2 * i + 1];"),
        "equal keys out of their order": ("entries[hole - 1].key > moved.key", "entries[hole - 1].key >= moved.key"),
        "minus zero below zero": ("const float positive_zero = x + 0.0F;", "const float positive_zero = x;"),
        "runs of equal keys not sorted further": ("if (end - start > 1) {", "if (end - start > 2) {"),
        "a digit passed over": ("? differing >> (shift + bits) << (shift + bits)",
                                "? differing >> (shift + bits + 1) << (shift + bits + 1)"),
        "the spare half returned": ("if (from != entries) {", "if (from == spare && n > 100) {"),
        "one separator too many in a group": ("cost += (members - 1) *", "cost += members *"),
        "a group is as relevant as its first member": (
            "if (columns->relevance[i] > best) {", "if (columns->relevance[i] < best) {"
        ),
        "a group over two sections": ("columns->section[after] != columns->section[i]",
                                      "columns->section[after] > columns->section[i]"),
        "members of a refused group not told so": ("? CAL_FILL_EXCLUDED_GROUP : code;", "? code : code;"),
        "a full section is over its budget": ("before + cost > f->section_budget[section]",
                                              "before + cost >= f->section_budget[section]"),
        "a section's budget of 0 is none": ("f->section_budget[section] >= 0 &&", "f->section_budget[section] > 0 &&"),
        "a full budget is passed": ("f->used + cost > f->budget", "f->used + cost > f->budget + 1"),
        "a section starts with a separator": (
            "in_section == NONE ? f->section_overhead[section] : f->separator_tokens",
            "in_section != NONE ? f->section_overhead[section] : f->separator_tokens",
        ),
        "what is refused is charged to its section": (
            "    if (f->used + cost > f->budget) {\n",
            "    f->section_used[section] = before + cost;\n    if (f->used + cost > f->budget) {\n",
        ),
        "one section too many": ("sections > most ? most + 1 : (uint32_t)sections",
                                 "sections > most ? most + 1 : (uint32_t)sections + 1"),
        "a negative cost": ("(uint32_t)(columns->tokens[i] < 0) |", "(uint32_t)(columns->tokens[i] < -5) |"),
    },
    "keyword/words.c": {"a word of 257 bytes": ("+ step > WORD_BYTES", "+ step > WORD_BYTES + 1"),
                        "a word that another begins with": ("- start == size &&", "- start >= size &&"),
                        "a single dense character lost": ("if (characters == 1 &&", "if (characters == 3 &&")},
    "keyword/postings.c": {
        "a slice without room for its link": ("(uint16_t)(size - 1);", "(uint16_t)size;"),
        "a count that is just reached": ("COUNTS[code] > count", "COUNTS[code] >= count && code"),
        "a document too many": ("entry >> 4 < limit", "entry >> 4 <= limit"),
        "a mask that is not asked": ("if (!mask[document]) {", "if (0) {"),
        "a mask of scores that is not asked": ("if (!r->mask[document]) {", "if (0) {"),
        "found although left out": ("!(place || kept[document])", "0"),
        "left out although asked for": ("!(place || kept[document])", "!kept[document]"),
        "a neighbour that is not found": ("touch_neighbours(&r);", ""),
        "a place that is not given back": ("places[found[i]] = 0;\n    }\n    *found",
                                           "places[found[i]] = i == 0;\n    }\n    *found"),
        "a document asked for twice": (" || places[found[i]])", ")"),
        "a tie looked up where the score is": ("h = {ids, best, tie, rows, 0, k}", "h = {ids, best, tie, NULL, 0, k}"),
        "a link taken from the entry before": ("w->entries + w->count;", "w->entries + w->count - 1;"),
        "the first posting counted twice": ("        postings->first[term] = entry;\n        return;",
                                            "        postings->first[term] = entry;"),
        "equal to the worst of the best dropped": ("score >= best[0]", "score > best[0]"),
        "a phrase that starts in the middle": ("state = (state << 1 | 1) & here;", "state = (state << 1 | 3) & here;"),
        "128 in one byte": ("for (; value >= 0x80; value >>= 7)", "for (; value > 0x80; value >>= 7)"),
    },
    "keyword/join.c": {
        "what is lent is not what is left": ("- less[i] / by)", "+ less[i] / by)"),
        "divided after the share": ("share * (own[i] / by);", "share * own[i] / by;"),
        "a bound that is not taken off": ("(double)part->near[i] - low) / by", "(double)part->near[i]) / by"),
        "every flag": ("part->flags[rows[i]] & part->flag", "part->flags[rows[i]]"),
        "flags of the candidate": ("part->flags[rows[i]] & part->flag", "part->flags[i] & part->flag"),
        "nothing is least": ("scores[i] < least ? least : scores[i]", "scores[i]"),
        "what may not be a hit is one": ("!inside || inside[rows[i]] ?", "1 ?"),
        "a mask of the candidate": ("inside[rows[i]] ?", "inside[i] ?"),
        "ties of the candidate": ("h = {ids, best, tie, rows, 0, k}", "h = {ids, best, tie, NULL, 0, k}"),
        "equal to the worst of the best dropped": ("score >= best[0]", "score > best[0]"),
        "told without a share": ("parts[p].share * said(", "said("),
        "nobody's place read": ("place < 0 ? 0.0", "place < -1 ? 0.0"),
        "near beyond its end": ("i < part->near_count ?", "i <= part->near_count && part->near_count ?"),
        "a place too many": ("(uint64_t)places[j] >= count", "(uint64_t)places[j] > count"),
        "a row too many": ("(uint64_t)rows[i] < row_count", "(uint64_t)rows[i] <= row_count"),
        "more near than candidates": ("parts[p].near_count > count", "parts[p].near_count > count + 1"),
        "a part of no kind": ("parts[p].how > CAL_PART_FLAGGED", "parts[p].how > CAL_PART_FLAGGED + 1"),
    },
    "copy/text.c": {
        "a byte below the first of two is one": ("lead < 0xC2 ||", "lead < 0xC0 ||"),
        "a character of three in four bytes": ("lead == 0xF0 ? 0x90", "lead == 0xF0 ? 0x80"),
        "a surrogate is a character": ("lead == 0xED ? 0x9F", "lead == 0xED ? 0xBF"),
        "a character beyond the last": ("lead == 0xF4 ? 0x8F", "lead == 0xF4 ? 0xBF"),
        "a third byte that is none": ("(p[i] & 0xC0) != 0x80", "(p[i] & 0x80) != 0x80"),
        "a byte of zero among eight": ("(eight | (eight - LOW_BITS))", "eight"),
    },
    "copy/encode.c": {
        "the bit of another row": ("bits[at >> 3] >> (at & 7) & 1", "bits[at >> 3] >> (at & 3) & 1"),
        "validity from the first bit on": ("!bit(c->validity, c->first + row)", "!bit(c->validity, row)"),
        "a missing value where there must be one": ("return c->nullable ? 0 : CAL_COPY_MISSING;", "return 0;"),
        "an instant before the first": (">= OLDEST_US + EPOCH_US ?", ">= OLDEST_US ?"),
        "dimensions of another column": ("(c->dimensions && dimensions != c->dimensions)", "0"),
        "a vector of none": ("dimensions < 1 ||", "dimensions < 0 ||"),
        "infinity is a number": ("if (most >= INFINITE) {", "if (most > INFINITE) {"),
        "a half beyond the largest": ("HALF_OVERFLOW 0x477FF000", "HALF_OVERFLOW 0x477FF001"),
        "ties go up": ("rest == middle && kept & 1", "rest == middle"),
        "ties go down": ("(rest > middle || (rest == middle && kept & 1))", "(rest > middle)"),
        "small halves are zero": ("exponent < 102", "exponent < 113"),
        "an item that is missing": ("c->item_validity && !bit(", "0 && !bit("),
        "a list without its dimension": ("(v->to > v->from ? ARRAY_DIMENSION : 0)", "ARRAY_DIMENSION"),
        "instants since 1970": ("(load_i64(from + v->from) - EPOCH_US)", "load_i64(from + v->from)"),
        "a row that just fits": ("capacity - at - 4 >= bytes;", "capacity - at - 4 > bytes;"),
        "what a row needs without those before": ("*needed = at - *size;", "*needed = at;"),
        "jsonb without its version": ("*out++ = JSONB_VERSION;", "*out++ = 0;"),
    },
    "copy/decode.c": {
        "a half that is subnormal": ("fraction &= 0x3FF;", "fraction &= 0x1FF;"),
        "a half's exponent": ("(exponent + 112) << 23", "(exponent + 111) << 23"),
        "missing values are not counted": ("column->missing++;", ""),
        "a missing number is what was there": ("memset(to, 0, width);", ""),
        "a bit of the row before": ("column->validity[row / 8] |= (uint8_t)(1U << (row % 8));",
                                    "column->validity[row / 8] |= 1;"),
        "a trailer is a row": ("if (fields == TRAILER) {", "if (fields == TRAILER - 1) {"),
        "a row too many": ("if (*rows == rows_max) {", "if (*rows > rows_max) {"),
        "a row that is not there to its end": ("*consumed = size - in.left;", "*consumed = size;"),
        "instants since 2000": ("(int64_t)load_u64(f->data) + EPOCH_US", "(int64_t)load_u64(f->data)"),
        "text that is none": ("return cal_copy_text(p, f->size);", "return 0;"),
        "an item that is none": ("text ? cal_copy_text(p + at, length) : 0", "0"),
    },
}  # fmt: skip


class Built:
    """Kernels and targets, compiled once as they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tools = native_builds.quick()
        native_builds.compile_kernels(folder / "unchanged", self.tools)
        self.main = fuzzing.compile_target(folder, "standalone", self.tools)
        self.targets = {name: fuzzing.compile_target(folder, name, self.tools) for name, _ in TARGETS.values()}

    def run(self, folder: Path, room: str, changes: list[native_builds.Change]) -> subprocess.CompletedProcess[str]:
        name, runs = TARGETS[room]
        objects = native_builds.compile_kernels(
            folder / "changed", self.tools, changes, unchanged=self.folder / "unchanged"
        )
        program = native_builds.link(folder / name, self.tools, [self.targets[name], self.main, *objects])
        # Always the same inputs: whether a mutant is seen must not depend on chance.
        return fuzzing.run_standalone(program, name, runs=runs, seed=1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("mutants"))


@pytest.mark.parametrize("room", TARGETS)
def test_without_a_mutant_nothing_is_found(room: str, built: Built, tmp_path: Path) -> None:
    assert built.run(tmp_path, room, []).returncode == 0


@pytest.mark.parametrize(
    ("file", "mutant"), share(((file, mutant) for file, some in MUTANTS.items() for mutant in some), 3)
)
def test_a_mutant_is_found(file: str, mutant: str, built: Built, tmp_path: Path) -> None:
    if not native_builds.runs_here(file):
        pytest.skip("this machine does not run the file with the fault")
    room = file.partition("/")[0]
    assert built.run(tmp_path, room, [(file, *MUTANTS[file][mutant])]).returncode != 0
