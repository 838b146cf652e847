/* Token estimates by length. */
#include "../internal.h"

#define RATIO_LIMIT (UINT64_C(1) << 31)

static int valid_ratio(uint64_t numerator, uint64_t denominator) {
    return numerator > 0 && denominator > 0 && numerator < RATIO_LIMIT && denominator < RATIO_LIMIT;
}

static int32_t tokens_of(int64_t from, int64_t to, size_t size, uint64_t numerator, uint64_t denominator,
                         int64_t *tokens) {
    if (from < 0 || to < from || (uint64_t)to > size) {
        return CAL_E_OFFSETS;
    }
    /* length * denominator could pass 64 bits; split by the numerator, the remainder's product cannot. */
    const uint64_t length = (uint64_t)(to - from);
    const uint64_t whole = length / numerator, rest = length % numerator;
    const uint64_t partial = (rest * denominator + numerator - 1) / numerator;
    if (whole > ((uint64_t)INT64_MAX - partial) / denominator) {
        return CAL_E_OVERFLOW;
    }
    *tokens = (int64_t)(whole * denominator + partial);
    return CAL_OK;
}

int32_t cal_tokens_bytes_spans_i64(size_t size, const int64_t *offsets, size_t count, uint64_t numerator,
                                   uint64_t denominator, int64_t *tokens) {
    if (!valid_ratio(numerator, denominator)) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i < count; i++) {
        const int32_t status = tokens_of(offsets[i], offsets[i + 1], size, numerator, denominator, &tokens[i]);
        if (status != CAL_OK) {
            return status;
        }
    }
    return CAL_OK;
}

int32_t cal_tokens_bytes_spans_i32(size_t size, const int32_t *offsets, size_t count, uint64_t numerator,
                                   uint64_t denominator, int64_t *tokens) {
    if (!valid_ratio(numerator, denominator)) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i < count; i++) {
        const int32_t status = tokens_of(offsets[i], offsets[i + 1], size, numerator, denominator, &tokens[i]);
        if (status != CAL_OK) {
            return status;
        }
    }
    return CAL_OK;
}
