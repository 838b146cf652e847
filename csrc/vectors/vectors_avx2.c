/*
 * Canonical reductions with AVX2. Lanes 0-3 and 4-7 are one register each; a multiplication and an addition, never
 * an FMA, so each lane sees the additions of the scalar code. Eight floats of the query are widened once for four
 * rows, whose eight independent sums hide the four-cycle latency of the addition.
 */
#include "../internal.h"

#include <immintrin.h>
#include <string.h>

#define LANES 8

static inline __m256d widen_low(__m256 x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
static inline __m256d widen_high(__m256 x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }

static inline double fold(__m256d low, __m256d high) {
    const __m256d four = _mm256_add_pd(low, high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

static inline void add_products(__m256d *low, __m256d *high, __m256 row, __m256d query_low,
                                __m256d query_high) {
    *low = _mm256_add_pd(*low, _mm256_mul_pd(widen_low(row), query_low));
    *high = _mm256_add_pd(*high, _mm256_mul_pd(widen_high(row), query_high));
}

static inline void add_squares(__m256d *low, __m256d *high, __m256 row, __m256d query_low,
                               __m256d query_high) {
    const __m256d below = _mm256_sub_pd(widen_low(row), query_low);
    const __m256d above = _mm256_sub_pd(widen_high(row), query_high);
    *low = _mm256_add_pd(*low, _mm256_mul_pd(below, below));
    *high = _mm256_add_pd(*high, _mm256_mul_pd(above, above));
}

/* The last dimensions % 8 floats, padded with zeros; reading past a row's end could leave its page. */
static inline __m256 load_tail(const float *from, size_t count) {
    float padded[LANES] = {0};
    memcpy(padded, from, count * sizeof(float));
    return _mm256_loadu_ps(padded);
}

#define REDUCE(NAME, ADD)                                                                               \
    static void NAME(const float *const rows[CAL_ROWS], const float *query, size_t dimensions,         \
                     double out[CAL_ROWS]) {                                                            \
        __m256d low[CAL_ROWS], high[CAL_ROWS];                                                          \
        for (size_t r = 0; r < CAL_ROWS; r++) {                                                         \
            low[r] = high[r] = _mm256_setzero_pd();                                                     \
        }                                                                                               \
        const size_t whole = dimensions - dimensions % LANES;                                           \
        for (size_t i = 0; i < whole; i += LANES) {                                                     \
            const __m256 q = _mm256_loadu_ps(query + i);                                                \
            const __m256d query_low = widen_low(q), query_high = widen_high(q);                         \
            for (size_t r = 0; r < CAL_ROWS; r++) {                                                     \
                ADD(&low[r], &high[r], _mm256_loadu_ps(rows[r] + i), query_low, query_high);            \
            }                                                                                           \
        }                                                                                               \
        if (whole != dimensions) {                                                                      \
            const __m256 q = load_tail(query + whole, dimensions - whole);                              \
            const __m256d query_low = widen_low(q), query_high = widen_high(q);                         \
            for (size_t r = 0; r < CAL_ROWS; r++) {                                                     \
                ADD(&low[r], &high[r], load_tail(rows[r] + whole, dimensions - whole), query_low,       \
                    query_high);                                                                        \
            }                                                                                           \
        }                                                                                               \
        for (size_t r = 0; r < CAL_ROWS; r++) {                                                         \
            out[r] = fold(low[r], high[r]);                                                             \
        }                                                                                               \
    }

REDUCE(dot, add_products)
REDUCE(squared_distance, add_squares)

const cal_vector_ops cal_vectors_avx2 = {dot, squared_distance};
