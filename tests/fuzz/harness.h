/*
 * What the fuzz targets share. Bytes come in, are read as numbers and arrays, and every kernel runs on them with every
 * set of CPU features there is; what differs from plain C, or from what a target works out by itself, aborts.
 *
 * Every array that a kernel gets is an allocation of its own which ends where the array ends, so that AddressSanitizer
 * sees one byte too far.
 */
#ifndef CALIBER_FUZZ_HARNESS_H
#define CALIBER_FUZZ_HARNESS_H

#include "caliber.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(CONDITION)                                                                                               \
    do {                                                                                                               \
        if (!(CONDITION)) {                                                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #CONDITION);                             \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* ---- reading ---------------------------------------------------------------------------------------------- */

/* What is left of an input; after its end come zeros. */
typedef struct {
    const uint8_t *data;
    size_t size;
} input;

static inline uint64_t take(input *in, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && in->size > 0; i++, in->data++, in->size--) {
        value |= (uint64_t)*in->data << (8 * i);
    }
    return value;
}

static inline size_t take_below(input *in, size_t limit) { return limit ? (size_t)take(in, 2) % limit : 0; }

/* A number that is usually small and sometimes at an end of its type. */
static inline int64_t take_signed(input *in) {
    const uint64_t kind = take(in, 1);
    switch (kind % 8) {
    case 0:
        return (int64_t)take(in, 8);
    case 1:
        return kind & 8 ? INT64_MAX : INT64_MIN;
    case 2:
        return kind & 8 ? INT32_MAX : INT32_MIN;
    case 3:
        return (int32_t)(uint32_t)take(in, 4);
    default:
        return (int64_t)(kind >> 3) - 4;
    }
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

/* Allocations of one input, freed together. */
typedef struct {
    void *blocks[512];
    size_t count;
} arena;

/* Room for size bytes that ends where its allocation ends, `shift` bytes behind the alignment of malloc. */
static inline void *exact(arena *a, size_t size, size_t shift) {
    CHECK(a->count < sizeof a->blocks / sizeof a->blocks[0]);
    uint8_t *block = malloc(size + shift);
    CHECK(block || size + shift == 0);
    a->blocks[a->count++] = block;
    return block + shift;
}

static inline void *copied(arena *a, const void *from, size_t size, size_t shift) {
    void *to = exact(a, size, shift);
    if (size > 0) {
        memcpy(to, from, size);
    }
    return to;
}

static inline void free_all(arena *a) {
    while (a->count > 0) {
        free(a->blocks[--a->count]);
    }
}

/* ---- paths ------------------------------------------------------------------------------------------------ */

#define MOST_PATHS 32

#define FOR_DIGESTS (~UINT32_C(0))
#define FOR_VECTORS (~(uint32_t)CAL_CPU_SHANI)

/* Every set of those features of this machine that matter; the first is the empty one, plain C. */
static inline size_t feature_sets(uint32_t sets[MOST_PATHS], uint32_t matter) {
    const uint32_t present = cal_cpu_features() & matter;
    size_t count = 0;
    uint32_t set = 0;
    do {
        CHECK(count < MOST_PATHS);
        sets[count++] = set;
        set = (set - present) & present;
    } while (set);
    return count;
}

/* ---- randomness that an input may ask for ----------------------------------------------------------------- */

/* SplitMix64. */
static inline uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

#endif
