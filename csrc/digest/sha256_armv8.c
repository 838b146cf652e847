/*
 * The SHA-256 compression function with the cryptographic extension of ARMv8. SHA256H and SHA256H2 do four rounds on
 * the state held as (A,B,C,D) and (E,F,G,H); SHA256SU0 and SHA256SU1 make four schedule words at a time:
 *   w[t..t+3] = SU1(SU0(w[t-16..], w[t-12..]), w[t-8..], w[t-4..])
 */
#include "../internal.h"

#include <arm_neon.h>

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/*
 * Four rounds need the four before them: two lanes fill the gaps. `lanes` is a constant where this is called, so its
 * loops vanish.
 */
static inline __attribute__((always_inline)) void compress(uint32_t *const *states, const uint8_t *const *from,
                                                           size_t blocks, size_t lanes) {
    uint32x4_t abcd[2], efgh[2];
    const uint8_t *data[2];
    UNROLL
    for (size_t l = 0; l < lanes; l++) {
        abcd[l] = vld1q_u32(states[l]);
        efgh[l] = vld1q_u32(states[l] + 4);
        data[l] = from[l];
    }
    for (; blocks > 0; blocks--) {
        uint32x4_t abcd_before[2], efgh_before[2], w[2][4];
        UNROLL
        for (size_t l = 0; l < lanes; l++) {
            abcd_before[l] = abcd[l];
            efgh_before[l] = efgh[l];
            for (int i = 0; i < 4; i++) {
                w[l][i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data[l] + 16 * i)));
            }
            data[l] += 64;
        }
        UNROLL
        for (int i = 0; i < 16; i++) {
            const uint32x4_t constants = vld1q_u32(cal_sha256_constants + 4 * i);
            UNROLL
            for (size_t l = 0; l < lanes; l++) {
                const uint32x4_t now = w[l][i & 3], sum = vaddq_u32(now, constants), abcd_now = abcd[l];
                abcd[l] = vsha256hq_u32(abcd_now, efgh[l], sum);
                efgh[l] = vsha256h2q_u32(efgh[l], abcd_now, sum);
                if (i < 12) {
                    w[l][i & 3] =
                        vsha256su1q_u32(vsha256su0q_u32(now, w[l][(i + 1) & 3]), w[l][(i + 2) & 3], w[l][(i + 3) & 3]);
                }
            }
        }
        UNROLL
        for (size_t l = 0; l < lanes; l++) {
            abcd[l] = vaddq_u32(abcd[l], abcd_before[l]);
            efgh[l] = vaddq_u32(efgh[l], efgh_before[l]);
        }
    }
    UNROLL
    for (size_t l = 0; l < lanes; l++) {
        vst1q_u32(states[l], abcd[l]);
        vst1q_u32(states[l] + 4, efgh[l]);
    }
}

static void one(uint32_t state[8], const uint8_t *data, size_t blocks) {
    uint32_t *const states[1] = {state};
    const uint8_t *const from[1] = {data};
    compress(states, from, blocks, 1);
}

static void two(uint32_t *const *states, const uint8_t *const *data, size_t blocks) {
    compress(states, data, blocks, 2);
}

const cal_sha256_ops cal_sha256_armv8 = {one, two, 2, 2};
