/*
 * Measuring 32 bytes at once.
 *
 * Every table of 16 entries is one vpshufb. A table of 128 or 256 is as many of them as it has rows, and a tree of
 * blends that chooses among their answers by the bits of the row: the top bit of a byte is what vpblendvb looks at, so
 * shifting bit k up there is all it takes. What a byte leaves to the next is the same for all bytes, moved on by one
 * place; runs of 2, 4, 8 and 16 are runs of half the length that end now and that long ago. Blocks without a byte from
 * 0x80 skip what only those need.
 */
#include "machine.h"

#include <immintrin.h>
#include <string.h>

/* What a block hands to the next one: its own vectors; moving by a place needs the last bytes of the block before. */
typedef struct {
    __m256i bytes, class, context, group, letters, letters2, letters4;
    __m256i high, high2, high4, high8, high16;
} carried;

static __m256i row(const uint8_t *table) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
}

static __m256i look_up(const uint8_t table[16], __m256i index) { return _mm256_shuffle_epi8(row(table), index); }

/* The bytes that many places earlier. A macro, as the instruction wants a constant. */
#define BEFORE(now, previous, places)                                                                                  \
    _mm256_alignr_epi8(now, _mm256_permute2x128_si256(previous, now, 0x21), 16 - (places))

/* table[16 * number + index] of eight rows; bit0 to bit2 hold the bits of number on top of each byte. */
static __m256i of_eight(const uint8_t *table, __m256i index, __m256i bit0, __m256i bit1, __m256i bit2) {
    const __m256i r01 = _mm256_blendv_epi8(look_up(table, index), look_up(table + 16, index), bit0);
    const __m256i r23 = _mm256_blendv_epi8(look_up(table + 32, index), look_up(table + 48, index), bit0);
    const __m256i r45 = _mm256_blendv_epi8(look_up(table + 64, index), look_up(table + 80, index), bit0);
    const __m256i r67 = _mm256_blendv_epi8(look_up(table + 96, index), look_up(table + 112, index), bit0);
    return _mm256_blendv_epi8(_mm256_blendv_epi8(r01, r23, bit1), _mm256_blendv_epi8(r45, r67, bit1), bit2);
}

/* table[16 * number + index] of sixteen rows. Both are below 16. */
static __m256i of_sixteen(const uint8_t *table, __m256i index, __m256i number) {
    const __m256i bit0 = _mm256_slli_epi16(number, 7), bit1 = _mm256_slli_epi16(number, 6);
    const __m256i bit2 = _mm256_slli_epi16(number, 5), bit3 = _mm256_slli_epi16(number, 4);
    return _mm256_blendv_epi8(of_eight(table, index, bit0, bit1, bit2), of_eight(table + 128, index, bit0, bit1, bit2),
                              bit3);
}

/* The costs of the bytes from 0x80 of a block; of no meaning at the others. */
static __m256i high_costs(const uint8_t *costs, const carried *was, const carried *now) {
    const __m256i nibble = _mm256_set1_epi8(15), bytes = now->bytes;
    const __m256i from_lead = _mm256_set1_epi8((char)(CAL_TOKENS_LEAD_FROM - 1));
    const __m256i from_four = _mm256_set1_epi8((char)(CAL_TOKENS_FOUR_FROM - 1));
    const __m256i bit0 = _mm256_slli_epi16(bytes, 3), bit1 = _mm256_slli_epi16(bytes, 2),
                  bit2 = _mm256_slli_epi16(bytes, 1);
    const __m256i class = of_eight(cal_token_classes + 128, _mm256_and_si256(bytes, nibble), bit0, bit1, bit2);
    /* Bytes from 0x80 are negative, so a signed comparison orders them; those below are greater than all. */
    const __m256i lead = _mm256_and_si256(_mm256_cmpgt_epi8(bytes, from_lead), now->high);

    const __m256i ran = _mm256_add_epi8(_mm256_add_epi8(now->high4, now->high8), now->high16);
    const __m256i ran_before = _mm256_add_epi8(_mm256_add_epi8(was->high4, was->high8), was->high16);
    const __m256i left = _mm256_sub_epi8(look_up(cal_token_next_high, now->class), ran);
    const __m256i left_before = _mm256_sub_epi8(look_up(cal_token_next_high, was->class), ran_before);
    const __m256i context = BEFORE(left, left_before, 1);
    const __m256i of_leads = of_eight(costs + CAL_TOKENS_LEAD, class, _mm256_slli_epi16(context, 7),
                                      _mm256_slli_epi16(context, 6), _mm256_slli_epi16(context, 5));

    const __m256i p1 = BEFORE(bytes, was->bytes, 1), p2 = BEFORE(bytes, was->bytes, 2);
    const __m256i p1_class = of_eight(cal_token_classes + 128, _mm256_and_si256(p1, nibble), _mm256_slli_epi16(p1, 3),
                                      _mm256_slli_epi16(p1, 2), _mm256_slli_epi16(p1, 1));
    const __m256i p1_is_lead =
        _mm256_and_si256(_mm256_cmpgt_epi8(p1, from_lead), _mm256_cmpgt_epi8(_mm256_setzero_si256(), p1));
    const __m256i p2_is_four =
        _mm256_and_si256(_mm256_cmpgt_epi8(p2, from_four), _mm256_cmpgt_epi8(_mm256_setzero_si256(), p2));
    const __m256i third =
        _mm256_blendv_epi8(_mm256_set1_epi8(CAL_TOKENS_THIRD), _mm256_set1_epi8(CAL_TOKENS_FOURTH), p2_is_four);
    const __m256i inside = _mm256_blendv_epi8(third, p1_class, p1_is_lead);
    const __m256i of_continuations = of_sixteen(costs + CAL_TOKENS_CONTINUATION, class, inside);
    return _mm256_blendv_epi8(of_continuations, of_leads, lead);
}

/* The costs of the 32 bytes in now->bytes; fills in the rest of now. */
static __m256i block_costs(const uint8_t *costs, const carried *was, carried *now) {
    const __m256i bytes = now->bytes, zero = _mm256_setzero_si256();
    const int has_high = _mm256_movemask_epi8(bytes);
    /* vpshufb answers 0 where the top bit of the index is set, and looks at its lower half elsewhere. */
    const __m256i ascii = of_eight(cal_token_classes, bytes, _mm256_slli_epi16(bytes, 3), _mm256_slli_epi16(bytes, 2),
                                   _mm256_slli_epi16(bytes, 1));
    now->class = _mm256_blendv_epi8(ascii, _mm256_set1_epi8(CAL_TOKENS_HIGH), bytes);

    now->group = look_up(cal_token_group, now->class);
    const __m256i in_run = _mm256_cmpeq_epi8(now->group, BEFORE(now->group, was->group, 1));
    now->letters = _mm256_cmpgt_epi8(look_up(cal_token_letter, now->class), zero);
    now->letters2 = _mm256_and_si256(now->letters, BEFORE(now->letters, was->letters, 1));
    now->letters4 = _mm256_and_si256(now->letters2, BEFORE(now->letters2, was->letters2, 2));
    const __m256i letters8 = _mm256_and_si256(now->letters4, BEFORE(now->letters4, was->letters4, 4));
    const __m256i lower = _mm256_cmpgt_epi8(look_up(cal_token_lower, now->class), zero);
    const __m256i longer = _mm256_add_epi8(_mm256_add_epi8(now->letters2, now->letters4), letters8);
    now->context = _mm256_add_epi8(look_up(cal_token_next, now->class),
                                   _mm256_and_si256(in_run, look_up(cal_token_again, now->class)));
    now->context = _mm256_sub_epi8(now->context, _mm256_and_si256(lower, longer)); /* a mask is -1 */

    const __m256i same = _mm256_cmpeq_epi8(bytes, BEFORE(bytes, was->bytes, 1));
    const __m256i repeats = _mm256_and_si256(same, _mm256_cmpgt_epi8(look_up(cal_token_repeats, now->class), zero));
    const __m256i current = _mm256_blendv_epi8(now->class, _mm256_set1_epi8(CAL_TOKENS_REPEAT), repeats);
    const __m256i context = BEFORE(now->context, was->context, 1);
    if (!has_high) {
        now->high = now->high2 = now->high4 = now->high8 = now->high16 = zero;
        return of_sixteen(costs, current, context);
    }
    now->high = _mm256_cmpgt_epi8(zero, bytes);
    now->high2 = _mm256_and_si256(now->high, BEFORE(now->high, was->high, 1));
    now->high4 = _mm256_and_si256(now->high2, BEFORE(now->high2, was->high2, 2));
    now->high8 = _mm256_and_si256(now->high4, BEFORE(now->high4, was->high4, 4));
    now->high16 = _mm256_and_si256(now->high8, BEFORE(now->high8, was->high8, 8));
    const __m256i high = high_costs(costs, was, now);
    if (has_high == -1) {
        return high;
    }
    return _mm256_blendv_epi8(of_sixteen(costs, current, context), high, bytes);
}

static __m256i load_tail(const uint8_t *text, size_t at, size_t to, size_t readable) {
    if (at + 32 <= readable) {
        return _mm256_loadu_si256((const __m256i *)(text + at));
    }
    uint8_t padded[32] = {0};
    memcpy(padded, text + at, to - at);
    return _mm256_loadu_si256((const __m256i *)padded);
}

uint64_t cal_token_measure_avx2(const uint8_t *costs, const uint8_t *text, size_t from, size_t to, size_t readable) {
    static const uint8_t kept[64] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
    };
    const __m256i zero = _mm256_setzero_si256();
    carried was, now;
    memset(&was, 0, sizeof was); /* zero bytes before the text: class, contexts and groups of those are 0 */
    __m256i sums = zero;
    size_t at = 0;
    if (from > 0) {
        /* Looking on from 32 bytes before; a text that has fewer has zero bytes before it. */
        uint8_t before[32] = {0};
        const size_t known = from < CAL_TOKENS_WARM_UP ? from : CAL_TOKENS_WARM_UP;
        memcpy(before + 32 - known, text + from - known, known);
        now.bytes = _mm256_loadu_si256((const __m256i *)before);
        (void)block_costs(costs, &was, &now);
        was = now;
        at = from;
    }
    for (; at + 32 <= to; at += 32) {
        now.bytes = _mm256_loadu_si256((const __m256i *)(text + at));
        sums = _mm256_add_epi64(sums, _mm256_sad_epu8(block_costs(costs, &was, &now), zero));
        was = now;
    }
    if (at < to) {
        now.bytes = load_tail(text, at, to, readable);
        const __m256i mask = _mm256_loadu_si256((const __m256i *)(kept + 32 - (to - at)));
        const __m256i counted = _mm256_and_si256(block_costs(costs, &was, &now), mask);
        sums = _mm256_add_epi64(sums, _mm256_sad_epu8(counted, zero));
    }
    uint64_t parts[4];
    _mm256_storeu_si256((__m256i *)parts, sums);
    return parts[0] + parts[1] + parts[2] + parts[3];
}
