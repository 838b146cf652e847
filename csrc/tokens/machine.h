/*
 * The calibrated estimate: each byte costs what a table says for its class and its context.
 *
 * The tables of tables.c are made by tools/fit_tokens.py from tools/token_machine.py, which explains them,
 * and from the fitted costs. All of them are read 16 bytes at a time by instruction sets that look up 16 bytes at once:
 * classes by the upper half of a byte, costs by context.
 *
 *   ASCII byte           costs[16 * context + class], where class is REPEAT for a space or sign after the same byte
 *   first byte           costs[LEAD + 16 * context + class]
 *   continuation byte    costs[CONTINUATION + 16 * context + class]
 *
 * Contexts come from the bytes before, at most 16 of them: what stands before a text are zero bytes. So a place in a
 * text can be measured after CAL_TOKENS_WARM_UP bytes of looking on. Costs are never negative: a beginning of a text
 * never costs more than the whole. An implementation for an instruction set is one function, cal_token_measure.
 */
#ifndef CALIBER_TOKENS_MACHINE_H
#define CALIBER_TOKENS_MACHINE_H

#include "../internal.h"

enum {
    CAL_TOKENS_REPEAT = 14,
    CAL_TOKENS_HIGH = 15, /* what any byte from 0x80 is to the ASCII byte after it */
    CAL_TOKENS_FOURTH = 14,
    CAL_TOKENS_THIRD = 15,
    CAL_TOKENS_LEAD_FROM = 0xC0,
    CAL_TOKENS_FOUR_FROM = 0xF0,
    CAL_TOKENS_LEAD = 16 * 16,
    CAL_TOKENS_CONTINUATION = CAL_TOKENS_LEAD + 16 * 8,
    CAL_TOKENS_COSTS = CAL_TOKENS_CONTINUATION + 16 * 16,
    CAL_TOKENS_WARM_UP = 32
};

extern const uint8_t cal_token_classes[256];
extern const uint8_t cal_token_next[16];      /* by class: the context left to an ASCII byte */
extern const uint8_t cal_token_group[16];     /* by class: bytes of one group make runs; 0 is none */
extern const uint8_t cal_token_again[16];     /* by class: added to next in a run of two or more */
extern const uint8_t cal_token_repeats[16];   /* by class: whether the same byte again is REPEAT */
extern const uint8_t cal_token_letter[16];    /* by class: a letter; lower-case letters add 1 to next */
extern const uint8_t cal_token_lower[16];     /*   for a run of 2, of 4 and of 8 letters */
extern const uint8_t cal_token_next_high[16]; /* by class: the context left to a first byte; 1 more for a run of */
                                              /*   4, of 8 and of 16 bytes from 0x80 */

extern const uint8_t cal_token_costs[CAL_VOCABULARIES][CAL_TOKENS_COSTS];

#endif
