/*
 * Measuring 16 bytes at once with NEON.
 *
 * TBL looks up 64 bytes at once and answers 0 beyond them, TBX leaves what was there: a table of 128 is two of them,
 * one of 256 four. What a byte leaves to the next is the same for all bytes, moved on by one place; runs of 2, 4, 8 and
 * 16 are runs of half the length that end now and that long ago. Blocks without a byte from 0x80 skip what only those
 * need.
 */
#include "machine.h"

#include <arm_neon.h>
#include <string.h>

#define BLOCK 16

/* What a block hands to the next one: its own vectors; moving by a place needs the last bytes of the block before. */
typedef struct {
    uint8x16_t bytes, class, context, group, letters, letters2, letters4;
    uint8x16_t high, high2, high4, high8, high16;
} carried;

/* The bytes that many places earlier. A macro, as the instruction wants a constant. */
#define BEFORE(now, previous, places) vextq_u8(previous, now, BLOCK - (places))

static inline uint8x16_t look_up(const uint8_t table[16], uint8x16_t index) {
    return vqtbl1q_u8(vld1q_u8(table), index);
}

static inline uint8x16x4_t rows(const uint8_t table[64]) {
    const uint8x16x4_t four = {{vld1q_u8(table), vld1q_u8(table + 16), vld1q_u8(table + 32), vld1q_u8(table + 48)}};
    return four;
}

/* table[index], 0 from 128 on. */
static inline uint8x16_t of_128(const uint8_t *table, uint8x16_t index) {
    const uint8x16_t low = vqtbl4q_u8(rows(table), index);
    return vqtbx4q_u8(low, rows(table + 64), vsubq_u8(index, vdupq_n_u8(64)));
}

static inline uint8x16_t of_256(const uint8_t *table, uint8x16_t index) {
    const uint8x16_t half = of_128(table, index);
    const uint8x16_t more = vqtbx4q_u8(half, rows(table + 128), vsubq_u8(index, vdupq_n_u8(128)));
    return vqtbx4q_u8(more, rows(table + 192), vsubq_u8(index, vdupq_n_u8(192)));
}

/* 16 * number + index, of which both are below 16. */
static inline uint8x16_t place(uint8x16_t number, uint8x16_t index) { return vsliq_n_u8(index, number, 4); }

static inline uint8x16_t at_least(uint8x16_t bytes, uint8_t least) { return vcgeq_u8(bytes, vdupq_n_u8(least)); }

static inline uint8x16_t high_context(const carried *c) {
    /* A mask is -1. */
    const uint8x16_t ran = vaddq_u8(vaddq_u8(c->high4, c->high8), c->high16);
    return vsubq_u8(look_up(cal_token_next_high, c->class), ran);
}

/* The costs of the bytes from 0x80 of a block; of no meaning at the others. */
static inline uint8x16_t high_costs(const uint8_t *costs, const carried *was, const carried *now) {
    const uint8x16_t bytes = now->bytes, half = vdupq_n_u8(128);
    const uint8x16_t class = of_128(cal_token_classes + 128, vsubq_u8(bytes, half));
    const uint8x16_t context = BEFORE(high_context(now), high_context(was), 1);
    const uint8x16_t of_leads = of_128(costs + CAL_TOKENS_LEAD, place(context, class));

    const uint8x16_t p1 = BEFORE(bytes, was->bytes, 1), p2 = BEFORE(bytes, was->bytes, 2);
    const uint8x16_t p1_class = of_128(cal_token_classes + 128, vsubq_u8(p1, half));
    const uint8x16_t third =
        vbslq_u8(at_least(p2, CAL_TOKENS_FOUR_FROM), vdupq_n_u8(CAL_TOKENS_FOURTH), vdupq_n_u8(CAL_TOKENS_THIRD));
    const uint8x16_t inside = vbslq_u8(at_least(p1, CAL_TOKENS_LEAD_FROM), p1_class, third);
    const uint8x16_t of_continuations = of_256(costs + CAL_TOKENS_CONTINUATION, place(inside, class));
    return vbslq_u8(at_least(bytes, CAL_TOKENS_LEAD_FROM), of_leads, of_continuations);
}

/* The costs of the 16 bytes in now->bytes; fills in the rest of now. */
static inline uint8x16_t block_costs(const uint8_t *costs, const carried *was, carried *now) {
    const uint8x16_t bytes = now->bytes, zero = vdupq_n_u8(0);
    now->high = at_least(bytes, 0x80);
    now->class = vbslq_u8(now->high, vdupq_n_u8(CAL_TOKENS_HIGH), of_128(cal_token_classes, bytes));

    now->group = look_up(cal_token_group, now->class);
    const uint8x16_t in_run = vceqq_u8(now->group, BEFORE(now->group, was->group, 1));
    now->letters = vcgtq_u8(look_up(cal_token_letter, now->class), zero);
    now->letters2 = vandq_u8(now->letters, BEFORE(now->letters, was->letters, 1));
    now->letters4 = vandq_u8(now->letters2, BEFORE(now->letters2, was->letters2, 2));
    const uint8x16_t letters8 = vandq_u8(now->letters4, BEFORE(now->letters4, was->letters4, 4));
    const uint8x16_t lower = vcgtq_u8(look_up(cal_token_lower, now->class), zero);
    const uint8x16_t longer = vaddq_u8(vaddq_u8(now->letters2, now->letters4), letters8);
    now->context =
        vaddq_u8(look_up(cal_token_next, now->class), vandq_u8(in_run, look_up(cal_token_again, now->class)));
    now->context = vsubq_u8(now->context, vandq_u8(lower, longer)); /* a mask is -1 */

    const uint8x16_t same = vceqq_u8(bytes, BEFORE(bytes, was->bytes, 1));
    const uint8x16_t repeats = vandq_u8(same, vcgtq_u8(look_up(cal_token_repeats, now->class), zero));
    const uint8x16_t current = vbslq_u8(repeats, vdupq_n_u8(CAL_TOKENS_REPEAT), now->class);
    const uint8x16_t context = BEFORE(now->context, was->context, 1);
    if (vmaxvq_u8(bytes) < 0x80) {
        now->high2 = now->high4 = now->high8 = now->high16 = zero;
        return of_256(costs, place(context, current));
    }
    now->high2 = vandq_u8(now->high, BEFORE(now->high, was->high, 1));
    now->high4 = vandq_u8(now->high2, BEFORE(now->high2, was->high2, 2));
    now->high8 = vandq_u8(now->high4, BEFORE(now->high4, was->high4, 4));
    now->high16 = vandq_u8(now->high8, BEFORE(now->high8, was->high8, 8));
    const uint8x16_t high = high_costs(costs, was, now);
    if (vminvq_u8(bytes) >= 0x80) {
        return high;
    }
    return vbslq_u8(now->high, high, of_256(costs, place(context, current)));
}

static uint8x16_t load_tail(const uint8_t *text, size_t at, size_t to, size_t readable) {
    if (at + BLOCK <= readable) {
        return vld1q_u8(text + at);
    }
    uint8_t padded[BLOCK] = {0};
    memcpy(padded, text + at, to - at);
    return vld1q_u8(padded);
}

uint64_t cal_token_measure_neon(const uint8_t *costs, const uint8_t *text, size_t from, size_t to, size_t readable) {
    static const uint8_t places[BLOCK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    carried was, now;
    memset(&was, 0, sizeof was); /* zero bytes before the text: class, contexts and groups of those are 0 */
    uint64_t units = 0;
    size_t at = 0;
    if (from > 0) {
        /* Looking on from two blocks before; a text that has fewer has zero bytes before it. */
        uint8_t before[CAL_TOKENS_WARM_UP] = {0};
        const size_t known = from < CAL_TOKENS_WARM_UP ? from : CAL_TOKENS_WARM_UP;
        memcpy(before + CAL_TOKENS_WARM_UP - known, text + from - known, known);
        for (size_t i = 0; i < CAL_TOKENS_WARM_UP; i += BLOCK) {
            now.bytes = vld1q_u8(before + i);
            (void)block_costs(costs, &was, &now);
            was = now;
        }
        at = from;
    }
    for (; at + BLOCK <= to; at += BLOCK) {
        now.bytes = vld1q_u8(text + at);
        units += vaddlvq_u8(block_costs(costs, &was, &now));
        was = now;
    }
    if (at < to) {
        now.bytes = load_tail(text, at, to, readable);
        const uint8x16_t counted = vcltq_u8(vld1q_u8(places), vdupq_n_u8((uint8_t)(to - at)));
        units += vaddlvq_u8(vandq_u8(block_costs(costs, &was, &now), counted));
    }
    return units;
}
