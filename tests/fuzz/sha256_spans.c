/* cal_sha256_spans_*: wrong offsets are refused, and right ones give the digests of each span hashed alone. */
#include "harness.h"

#define MOST_SPANS 40

/* Lengths around what decides how many blocks a span has. */
static size_t take_length(input *in) {
    static const size_t edges[16] = {0, 1, 31, 32, 33, 54, 55, 56, 63, 64, 65, 119, 120, 128, 300, 1000};
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
    size_t size = anything ? take_below(&in, 2000) : (size_t)offsets[count] + take_below(&in, 3);
    uint8_t *data = exact(a, size, shift);
    const uint64_t seed = take(&in, 8);
    uint64_t state = seed;
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

    uint8_t alone[32 * MOST_SPANS];
    for (size_t i = 0; i < count && expected == CAL_OK; i++) {
        CHECK(cal_sha256_spans_i64(0, data, size, asked + i, 1, alone + 32 * i) == CAL_OK);
    }
    uint32_t sets[MOST_PATHS];
    const size_t paths = feature_sets(sets, FOR_DIGESTS);
    for (size_t p = 0; p < paths; p++) {
        uint8_t *out = exact(a, 32 * count, 1);
        const int32_t status = wide ? cal_sha256_spans_i64(sets[p], data, size, asked, count, out)
                                    : cal_sha256_spans_i32(sets[p], data, size, narrow, count, out);
        CHECK(status == expected);
        CHECK(status != CAL_OK || count == 0 || memcmp(out, alone, 32 * count) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    arena a = {.count = 0};
    const int wide = (int)(take(&in, 1) & 1);
    one_width(&a, in, wide);
    free_all(&a);
    return 0;
}
