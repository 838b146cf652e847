/* UUIDv7 from a clock and entropy that the caller hands in; see caliber.h for the counter's rules. */
#include "../internal.h"

#define ENTROPY_PER_ID 10
#define COUNTER_MAX 0xFFFU
#define COUNTER_SEED_BITS 0x7FFU /* the top bit starts at 0, which leaves room to count */
#define TIMESTAMP_LIMIT (UINT64_C(1) << 48)

int32_t cal_uuid7(cal_uuid7_state *state, uint64_t unix_ms, const uint8_t *entropy, size_t entropy_size, size_t count,
                  uint8_t *out) {
    if (unix_ms >= TIMESTAMP_LIMIT || count > SIZE_MAX / 16 || entropy_size != count * ENTROPY_PER_ID) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i < count; i++, entropy += ENTROPY_PER_ID, out += 16) {
        if (unix_ms > state->unix_ms) {
            state->unix_ms = unix_ms;
            state->counter = (((uint32_t)entropy[8] << 8) | entropy[9]) & COUNTER_SEED_BITS;
        } else if (state->counter < COUNTER_MAX) {
            state->counter++;
        } else if (state->unix_ms + 1 < TIMESTAMP_LIMIT) {
            state->unix_ms++;
            state->counter = (((uint32_t)entropy[8] << 8) | entropy[9]) & COUNTER_SEED_BITS;
        } else {
            return CAL_E_OVERFLOW;
        }
        for (int byte = 0; byte < 6; byte++) {
            out[byte] = (uint8_t)(state->unix_ms >> (40 - 8 * byte));
        }
        out[6] = (uint8_t)(0x70U | (state->counter >> 8)); /* version 7 */
        out[7] = (uint8_t)state->counter;
        out[8] = (uint8_t)(0x80U | (entropy[0] & 0x3FU)); /* variant 10 */
        for (int byte = 1; byte < 8; byte++) {
            out[8 + byte] = entropy[byte];
        }
    }
    return CAL_OK;
}
