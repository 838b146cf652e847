/*
 * cal_sha256_spans_*: wrong offsets are refused, and right ones give the digests of FIPS 180-4, written down here once
 * more: bytes are padded in a copy, and constants are worked out from the primes they are made of.
 */
#include "harness.h"

#define MOST_SPANS 40
#define LONGEST 1000 /* bytes of a span */

/* ---- the standard a second time ----------------------------------------------------------------------------- */

__extension__ typedef unsigned __int128 wide_number;

/* The first 32 bits of the fraction of the square root (power 2) or cube root (power 3) of a number. */
static uint32_t fraction_of_root(wide_number number, int power) {
    wide_number root = 0;
    for (int bit = 36; bit >= 0; bit--) {
        const wide_number next = root | (wide_number)1 << bit;
        if ((power == 2 ? next * next : next * next * next) <= number << (32 * power)) {
            root = next;
        }
    }
    return (uint32_t)root;
}

static uint32_t initial[8], constants[64];

static void make_constants(void) {
    uint32_t prime = 2;
    for (int i = 0; i < 64; prime++) {
        int divisors = 0;
        for (uint32_t d = 2; d < prime; d++) {
            divisors += prime % d == 0;
        }
        if (divisors == 0) {
            constants[i] = fraction_of_root(prime, 3);
            if (i < 8) {
                initial[i] = fraction_of_root(prime, 2);
            }
            i++;
        }
    }
}

static uint32_t turned(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void hash_block(uint32_t h[8], const uint8_t *block) {
    uint32_t w[64], v[8];
    for (int t = 0; t < 16; t++) {
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 |
               block[4 * t + 3];
    }
    for (int t = 16; t < 64; t++) {
        w[t] = (turned(w[t - 2], 17) ^ turned(w[t - 2], 19) ^ w[t - 2] >> 10) + w[t - 7] +
               (turned(w[t - 15], 7) ^ turned(w[t - 15], 18) ^ w[t - 15] >> 3) + w[t - 16];
    }
    memcpy(v, h, sizeof v);
    for (int t = 0; t < 64; t++) {
        const uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        const uint32_t first =
            v[7] + (turned(v[4], 6) ^ turned(v[4], 11) ^ turned(v[4], 25)) + choice + constants[t] + w[t];
        const uint32_t second = (turned(v[0], 2) ^ turned(v[0], 13) ^ turned(v[0], 22)) + majority;
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += first;
        v[0] = first + second;
    }
    for (int i = 0; i < 8; i++) {
        h[i] += v[i];
    }
}

static void hash(const uint8_t *data, size_t size, uint8_t *out) {
    uint8_t padded[LONGEST + 72] = {0};
    uint32_t h[8];
    if (size > 0) {
        memcpy(padded, data, size);
    }
    padded[size] = 0x80;
    size_t whole = size + 1;
    while (whole % 64 != 56) {
        whole++;
    }
    for (int i = 0; i < 8; i++) {
        padded[whole + (size_t)i] = (uint8_t)((uint64_t)size * 8 >> (56 - 8 * i));
    }
    memcpy(h, initial, sizeof h);
    for (size_t at = 0; at < whole; at += 64) {
        hash_block(h, padded + at);
    }
    for (int i = 0; i < 32; i++) {
        out[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
    }
}

/* ---- what an input asks ----------------------------------------------------------------------------------- */

/* Lengths around what decides how many blocks a span has. */
static size_t take_length(input *in) {
    static const size_t edges[16] = {0, 1, 31, 32, 33, 54, 55, 56, 63, 64, 65, 119, 120, 128, 300, LONGEST};
    const uint64_t kind = take(in, 1);
    return kind & 1 ? edges[kind >> 1 & 15] : (size_t)kind >> 1;
}

static void one_width(arena *a, input in, int wide) {
    const size_t count = take_below(&in, MOST_SPANS + 1), shift = take_below(&in, 32);
    const int anything = take(&in, 1) % 4 == 3; /* offsets as they come, right or wrong */
    int64_t offsets[MOST_SPANS + 1];
    int64_t end = (int64_t)take_below(&in, 70);
    for (size_t i = 0; i <= count; i++) {
        offsets[i] = anything ? take_signed(&in) : end;
        end += (int64_t)take_length(&in);
    }
    const size_t size = anything ? take_below(&in, LONGEST + 1) : (size_t)offsets[count] + take_below(&in, 3);
    uint8_t *data = exact(a, size, shift);
    uint64_t state = take(&in, 8);
    for (size_t i = 0; i < size; i++) {
        data[i] = in.size > 0 ? (uint8_t)take(&in, 1) : (uint8_t)next_random(&state);
    }

    int32_t expected = CAL_OK;
    for (size_t i = 0; i < count; i++) {
        offsets[i] = wide ? offsets[i] : (int32_t)offsets[i];
        offsets[i + 1] = wide ? offsets[i + 1] : (int32_t)offsets[i + 1];
        if (offsets[i] < 0 || offsets[i + 1] < offsets[i] || (uint64_t)offsets[i + 1] > size) {
            expected = CAL_E_OFFSETS;
        }
    }
    int64_t *asked = copied(a, offsets, (count + 1) * sizeof *asked, 0);
    int32_t *narrow = exact(a, (count + 1) * sizeof *narrow, 4);
    for (size_t i = 0; i <= count; i++) {
        narrow[i] = (int32_t)offsets[i];
    }

    uint8_t digests[32 * MOST_SPANS];
    for (size_t i = 0; i < count && expected == CAL_OK; i++) {
        CHECK(offsets[i + 1] - offsets[i] <= LONGEST);
        hash(data + offsets[i], (size_t)(offsets[i + 1] - offsets[i]), digests + 32 * i);
    }
    uint32_t sets[MOST_PATHS];
    const size_t paths = feature_sets(sets, FOR_DIGESTS);
    for (size_t p = 0; p < paths; p++) {
        uint8_t *out = exact(a, 32 * count, 1);
        const int32_t status = wide ? cal_sha256_spans_i64(sets[p], data, size, asked, count, out)
                                    : cal_sha256_spans_i32(sets[p], data, size, narrow, count, out);
        CHECK(status == expected);
        CHECK(status != CAL_OK || count == 0 || memcmp(out, digests, 32 * count) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    arena a = {.count = 0};
    if (constants[0] == 0) {
        make_constants();
    }
    const int wide = (int)(take(&in, 1) & 1);
    one_width(&a, in, wide);
    free_all(&a);
    return 0;
}
