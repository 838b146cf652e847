/* cal_tokens_bytes_spans_*: any offsets and ratio, against the definition in 128 bits. */
#include "harness.h"

#define MOST_SPANS 40

__extension__ typedef unsigned __int128 wide_number;

static uint64_t take_ratio(input *in) {
    switch (take(in, 1) % 8) {
    case 0:
        return take(in, 8);
    case 1:
        return (UINT64_C(1) << 31) - 1 + (take(in, 1) & 1);
    case 2:
        return take(in, 4);
    default:
        return take(in, 2) % 100;
    }
}

static int32_t expected_tokens(const int64_t *offsets, size_t count, size_t size, uint64_t numerator,
                               uint64_t denominator, int64_t *tokens) {
    const uint64_t limit = UINT64_C(1) << 31;
    if (numerator < 1 || numerator >= limit || denominator < 1 || denominator >= limit) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i < count; i++) {
        if (offsets[i] < 0 || offsets[i + 1] < offsets[i] || (uint64_t)offsets[i + 1] > size) {
            return CAL_E_OFFSETS;
        }
        const wide_number length = (wide_number)(offsets[i + 1] - offsets[i]);
        const wide_number exact_tokens = (length * denominator + numerator - 1) / numerator;
        if (exact_tokens > INT64_MAX) {
            return CAL_E_OVERFLOW;
        }
        tokens[i] = (int64_t)exact_tokens;
    }
    return CAL_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    arena a = {.count = 0};
    const int wide = (int)(take(&in, 1) & 1), anything = take(&in, 1) % 4 == 3;
    const size_t count = take_below(&in, MOST_SPANS + 1);
    const uint64_t numerator = take_ratio(&in), denominator = take_ratio(&in);
    size_t length = (size_t)(take(&in, 1) % 2 ? take(&in, 8) : take(&in, 2));
    int64_t offsets[MOST_SPANS + 1], end = 0;
    for (size_t i = 0; i <= count; i++) {
        end += (int64_t)take(&in, 1 + (size_t)wide * 5); /* at most 2^48 each: their sum fits */
        offsets[i] = anything ? take_signed(&in) : end;
        offsets[i] = wide ? offsets[i] : (int32_t)offsets[i];
    }
    if (!anything) {
        length = (size_t)end;
    }
    int64_t *wide_offsets = copied(&a, offsets, (count + 1) * sizeof *wide_offsets, 0);
    int32_t *narrow = exact(&a, (count + 1) * sizeof *narrow, 4);
    for (size_t i = 0; i <= count; i++) {
        narrow[i] = (int32_t)offsets[i];
    }
    int64_t expected[MOST_SPANS + 1], *tokens = exact(&a, count * sizeof *tokens, 8);
    const int32_t wanted = expected_tokens(offsets, count, length, numerator, denominator, expected);
    const int32_t status = wide
                               ? cal_tokens_bytes_spans_i64(length, wide_offsets, count, numerator, denominator, tokens)
                               : cal_tokens_bytes_spans_i32(length, narrow, count, numerator, denominator, tokens);
    CHECK(status == wanted);
    CHECK(status != CAL_OK || count == 0 || memcmp(tokens, expected, count * sizeof *tokens) == 0);
    free_all(&a);
    return 0;
}
