/* cal_uuid7: any clock, state and entropy, against the rules of caliber.h written a second time. */
#include "harness.h"

#define MOST_IDS 40

typedef struct {
    uint64_t ms;
    uint32_t counter;
} clock_state;

/* The next id by the rules, or 0 when timestamps are used up. */
static int next_id(clock_state *s, uint64_t now, const uint8_t *entropy, uint8_t out[16]) {
    const uint32_t fresh = ((uint32_t)entropy[8] << 8 | entropy[9]) % 2048;
    if (now > s->ms) {
        *s = (clock_state){now, fresh};
    } else if (s->counter < 4095) {
        s->counter += 1;
    } else if (s->ms < (UINT64_C(1) << 48) - 1) {
        *s = (clock_state){s->ms + 1, fresh};
    } else {
        return 0;
    }
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)((s->ms << 16 | 0x7000 | s->counter) >> (56 - 8 * i));
    }
    memcpy(out + 8, entropy, 8);
    out[8] = (uint8_t)(128 | entropy[0] % 64);
    return 1;
}

static uint64_t take_clock(input *in, uint64_t last) {
    switch (take(in, 1) % 8) {
    case 0:
        return take(in, 8); /* may be beyond 48 bits */
    case 1:
        return (UINT64_C(1) << 48) - 1;
    case 2:
        return last + 1;
    case 3:
        return last ? last - 1 : 0;
    case 4:
        return take(in, 6);
    default:
        return last;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    arena a = {.count = 0};
    uint64_t now = take(&in, 1) % 2 ? take(&in, 6) : (UINT64_C(1) << 48) - 1 - take_below(&in, 3);
    clock_state rules = {now, (uint32_t)take(&in, 2) % 4096};
    cal_uuid7_state state = {rules.ms, rules.counter};
    uint8_t last[16] = {0};
    for (int call = 0; call < 8 && in.size > 0; call++) {
        const size_t count = take_below(&in, MOST_IDS + 1), wrong = take(&in, 1) == 255;
        now = take_clock(&in, rules.ms);
        uint8_t *entropy = exact(&a, 10 * count + wrong, 3), *out = exact(&a, 16 * count, 1);
        for (size_t i = 0; i < 10 * count + wrong; i++) {
            entropy[i] = (uint8_t)take(&in, 1);
        }
        const int32_t status = cal_uuid7(&state, now, entropy, 10 * count + wrong, count, out);
        if (wrong || now >= UINT64_C(1) << 48) {
            CHECK(status == CAL_E_ARGUMENT);
            CHECK(state.unix_ms == rules.ms && state.counter == rules.counter);
            continue;
        }
        int left = 1;
        for (size_t i = 0; i < count && left; i++) {
            uint8_t expected[16];
            left = next_id(&rules, now, entropy + 10 * i, expected);
            if (left && status == CAL_OK) {
                CHECK(memcmp(out + 16 * i, expected, 16) == 0);
                CHECK(memcmp(last, out + 16 * i, 16) < 0);
                memcpy(last, expected, 16);
            }
        }
        CHECK(status == (left ? CAL_OK : CAL_E_OVERFLOW));
        CHECK(state.unix_ms == rules.ms && state.counter == rules.counter);
        if (!left) {
            break;
        }
    }
    free_all(&a);
    return 0;
}
