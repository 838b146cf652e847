/*
 * The SHA-256 compression function for eight spans at once with AVX2, one in each 32-bit element: the plain
 * algorithm on registers of eight. For CPUs with AVX2 and without the SHA extensions.
 */
#include "../internal.h"

#include <immintrin.h>

#define LANES 8

static inline __m256i add(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
static inline __m256i three(__m256i a, __m256i b, __m256i c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }

#define ROTATE(X, BITS) _mm256_or_si256(_mm256_srli_epi32(X, BITS), _mm256_slli_epi32(X, 32 - (BITS)))

/* Rows to columns: element j of row i becomes element i of row j. */
static inline void transpose(__m256i r[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

static inline __m256i load(const void *from) { return _mm256_loadu_si256((const __m256i *)from); }

/* Half a block, eight words, of each lane: w[t] holds word t of all lanes. */
static inline void load_words(const uint8_t *const *data, size_t at, __m256i w[8]) {
    const __m256i big_endian = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL));
    for (int l = 0; l < LANES; l++) {
        w[l] = _mm256_shuffle_epi8(load(data[l] + at), big_endian);
    }
    transpose(w);
}

static void eight(uint32_t *const *states, const uint8_t *const *data, size_t blocks) {
    __m256i state[8];
    for (int l = 0; l < LANES; l++) {
        state[l] = load(states[l]);
    }
    transpose(state);
    for (size_t block = 0; block < blocks; block++) {
        __m256i w[16];
        load_words(data, 64 * block, w);
        load_words(data, 64 * block + 32, w + 8);
        __m256i a = state[0], b = state[1], c = state[2], d = state[3];
        __m256i e = state[4], f = state[5], g = state[6], h = state[7];
        for (int t = 0; t < 64; t++) {
            __m256i word = w[t & 15];
            if (t >= 16) {
                const __m256i x = w[(t + 1) & 15], y = w[(t + 14) & 15];
                const __m256i s0 = three(ROTATE(x, 7), ROTATE(x, 18), _mm256_srli_epi32(x, 3));
                const __m256i s1 = three(ROTATE(y, 17), ROTATE(y, 19), _mm256_srli_epi32(y, 10));
                word = add(add(word, s0), add(w[(t + 9) & 15], s1));
                w[t & 15] = word;
            }
            const __m256i big1 = three(ROTATE(e, 6), ROTATE(e, 11), ROTATE(e, 25));
            const __m256i choice = _mm256_xor_si256(g, _mm256_and_si256(e, _mm256_xor_si256(f, g)));
            const __m256i constant = _mm256_set1_epi32((int)cal_sha256_constants[t]);
            const __m256i t1 = add(add(h, big1), add(choice, add(constant, word)));
            const __m256i big0 = three(ROTATE(a, 2), ROTATE(a, 13), ROTATE(a, 22));
            const __m256i majority =
                _mm256_or_si256(_mm256_and_si256(a, b), _mm256_and_si256(c, _mm256_or_si256(a, b)));
            h = g;
            g = f;
            f = e;
            e = add(d, t1);
            d = c;
            c = b;
            b = a;
            a = add(t1, add(big0, majority));
        }
        const __m256i after[8] = {a, b, c, d, e, f, g, h};
        for (int i = 0; i < 8; i++) {
            state[i] = add(state[i], after[i]);
        }
    }
    transpose(state);
    for (int l = 0; l < LANES; l++) {
        _mm256_storeu_si256((__m256i *)(void *)states[l], state[l]);
    }
}

const cal_sha256_ops cal_sha256_avx2 = {cal_sha256_compress_scalar, eight, LANES, 3};
