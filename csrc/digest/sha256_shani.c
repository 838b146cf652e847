/*
 * The SHA-256 compression function with the SHA extensions. SHA256RNDS2 does two rounds on the state held as
 * (A,B,E,F) and (C,D,G,H); SHA256MSG1 and SHA256MSG2 make four schedule words at a time:
 *   w[t..t+3] = MSG2(MSG1(w[t-16..], w[t-12..]) + w[t-7..], w[t-4..])
 */
#include "../internal.h"

#include <immintrin.h>

static inline __m128i load_constants(int round) {
    return _mm_loadu_si128((const __m128i *)(const void *)(cal_sha256_constants + round));
}

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/*
 * Each pair of rounds needs the one before it, four cycles later, while the unit could begin one every other cycle:
 * two lanes fill the gaps. `lanes` is a constant where this is called, so its loops vanish.
 */
static inline __attribute__((always_inline)) void compress(uint32_t *const *states, const uint8_t *const *from,
                                                           size_t blocks, size_t lanes) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i abef[2], cdgh[2];
    const uint8_t *data[2];

    /* From (A..D), (E..H) in memory order to ABEF and CDGH, highest element first. */
    UNROLL
    for (size_t l = 0; l < lanes; l++) {
        const __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)states[l]), 0xB1);
        const __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(states[l] + 4)), 0x1B);
        abef[l] = _mm_alignr_epi8(low, high, 8);
        cdgh[l] = _mm_blend_epi16(high, low, 0xF0);
        data[l] = from[l];
    }

    for (; blocks > 0; blocks--) {
        __m128i abef_before[2], cdgh_before[2], w[2][4];
        UNROLL
        for (size_t l = 0; l < lanes; l++) {
            abef_before[l] = abef[l];
            cdgh_before[l] = cdgh[l];
            for (int i = 0; i < 4; i++) {
                const __m128i words = _mm_loadu_si128((const __m128i *)(const void *)(data[l] + 16 * i));
                w[l][i] = _mm_shuffle_epi8(words, big_endian);
            }
            data[l] += 64;
        }
        UNROLL
        for (int i = 0; i < 16; i++) {
            const __m128i constants = load_constants(4 * i);
            UNROLL
            for (size_t l = 0; l < lanes; l++) {
                const __m128i now = w[l][i & 3];
                const __m128i sum = _mm_add_epi32(now, constants);
                cdgh[l] = _mm_sha256rnds2_epu32(cdgh[l], abef[l], sum);
                abef[l] = _mm_sha256rnds2_epu32(abef[l], cdgh[l], _mm_shuffle_epi32(sum, 0x0E));
                if (i < 12) {
                    const __m128i last = w[l][(i + 3) & 3];
                    const __m128i seven = _mm_alignr_epi8(last, w[l][(i + 2) & 3], 4);
                    const __m128i next = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[l][(i + 1) & 3]), seven);
                    w[l][i & 3] = _mm_sha256msg2_epu32(next, last);
                }
            }
        }
        UNROLL
        for (size_t l = 0; l < lanes; l++) {
            abef[l] = _mm_add_epi32(abef[l], abef_before[l]);
            cdgh[l] = _mm_add_epi32(cdgh[l], cdgh_before[l]);
        }
    }

    UNROLL
    for (size_t l = 0; l < lanes; l++) {
        const __m128i low = _mm_shuffle_epi32(abef[l], 0x1B);  /* FEBA */
        const __m128i high = _mm_shuffle_epi32(cdgh[l], 0xB1); /* DCHG */
        _mm_storeu_si128((__m128i *)(void *)states[l], _mm_blend_epi16(low, high, 0xF0));
        _mm_storeu_si128((__m128i *)(void *)(states[l] + 4), _mm_alignr_epi8(high, low, 8));
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

const cal_sha256_ops cal_sha256_shani = {one, two, 2, 2};
