/*
 * Codes with the dot products of ARMv8.2: SDOT adds four products of signed bytes to each 32-bit element. Everything
 * else is that of vectors_neon.c, whose comment on the 128 in codes holds here too.
 */
#include "../internal.h"

#include <arm_neon.h>

static inline int8x16_t load_codes(const uint8_t *from) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from), vdupq_n_u8(128)));
}

static inline int32_t offset_of(const int8_t *query, size_t stride) {
    int32x4_t sum = vdupq_n_s32(0);
    for (size_t j = 0; j < stride; j += 16) {
        sum = vdotq_s32(sum, vld1q_s8(query + j), vdupq_n_s8(1));
    }
    return 128 * vaddvq_s32(sum);
}

static void code_dots(const uint8_t *codes, size_t stride, size_t count, const int8_t *query, int32_t *dots) {
    const int32_t offset = offset_of(query, stride);
    size_t i = 0;
    for (; i + 4 <= count; i += 4, codes += 4 * stride) {
        int32x4_t a = vdupq_n_s32(0), b = a, c = a, d = a;
        for (size_t j = 0; j < stride; j += 16) {
            const int8x16_t q = vld1q_s8(query + j);
            a = vdotq_s32(a, load_codes(codes + j), q);
            b = vdotq_s32(b, load_codes(codes + stride + j), q);
            c = vdotq_s32(c, load_codes(codes + 2 * stride + j), q);
            d = vdotq_s32(d, load_codes(codes + 3 * stride + j), q);
        }
        const int32x4_t sums = vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
        vst1q_s32(dots + i, vaddq_s32(sums, vdupq_n_s32(offset)));
    }
    for (; i < count; i++, codes += stride) {
        int32x4_t a = vdupq_n_s32(0);
        for (size_t j = 0; j < stride; j += 16) {
            a = vdotq_s32(a, load_codes(codes + j), vld1q_s8(query + j));
        }
        dots[i] = vaddvq_s32(a) + offset;
    }
}

const cal_vector_ops cal_vectors_dotprod = {cal_dot_neon, cal_squared_distance_neon, code_dots, cal_code_filter_neon};
