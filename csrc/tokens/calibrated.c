/* The calibrated estimate of spans and of the beginning of a text; measuring itself is in one file a path. */
#include "machine.h"

/* Bytes measured at once on the way to a limit. */
#define CHUNK 4096

static int valid_vocabulary(int32_t vocabulary) { return vocabulary >= 0 && vocabulary < CAL_VOCABULARIES; }

static int32_t units_of(cal_token_measure measure, const uint8_t *costs, const uint8_t *data, size_t size, int64_t from,
                        int64_t to, int64_t *units) {
    if (from < 0 || to < from || (uint64_t)to > size) {
        return CAL_E_OFFSETS;
    }
    *units = (int64_t)measure(costs, data + from, 0, (size_t)(to - from), size - (size_t)from);
    return CAL_OK;
}

int32_t cal_tokens_calibrated_spans_i64(uint32_t features, int32_t vocabulary, const uint8_t *data, size_t size,
                                        const int64_t *offsets, size_t count, int64_t *units) {
    const cal_token_measure measure = cal_choose_tokens(features);
    if (!measure) {
        return CAL_E_UNSUPPORTED;
    }
    if (!valid_vocabulary(vocabulary)) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i < count; i++) {
        const int32_t status =
            units_of(measure, cal_token_costs[vocabulary], data, size, offsets[i], offsets[i + 1], &units[i]);
        if (status != CAL_OK) {
            return status;
        }
    }
    return CAL_OK;
}

int32_t cal_tokens_calibrated_spans_i32(uint32_t features, int32_t vocabulary, const uint8_t *data, size_t size,
                                        const int32_t *offsets, size_t count, int64_t *units) {
    const cal_token_measure measure = cal_choose_tokens(features);
    if (!measure) {
        return CAL_E_UNSUPPORTED;
    }
    if (!valid_vocabulary(vocabulary)) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i < count; i++) {
        const int32_t status =
            units_of(measure, cal_token_costs[vocabulary], data, size, offsets[i], offsets[i + 1], &units[i]);
        if (status != CAL_OK) {
            return status;
        }
    }
    return CAL_OK;
}

int32_t cal_tokens_calibrated_prefix(uint32_t features, int32_t vocabulary, const uint8_t *data, size_t size,
                                     int64_t limit, size_t *length) {
    const cal_token_measure measure = cal_choose_tokens(features);
    if (!measure) {
        return CAL_E_UNSUPPORTED;
    }
    if (!valid_vocabulary(vocabulary) || limit < 0) {
        return CAL_E_ARGUMENT;
    }
    const uint8_t *costs = cal_token_costs[vocabulary];
    uint64_t left = (uint64_t)limit;
    size_t at = 0;
    /* A chunk that is too dear is halved until its last byte is known: what is measured stays within twice it. */
    for (size_t chunk = CHUNK; at < size && chunk > 0;) {
        const size_t step = size - at < chunk ? size - at : chunk;
        const uint64_t cost = measure(costs, data, at, at + step, size);
        if (cost <= left) {
            left -= cost;
            at += step;
        } else {
            chunk = step / 2;
        }
    }
    *length = at;
    return CAL_OK;
}
