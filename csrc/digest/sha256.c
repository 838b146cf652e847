/*
 * SHA-256 of many spans: padding, byte order, and which span runs in which lane. Several spans are hashed side by
 * side, as one alone waits for its own results most of the time; a lane that is done takes the next span, so lengths
 * may differ.
 */
#include "../internal.h"

#include <string.h>

#define BLOCK 64

static void store_big_endian(uint8_t *p, uint32_t x) {
    p[0] = (uint8_t)(x >> 24);
    p[1] = (uint8_t)(x >> 16);
    p[2] = (uint8_t)(x >> 8);
    p[3] = (uint8_t)x;
}

/* The spans, whatever the width of their offsets. */
typedef struct {
    const uint8_t *data;
    size_t size;
    const int32_t *narrow; /* either this one */
    const int64_t *wide;   /* or this one */
    size_t count;
} spans;

static int64_t offset_at(const spans *s, size_t i) { return s->wide ? s->wide[i] : s->narrow[i]; }

/* A span being hashed: its whole blocks first, then the last one or two, which end in its length. */
typedef struct {
    const uint8_t *data;
    size_t blocks; /* left before the next stage */
    size_t span, tail_blocks;
    uint32_t state[8];
    uint8_t tail[2 * BLOCK];
} lane;

static int32_t begin(lane *l, const spans *s, size_t span) {
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const int64_t from = offset_at(s, span), to = offset_at(s, span + 1);
    if (from < 0 || to < from || (uint64_t)to > s->size) {
        return CAL_E_OFFSETS;
    }
    const size_t size = (size_t)(to - from), whole = size / BLOCK, rest = size % BLOCK;
    memcpy(l->state, initial, sizeof initial);
    l->data = s->data + from;
    l->blocks = whole;
    l->span = span;
    /* What is left, 0x80, zeros, and the length in bits: two blocks if the length no longer fits the first. */
    l->tail_blocks = rest + 1 + 8 <= BLOCK ? 1 : 2;
    memset(l->tail, 0, sizeof l->tail);
    if (rest > 0) {
        memcpy(l->tail, l->data + whole * BLOCK, rest);
    }
    l->tail[rest] = 0x80;
    const uint64_t bits = (uint64_t)size * 8;
    store_big_endian(l->tail + l->tail_blocks * BLOCK - 8, (uint32_t)(bits >> 32));
    store_big_endian(l->tail + l->tail_blocks * BLOCK - 4, (uint32_t)bits);
    if (whole == 0) {
        l->data = l->tail;
        l->blocks = l->tail_blocks;
        l->tail_blocks = 0;
    }
    return CAL_OK;
}

/* After blocks were consumed: whether the span is done; else the lane stands at its next block. */
static int advance(lane *l, size_t blocks) {
    l->data += blocks * BLOCK;
    l->blocks -= blocks;
    if (l->blocks > 0) {
        return 0;
    }
    if (l->tail_blocks == 0) {
        return 1;
    }
    l->data = l->tail;
    l->blocks = l->tail_blocks;
    l->tail_blocks = 0;
    return 0;
}

static void finish(const lane *l, uint8_t *out) {
    for (int word = 0; word < 8; word++) {
        store_big_endian(out + 32 * l->span + 4 * word, l->state[word]);
    }
}

static int32_t digest(uint32_t features, const spans *s, uint8_t *out) {
    const cal_sha256_ops *ops = cal_choose_sha256(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    lane lanes[CAL_SHA256_LANES], *running[CAL_SHA256_LANES];
    uint32_t unused[CAL_SHA256_LANES][8] = {{0}};
    size_t active = 0, next = 0;
    for (; active < ops->lanes && next < s->count; active++, next++) {
        running[active] = &lanes[active];
        const int32_t status = begin(running[active], s, next);
        if (status != CAL_OK) {
            return status;
        }
    }
    while (active >= ops->fewest) {
        uint32_t *states[CAL_SHA256_LANES];
        const uint8_t *data[CAL_SHA256_LANES];
        size_t blocks = running[0]->blocks;
        for (size_t i = 0; i < ops->lanes; i++) {
            /* A lane without a span does what the first one does, for nothing. */
            states[i] = i < active ? running[i]->state : unused[i];
            data[i] = running[i < active ? i : 0]->data;
            blocks = i < active && running[i]->blocks < blocks ? running[i]->blocks : blocks;
        }
        ops->many(states, data, blocks);
        for (size_t i = active; i-- > 0;) {
            if (!advance(running[i], blocks)) {
                continue;
            }
            finish(running[i], out);
            if (next == s->count) {
                running[i] = running[--active];
                continue;
            }
            const int32_t status = begin(running[i], s, next++);
            if (status != CAL_OK) {
                return status;
            }
        }
    }
    for (; active > 0; active--) {
        lane *last = running[active - 1];
        size_t blocks;
        do {
            blocks = last->blocks;
            ops->one(last->state, last->data, blocks);
        } while (!advance(last, blocks));
        finish(last, out);
    }
    return CAL_OK;
}

int32_t cal_sha256_spans_i64(uint32_t features, const uint8_t *data, size_t size, const int64_t *offsets, size_t count,
                             uint8_t *out) {
    const spans s = {data, size, NULL, offsets, count};
    return digest(features, &s, out);
}

int32_t cal_sha256_spans_i32(uint32_t features, const uint8_t *data, size_t size, const int32_t *offsets, size_t count,
                             uint8_t *out) {
    const spans s = {data, size, offsets, NULL, count};
    return digest(features, &s, out);
}
