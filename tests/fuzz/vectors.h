/* What the targets of vector kernels share: rows made from an input, in an allocation for each array. */
#ifndef CALIBER_FUZZ_VECTORS_H
#define CALIBER_FUZZ_VECTORS_H

#include "harness.h"

#define MOST_ROWS 800 /* more than may wait to be scored */
#define MOST_DIMENSIONS 140
#define MOST_SEGMENTS 4

/* Rows in one table and in segments, with codes where there can be some. */
typedef struct {
    size_t n, dimensions, stride, segment_count;
    float *rows; /* all of them, one after the other */
    double *norms;
    cal_segment plain[MOST_SEGMENTS], coded[MOST_SEGMENTS];
    int finite;
} table;

static inline float take_value(input *in, uint64_t *state) {
    static const float special[8] = {0.0F,          -0.0F,          1e-45F, -1.1754944e-38F,
                                     3.4028235e38F, -3.4028235e38F, 1e19F,  1e-19F};
    const uint64_t kind = in->size > 0 ? take(in, 1) : next_random(state) % 240;
    if (kind < 240) {
        return (float)((int)kind - 120) / 16.0F;
    }
    if (kind < 248) {
        return special[kind - 240];
    }
    const uint32_t bits = (uint32_t)take(in, 4);
    float value;
    memcpy(&value, &bits, sizeof value);
    return kind == 255 || isfinite(value) ? value : 1.0F;
}

/*
 * Few bytes make many rows: a later row is an earlier one, with some elements changed or all of them scaled. Rows that
 * are alike all come from the first one, so that codes cannot tell them apart.
 */
static inline void take_rows(input *in, float *rows, size_t n, size_t dimensions, int alike, uint64_t *state) {
    for (size_t i = 0; i < n; i++) {
        float *row = rows + i * dimensions;
        const uint64_t kind = (in->size > 0 ? take(in, 1) : next_random(state)) | (alike ? 4 : 0);
        if (i == 0 || kind % 8 == 0) {
            for (size_t j = 0; j < dimensions; j++) {
                row[j] = take_value(in, state);
            }
            continue;
        }
        memcpy(row, rows + (size_t)(next_random(state) % i) * dimensions, dimensions * sizeof *row);
        const float factor = kind % 8 == 1 ? -1.0F : kind % 8 == 2 ? 0.5F : kind % 8 == 3 ? 0.0F : 1.0F;
        for (size_t j = 0; j < dimensions; j++) {
            row[j] *= factor;
        }
        for (uint64_t change = kind >> 3 & 3; change > 0; change--) {
            float *at = row + next_random(state) % dimensions;
            *at = change == 1 ? nextafterf(*at, INFINITY) : take_value(in, state);
        }
        for (size_t j = 0; j < dimensions; j++) {
            row[j] = isfinite(row[j]) ? row[j] : 1.0F;
        }
    }
}

static inline cal_segment segment_of(arena *a, const table *t, size_t from, size_t to, const uint8_t *live, int coded) {
    const size_t count = to - from;
    float *rows = copied(a, t->rows + from * t->dimensions, count * t->dimensions * sizeof(float), 4);
    double *norms = copied(a, t->norms + from, count * sizeof(double), 8);
    cal_segment segment = {.rows = rows, .norms = norms, .count = count};
    if (live) {
        segment.live = copied(a, live + from, count, 1);
    }
    if (coded) {
        uint8_t *codes = exact(a, count * t->stride, 3);
        float *scales = exact(a, count * sizeof(float), 4), *errors = exact(a, count * sizeof(float), 4);
        CHECK(cal_code_rows_f32(rows, norms, count, t->dimensions, t->stride, codes, scales, errors) == CAL_OK);
        segment.codes = codes;
        segment.scales = scales;
        segment.errors = errors;
    }
    return segment;
}

/* Rows, their norms on every path, and nothing else if one of them is not finite. */
static inline table take_table(input *in, arena *a, size_t n, uint64_t *state) {
    table t = {.n = n};
    const uint64_t kind = take(in, 1);
    t.dimensions = 1 + (kind & 1 ? take_below(in, MOST_DIMENSIONS) : 63 + take_below(in, 3));
    t.stride = (t.dimensions + 63) / 64 * 64;
    t.rows = exact(a, n * t.dimensions * sizeof(float), 4 * (size_t)(kind >> 1 & 7));
    t.norms = exact(a, n * sizeof(double), 8);
    take_rows(in, t.rows, n, t.dimensions, kind >> 4 & 1, state);
    if (n > 0 && (kind & 0xF0) == 0xF0) { /* one value as it comes, perhaps not finite */
        t.rows[next_random(state) % (n * t.dimensions)] = take_value(in, state);
    }
    t.finite = 1;
    for (size_t i = 0; i < n * t.dimensions; i++) {
        t.finite = t.finite && isfinite(t.rows[i]);
    }
    uint32_t sets[MOST_PATHS];
    const size_t paths = feature_sets(sets, FOR_VECTORS);
    for (size_t p = 0; p < paths; p++) {
        double *norms = exact(a, n * sizeof(double), 8);
        const int32_t status = cal_norms_f32(sets[p], t.rows, n, t.dimensions, norms);
        CHECK(status == (t.finite ? CAL_OK : CAL_E_NON_FINITE));
        if (p == 0) {
            t.norms = norms;
        }
        CHECK(!t.finite || n == 0 || memcmp(norms, t.norms, n * sizeof *norms) == 0);
    }
    return t;
}

/* Cuts a table into segments, once without and once with codes. */
static inline void cut(input *in, arena *a, table *t, const uint8_t *live) {
    const int coded = t->dimensions >= 64;
    size_t from = 0;
    for (t->segment_count = 0; t->segment_count < MOST_SEGMENTS; t->segment_count++) {
        const int last = t->segment_count == MOST_SEGMENTS - 1;
        const size_t to = last ? t->n : from + take_below(in, t->n - from + 1);
        t->plain[t->segment_count] = segment_of(a, t, from, to, live, 0);
        t->coded[t->segment_count] = coded ? segment_of(a, t, from, to, live, 1) : t->plain[t->segment_count];
        from = to;
    }
}

static inline float take_threshold(input *in, const float *scores, size_t n) {
    const uint64_t kind = take(in, 1);
    if (kind % 4 == 0 || n == 0) {
        return kind & 16 ? -INFINITY : kind & 32 ? INFINITY : 0.5F;
    }
    const float score = scores[take_below(in, n)]; /* exactly at a score, or a step beside it */
    return kind % 4 == 1 ? score : nextafterf(score, kind % 4 == 2 ? INFINITY : -INFINITY);
}

#endif
