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

void cal_sha256_compress_shani(uint32_t state[8], const uint8_t *data, size_t blocks) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);

    /* From (A..D), (E..H) in memory order to ABEF and CDGH, highest element first. */
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)state);
    __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(state + 4));
    low = _mm_shuffle_epi32(low, 0xB1);
    high = _mm_shuffle_epi32(high, 0x1B);
    __m128i abef = _mm_alignr_epi8(low, high, 8);
    __m128i cdgh = _mm_blend_epi16(high, low, 0xF0);

    for (; blocks > 0; blocks--, data += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; i++) {
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(data + 16 * i)), big_endian);
        }
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 16
#elif defined(__clang__)
#pragma clang loop unroll(full)
#endif
        for (int i = 0; i < 16; i++) {
            const __m128i now = w[i & 3];
            __m128i sum = _mm_add_epi32(now, load_constants(4 * i));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            sum = _mm_shuffle_epi32(sum, 0x0E);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, sum);
            if (i < 12) {
                const __m128i last = w[(i + 3) & 3];
                const __m128i seven = _mm_alignr_epi8(last, w[(i + 2) & 3], 4);
                __m128i next = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) & 3]), seven);
                w[i & 3] = _mm_sha256msg2_epu32(next, last);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }

    low = _mm_shuffle_epi32(abef, 0x1B);  /* FEBA */
    high = _mm_shuffle_epi32(cdgh, 0xB1); /* DCHG */
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(low, high, 0xF0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(high, low, 8));
}
