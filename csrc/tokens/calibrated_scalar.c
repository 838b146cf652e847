/* Measuring byte by byte: what every other path must equal. */
#include "machine.h"

/* What the bytes up to here leave to the next one. */
typedef struct {
    uint8_t previous, before; /* the last byte, and the one before it */
    uint8_t group, context, high_context;
    uint32_t letters, highs; /* bytes of the runs that end here */
} state;

static uint8_t cost_of(const uint8_t *costs, const state *s, uint8_t byte) {
    const uint8_t class = cal_token_classes[byte];
    if (byte >= CAL_TOKENS_LEAD_FROM) {
        return costs[CAL_TOKENS_LEAD + 16 * s->high_context + class];
    }
    if (byte >= 0x80) {
        const uint8_t third = s->before >= CAL_TOKENS_FOUR_FROM ? CAL_TOKENS_FOURTH : CAL_TOKENS_THIRD;
        const uint8_t inside = s->previous >= CAL_TOKENS_LEAD_FROM ? cal_token_classes[s->previous] : third;
        return costs[CAL_TOKENS_CONTINUATION + 16 * inside + class];
    }
    const int repeats = cal_token_repeats[class] && byte == s->previous;
    return costs[16 * s->context + (repeats ? CAL_TOKENS_REPEAT : class)];
}

static void step(state *s, uint8_t byte) {
    const uint8_t class = byte >= 0x80 ? CAL_TOKENS_HIGH : cal_token_classes[byte];
    const uint8_t group = cal_token_group[class];
    s->letters = cal_token_letter[class] ? s->letters + 1 : 0;
    s->highs = byte >= 0x80 ? s->highs + 1 : 0;
    s->context = cal_token_next[class];
    if (group == s->group) {
        s->context = (uint8_t)(s->context + cal_token_again[class]);
    }
    if (cal_token_lower[class]) {
        s->context = (uint8_t)(s->context + (s->letters >= 2) + (s->letters >= 4) + (s->letters >= 8));
    }
    s->high_context = (uint8_t)(cal_token_next_high[class] + (s->highs >= 4) + (s->highs >= 8) + (s->highs >= 16));
    s->group = group;
    s->before = s->previous;
    s->previous = byte;
}

uint64_t cal_token_measure_scalar(const uint8_t *costs, const uint8_t *text, size_t from, size_t to, size_t readable) {
    (void)readable;
    state s = {0};
    uint64_t units = 0;
    for (size_t i = from > CAL_TOKENS_WARM_UP ? from - CAL_TOKENS_WARM_UP : 0; i < to; i++) {
        if (i >= from) {
            units += cost_of(costs, &s, text[i]);
        }
        step(&s, text[i]);
    }
    return units;
}
