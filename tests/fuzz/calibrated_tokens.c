/*
 * cal_tokens_calibrated_*: any bytes in any spans cost the same with every set of CPU features, a span costs what its
 * bytes cost alone, and the beginning that fits a limit is the longest that does.
 */
#include "harness.h"

#define MOST_SPANS 12
#define MOST_BYTES 600

/* Bytes as text has them: runs of letters, of one byte again and again, and of UTF-8, whole or broken. */
static size_t take_text(input *in, uint8_t *text) {
    static const char *const pieces[] = {"the",
                                         "Word",
                                         "42",
                                         " ",
                                         "  ",
                                         "\n",
                                         "\t",
                                         "...",
                                         "()",
                                         "{}",
                                         "_",
                                         "'",
                                         ";",
                                         "==",
                                         "\xC3\xA9",
                                         "\xE6\x97\xA5",
                                         "\xE3\x81\x82",
                                         "\xF0\x9F\x8E\x89",
                                         "\xD0\xB6",
                                         "\x80",
                                         "\xFF",
                                         "\xF0\x9F",
                                         "\xED\xA0\x80"};
    const size_t count = sizeof pieces / sizeof *pieces;
    size_t size = 0;
    while (in->size > 0 && size < MOST_BYTES) {
        const uint64_t kind = take(in, 1);
        if (kind >= 250) {
            text[size++] = (uint8_t)take(in, 1);
            continue;
        }
        for (uint64_t again = kind / count > 8 ? take(in, 1) % 70 : 1; again > 0; again--) {
            for (const char *p = pieces[kind % count]; *p && size < MOST_BYTES; p++) {
                text[size++] = (uint8_t)*p;
            }
        }
    }
    return size;
}

static void check_spans(arena *a, input *in, uint32_t features, int32_t vocabulary, const uint8_t *data, size_t size) {
    const size_t count = take_below(in, MOST_SPANS + 1);
    const int anything = take(in, 1) % 8 == 7;
    int64_t *offsets = exact(a, (count + 1) * sizeof *offsets, 8), *units = exact(a, count * sizeof *units, 8);
    int32_t *narrow = exact(a, (count + 1) * sizeof *narrow, 4);
    int64_t at = (int64_t)take_below(in, size + 1);
    int right = 1;
    for (size_t i = 0; i <= count; i++) {
        offsets[i] = anything ? (int32_t)take_signed(in) : at;
        narrow[i] = (int32_t)offsets[i];
        at += (int64_t)take_below(in, size - (size_t)at + 1);
        right = right && (count == 0 || (offsets[i] >= (i ? offsets[i - 1] : 0) && (uint64_t)offsets[i] <= size));
    }
    const int32_t expected = right ? CAL_OK : CAL_E_OFFSETS;
    CHECK(cal_tokens_calibrated_spans_i32(features, vocabulary, data, size, narrow, count, units) == expected);
    int64_t *again = exact(a, count * sizeof *again, 8);
    CHECK(cal_tokens_calibrated_spans_i64(features, vocabulary, data, size, offsets, count, again) == expected);
    CHECK(!right || count == 0 || memcmp(units, again, count * sizeof *units) == 0);
    for (size_t i = 0; right && i < count; i++) {
        const int64_t length = offsets[i + 1] - offsets[i], alone[2] = {0, length};
        const uint8_t *span = copied(a, data + offsets[i], (size_t)length, 1);
        int64_t cost = -1;
        CHECK(cal_tokens_calibrated_spans_i64(0, vocabulary, span, (size_t)length, alone, 1, &cost) == CAL_OK);
        CHECK(cost == units[i]);
    }
}

static void check_prefix(uint32_t features, int32_t vocabulary, const uint8_t *data, size_t size, int64_t limit) {
    size_t length = SIZE_MAX;
    CHECK(cal_tokens_calibrated_prefix(features, vocabulary, data, size, limit, &length) ==
          (limit < 0 ? CAL_E_ARGUMENT : CAL_OK));
    if (limit < 0) {
        return;
    }
    CHECK(length <= size);
    const int64_t fits[2] = {0, (int64_t)length};
    int64_t cost = -1;
    CHECK(cal_tokens_calibrated_spans_i64(0, vocabulary, data, size, fits, 1, &cost) == CAL_OK);
    CHECK(cost <= limit);
    if (length < size) {
        const int64_t longer[2] = {0, (int64_t)length + 1};
        CHECK(cal_tokens_calibrated_spans_i64(0, vocabulary, data, size, longer, 1, &cost) == CAL_OK);
        CHECK(cost > limit);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t text[MOST_BYTES];
    input in = {data, size};
    arena a = {.count = 0};
    const int32_t vocabulary = (int32_t)take_below(&in, CAL_VOCABULARIES);
    const size_t shift = take_below(&in, 32);
    const int64_t limit = take_signed(&in);
    uint64_t choices = take(&in, 4);
    const size_t length = take_text(&in, text);
    const uint8_t *copy = copied(&a, text, length, shift);
    uint32_t sets[MOST_PATHS];
    const size_t paths = feature_sets(sets, FOR_VECTORS);
    for (size_t p = 0; p < paths; p++) {
        uint8_t bytes[64];
        uint64_t same = choices;
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)next_random(&same);
        }
        input rest = {bytes, sizeof bytes};
        check_spans(&a, &rest, sets[p], vocabulary, copy, length);
        check_prefix(sets[p], vocabulary, copy, length, limit);
        check_prefix(sets[p], vocabulary, copy, length, (int64_t)(choices % (length * 64 + 1)));
        int64_t units;
        const int64_t whole[2] = {0, (int64_t)length};
        CHECK(cal_tokens_calibrated_spans_i64(sets[p], CAL_VOCABULARIES, copy, length, whole, 1, &units) ==
              CAL_E_ARGUMENT);
    }
    free_all(&a);
    return 0;
}
