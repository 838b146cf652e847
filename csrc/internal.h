/* Shared by the files of csrc/; not part of the ABI. */
#ifndef CALIBER_INTERNAL_H
#define CALIBER_INTERNAL_H

#include "caliber.h"

/* Rows scored at once: the query is widened once for all of them, and four chains hide the adders' latency. */
#define CAL_ROWS 4

/* out[r] = canonical dot product, or canonical sum of squared differences, of rows[r] and query. */
typedef void (*cal_reduce)(const float *const rows[CAL_ROWS], const float *query, size_t dimensions,
                           double out[CAL_ROWS]);

/* A query in one byte an element; see vectors/codes.h. */
typedef struct {
    const int8_t *codes;
    double scale, error, norm;
    int32_t offset; /* 128 times the sum of the codes: what the rows' codes have too much */
} cal_code_query;

/* Rows whose codes are looked at before their bounds: a bit each in a filter's answer. */
#define CAL_BLOCK 64

/* dots[i] = sum of codes[i * stride + j] * query[j], for j < stride, a multiple of 64, exact. */
typedef void (*cal_code_dots)(const uint8_t *codes, size_t stride, size_t count, const int8_t *query, int32_t *dots);

/* Bit i: whether row i of at most CAL_BLOCK could have a score that cal_filter_limit turned into limit. */
typedef uint64_t (*cal_code_filter)(int32_t metric, const cal_code_query *query, const int32_t *dots,
                                    const float *scales, const float *errors, const double *norms, size_t count,
                                    double limit);

typedef struct {
    cal_reduce dot;
    cal_reduce squared_distance;
    cal_code_dots code_dots;
    cal_code_filter code_filter;
} cal_vector_ops;

extern const cal_vector_ops cal_vectors_scalar;

/* Also the last rows of the other paths. */
uint64_t cal_code_filter_scalar(int32_t metric, const cal_code_query *query, const int32_t *dots, const float *scales,
                                const float *errors, const double *norms, size_t count, double limit);

/* Consumes blocks of 64 bytes into the eight state words. */
typedef void (*cal_sha256_compress)(uint32_t state[8], const uint8_t *data, size_t blocks);

/* The same in several lanes at once, each with its own state and data. */
typedef void (*cal_sha256_compress_many)(uint32_t *const *states, const uint8_t *const *data, size_t blocks);

#define CAL_SHA256_LANES 8 /* at most */

typedef struct {
    cal_sha256_compress one;
    cal_sha256_compress_many many;
    size_t lanes;  /* of many */
    size_t fewest; /* with fewer spans than this, one after the other is faster; at least 1 */
} cal_sha256_ops;

extern const cal_sha256_ops cal_sha256_scalar;

void cal_sha256_compress_scalar(uint32_t state[8], const uint8_t *data, size_t blocks);

#if defined(CALIBER_X86)
extern const cal_vector_ops cal_vectors_avx2;
extern const cal_sha256_ops cal_sha256_avx2;
extern const cal_sha256_ops cal_sha256_shani;

uint64_t cal_token_measure_avx2(const uint8_t *costs, const uint8_t *text, size_t from, size_t to, size_t readable);
#endif

#if defined(CALIBER_ARM64)
extern const cal_vector_ops cal_vectors_neon;
extern const cal_vector_ops cal_vectors_dotprod;
extern const cal_sha256_ops cal_sha256_armv8;

uint64_t cal_token_measure_neon(const uint8_t *costs, const uint8_t *text, size_t from, size_t to, size_t readable);

/* Of cal_vectors_neon, for cal_vectors_dotprod too. */
void cal_dot_neon(const float *const rows[CAL_ROWS], const float *query, size_t dimensions, double out[CAL_ROWS]);
void cal_squared_distance_neon(const float *const rows[CAL_ROWS], const float *query, size_t dimensions,
                               double out[CAL_ROWS]);
uint64_t cal_code_filter_neon(int32_t metric, const cal_code_query *query, const int32_t *dots, const float *scales,
                              const float *errors, const double *norms, size_t count, double limit);
#endif

extern const uint32_t cal_sha256_constants[64];

/*
 * The cost of text[from, to), the beginning of the text being text[0], in the units of tokens/machine.h. Up to
 * text[readable] may be read, readable >= to.
 */
typedef uint64_t (*cal_token_measure)(const uint8_t *costs, const uint8_t *text, size_t from, size_t to,
                                      size_t readable);

uint64_t cal_token_measure_scalar(const uint8_t *costs, const uint8_t *text, size_t from, size_t to, size_t readable);

/* dispatch.c: NULL if features asks for what this machine or build lacks. */
const cal_vector_ops *cal_choose_vectors(uint32_t features);
const cal_sha256_ops *cal_choose_sha256(uint32_t features);
cal_token_measure cal_choose_tokens(uint32_t features);

#endif
