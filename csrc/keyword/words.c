/* Finding words in UTF-8 and numbering them; the rules are in caliber.h. */
#include "../internal.h"
#include "unicode_words.h"

#include <string.h>

enum {
    NONE = 0,
    WORD = 1,
    DENSE = 2
};

#define WORD_BYTES 256 /* longest word; what is longer goes on as another one */

/* ---- characters --------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t code;
    uint32_t size; /* bytes; 1 for a byte that is not UTF-8, whose kind is NONE */
    int kind;
} character;

static int kind_of(uint32_t code) {
    const uint8_t *classes = cal_word_classes[cal_word_blocks[code >> 8]];
    return (classes[(code & 255) >> 2] >> ((code & 3) * 2)) & 3;
}

static int follows(const uint8_t *p, size_t count) {
    for (size_t i = 1; i <= count; i++) {
        if ((p[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    return 1;
}

/* The character at p, where at least one byte is left. */
static character read_character(const uint8_t *p, const uint8_t *end) {
    const uint32_t lead = p[0];
    character c = {lead, 1, NONE};
    const size_t left = (size_t)(end - p);
    if (lead < 0x80) {
        c.kind = kind_of(lead);
    } else if (lead >= 0xC2 && lead < 0xE0 && left >= 2 && follows(p, 1)) {
        c.code = (lead & 0x1FU) << 6 | (p[1] & 0x3FU);
        c.size = 2;
        c.kind = kind_of(c.code);
    } else if (lead >= 0xE0 && lead < 0xF0 && left >= 3 && follows(p, 2)) {
        const uint32_t code = (lead & 0x0FU) << 12 | (p[1] & 0x3FU) << 6 | (p[2] & 0x3FU);
        if (code >= 0x800 && (code < 0xD800 || code > 0xDFFF)) {
            c = (character){code, 3, kind_of(code)};
        }
    } else if (lead >= 0xF0 && lead < 0xF5 && left >= 4 && follows(p, 3)) {
        const uint32_t code = (lead & 0x07U) << 18 | (p[1] & 0x3FU) << 12 | (p[2] & 0x3FU) << 6 | (p[3] & 0x3FU);
        if (code >= 0x10000 && code < 0x110000) {
            c = (character){code, 4, kind_of(code)};
        }
    }
    return c;
}

/* ---- words -------------------------------------------------------------------------------------------- */

static int is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

/* Bytes of what joins the word before p to the word character after it, or 0. */
static size_t joiner(const uint8_t *p, const uint8_t *end, uint8_t before) {
    size_t size = 1;
    switch (p[0]) {
    case ':':
        if (end - p > 1 && p[1] == ':') {
            size = 2;
        }
        break;
    case '\'':
    case '.':
    case '-':
    case '/':
    case '\\':
    case '@':
    case '+':
    case '#':
    case '&':
        break;
    case ',':
        return end - p > 1 && is_digit(before) && is_digit(p[1]) ? 1 : 0;
    case 0xE2: /* U+2019 */
        if (end - p < 4 || p[1] != 0x80 || p[2] != 0x99) {
            return 0;
        }
        size = 3;
        break;
    default:
        return 0;
    }
    if ((size_t)(end - p) <= size) {
        return 0;
    }
    return read_character(p + size, end).kind == WORD ? size : 0;
}

/* The end of the word that starts at p with a WORD character. */
static const uint8_t *end_of_word(const uint8_t *p, const uint8_t *end) {
    const uint8_t *const start = p;
    while (p < end) {
        const character c = read_character(p, end);
        size_t step = c.kind == WORD ? c.size : 0;
        if (!step && p > start) {
            step = joiner(p, end, p[-1]);
        }
        if (!step || (size_t)(p - start) + step > WORD_BYTES) {
            break;
        }
        p += step;
    }
    /* C++ and C#: one or two of a sign that nothing follows on. */
    if (p > start && p < end && (p[0] == '+' || p[0] == '#') && p[-1] != p[0]) {
        const uint8_t *q = p + 1;
        if (q < end && q[0] == p[0]) {
            q++;
        }
        if ((q == end || read_character(q, end).kind == NONE) && (size_t)(q - start) <= WORD_BYTES &&
            !(q < end && q[0] == p[0])) {
            p = q;
        }
    }
    return p;
}

/* ---- the table ---------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= UINT64_C(0xD6E8FEB86659FD93);
    x ^= x >> 32;
    return x;
}

static uint64_t hash_of(uint64_t seed, const uint8_t *p, size_t size) {
    uint64_t h = seed ^ (uint64_t)size;
    uint64_t part;
    for (; size >= 8; p += 8, size -= 8) {
        memcpy(&part, p, 8);
        h = mix(h ^ part) + UINT64_C(0x9E3779B97F4A7C15);
    }
    part = 0;
    memcpy(&part, p, size);
    return mix(h ^ part);
}

/* The number of a word, new or known; or -1 if there is no room for a new one. */
static int64_t intern(cal_words *table, const uint8_t *p, size_t size) {
    const size_t mask = table->slot_count - 1;
    size_t at = (size_t)hash_of(table->seed, p, size) & mask;
    for (;; at = (at + 1) & mask) {
        const uint32_t slot = table->slots[at];
        if (slot == 0) {
            break;
        }
        const uint64_t start = table->starts[slot - 1];
        if (table->starts[slot] - start == size && memcmp(table->arena + start, p, size) == 0) {
            return (int64_t)slot - 1;
        }
    }
    const uint64_t used = table->starts[table->count];
    if (table->count >= table->capacity || table->arena_size - used < size) {
        return -1;
    }
    memcpy(table->arena + used, p, size);
    table->starts[table->count + 1] = used + size;
    table->slots[at] = (uint32_t)++table->count;
    return (int64_t)table->count - 1;
}

int32_t cal_words_rehash(cal_words *table) {
    const size_t mask = table->slot_count - 1;
    if (table->slot_count < 2 * table->capacity || (table->slot_count & mask)) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i < table->count; i++) {
        const uint64_t start = table->starts[i];
        size_t at = (size_t)hash_of(table->seed, table->arena + start, (size_t)(table->starts[i + 1] - start)) & mask;
        while (table->slots[at]) {
            at = (at + 1) & mask;
        }
        table->slots[at] = (uint32_t)i + 1;
    }
    return CAL_OK;
}

typedef struct {
    cal_words *table;
    uint32_t *ids;
    size_t used, capacity;
} output;

static int emit(output *out, const uint8_t *p, size_t size) {
    const int64_t id = out->used < out->capacity ? intern(out->table, p, size) : -1;
    if (id < 0) {
        return 0;
    }
    out->ids[out->used++] = (uint32_t)id;
    return 1;
}

/* Overlapping pairs of a run without spaces; a run of one character is a word by itself. */
static const uint8_t *emit_dense(output *out, const uint8_t *p, const uint8_t *end) {
    const uint8_t *before = NULL;
    const uint8_t *at = p;
    size_t characters = 0;
    while (at < end) {
        const character c = read_character(at, end);
        if (c.kind != DENSE) {
            break;
        }
        if (before && !emit(out, before, (size_t)(at - before) + c.size)) {
            return NULL;
        }
        before = at;
        at += c.size;
        characters++;
    }
    if (characters == 1 && !emit(out, p, (size_t)(at - p))) {
        return NULL;
    }
    return at;
}

static int emit_text(output *out, const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        const character c = read_character(p, end);
        if (c.kind == NONE) {
            p += c.size;
        } else if (c.kind == DENSE) {
            p = emit_dense(out, p, end);
            if (!p) {
                return 0;
            }
        } else {
            const uint8_t *const stop = end_of_word(p, end);
            if (!emit(out, p, (size_t)(stop - p))) {
                return 0;
            }
            p = stop;
        }
    }
    return 1;
}

int32_t cal_words_intern(cal_words *table, const uint8_t *data, size_t size, const int64_t *offsets, size_t count,
                         uint32_t *ids, size_t ids_capacity, int64_t *id_offsets, size_t *done) {
    *done = 0;
    if (table->slot_count < 2 * table->capacity || (table->slot_count & (table->slot_count - 1))) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i <= count; i++) {
        if (offsets[i] < 0 || (uint64_t)offsets[i] > size || (i && offsets[i] < offsets[i - 1])) {
            return CAL_E_OFFSETS;
        }
    }
    output out = {table, ids, 0, ids_capacity};
    id_offsets[0] = 0;
    for (size_t i = 0; i < count; i++) {
        if (!emit_text(&out, data + offsets[i], data + offsets[i + 1])) {
            return CAL_OK;
        }
        id_offsets[i + 1] = (int64_t)out.used;
        *done = i + 1;
    }
    return CAL_OK;
}
