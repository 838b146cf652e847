/*
 * Canonical reductions and codes with NEON, which every 64-bit ARM has. A register holds two lanes; a multiplication
 * and an addition, never vfmaq, so each lane sees the additions of the scalar code. Eight floats of the query are
 * widened once for four rows, whose sixteen sums and the four of the query fit the 32 registers.
 */
#include "codes.h"

#include <arm_neon.h>
#include <string.h>

#define LANES 8

typedef struct {
    float64x2_t p01, p23, p45, p67;
} lanes;

static inline lanes load_lanes(const float *from) {
    const float32x4_t low = vld1q_f32(from), high = vld1q_f32(from + 4);
    const lanes l = {vcvt_f64_f32(vget_low_f32(low)), vcvt_high_f64_f32(low), vcvt_f64_f32(vget_low_f32(high)),
                     vcvt_high_f64_f32(high)};
    return l;
}

/* The last dimensions % 8 floats, padded with zeros; reading past a row's end could leave its page. */
static inline lanes load_tail(const float *from, size_t count) {
    float padded[LANES] = {0};
    memcpy(padded, from, count * sizeof(float));
    return load_lanes(padded);
}

static inline double fold(lanes l) {
    const float64x2_t a_b = vaddq_f64(l.p01, l.p45), c_d = vaddq_f64(l.p23, l.p67);
    return vpaddd_f64(vaddq_f64(a_b, c_d));
}

static inline float64x2_t add_product(float64x2_t sum, float64x2_t row, float64x2_t query) {
    return vaddq_f64(sum, vmulq_f64(row, query));
}

static inline float64x2_t add_square(float64x2_t sum, float64x2_t row, float64x2_t query) {
    const float64x2_t difference = vsubq_f64(row, query);
    return vaddq_f64(sum, vmulq_f64(difference, difference));
}

#define ADD_LANES(ADD, SUMS, ROW, QUERY)                                                                               \
    do {                                                                                                               \
        const lanes row = ROW;                                                                                         \
        SUMS.p01 = ADD(SUMS.p01, row.p01, QUERY.p01);                                                                  \
        SUMS.p23 = ADD(SUMS.p23, row.p23, QUERY.p23);                                                                  \
        SUMS.p45 = ADD(SUMS.p45, row.p45, QUERY.p45);                                                                  \
        SUMS.p67 = ADD(SUMS.p67, row.p67, QUERY.p67);                                                                  \
    } while (0)

/* The sums of each row are a variable of their own: an array of them would be kept in memory. */
#define REDUCE(NAME, ADD)                                                                                              \
    void NAME(const float *const rows[CAL_ROWS], const float *query, size_t dimensions, double out[CAL_ROWS]) {        \
        const float *const r0 = rows[0], *const r1 = rows[1], *const r2 = rows[2], *const r3 = rows[3];                \
        const float64x2_t zero = vdupq_n_f64(0.0);                                                                     \
        lanes a = {zero, zero, zero, zero}, b = a, c = a, d = a;                                                       \
        const size_t whole = dimensions - dimensions % LANES, rest = dimensions - whole;                               \
        for (size_t i = 0; i < whole; i += LANES) {                                                                    \
            const lanes q = load_lanes(query + i);                                                                     \
            ADD_LANES(ADD, a, load_lanes(r0 + i), q);                                                                  \
            ADD_LANES(ADD, b, load_lanes(r1 + i), q);                                                                  \
            ADD_LANES(ADD, c, load_lanes(r2 + i), q);                                                                  \
            ADD_LANES(ADD, d, load_lanes(r3 + i), q);                                                                  \
        }                                                                                                              \
        if (rest > 0) {                                                                                                \
            const lanes q = load_tail(query + whole, rest);                                                            \
            ADD_LANES(ADD, a, load_tail(r0 + whole, rest), q);                                                         \
            ADD_LANES(ADD, b, load_tail(r1 + whole, rest), q);                                                         \
            ADD_LANES(ADD, c, load_tail(r2 + whole, rest), q);                                                         \
            ADD_LANES(ADD, d, load_tail(r3 + whole, rest), q);                                                         \
        }                                                                                                              \
        out[0] = fold(a);                                                                                              \
        out[1] = fold(b);                                                                                              \
        out[2] = fold(c);                                                                                              \
        out[3] = fold(d);                                                                                              \
    }

REDUCE(cal_dot_neon, add_product)
REDUCE(cal_squared_distance_neon, add_square)

/*
 * Codes are stored with 128 added. Taking it off makes them signed bytes (r ^ 0x80 is r - 128 as int8_t), as those of
 * the query are, and 128 times the sum of the query's codes makes up for it.
 */
static inline int8x16_t load_codes(const uint8_t *from) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from), vdupq_n_u8(128)));
}

/* Adds 16 products. Two of them fit 16 bits: 2 * 128 * 127 < 2^15. */
static inline int32x4_t add_code_products(int32x4_t sum, int8x16_t codes, int8x16_t query) {
    const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(query));
    return vpadalq_s16(sum, vmlal_high_s8(low, codes, query));
}

static inline int32_t offset_of(const int8_t *query, size_t stride) {
    int32x4_t sum = vdupq_n_s32(0);
    for (size_t j = 0; j < stride; j += 16) {
        sum = vpadalq_s16(sum, vpaddlq_s8(vld1q_s8(query + j)));
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
            a = add_code_products(a, load_codes(codes + j), q);
            b = add_code_products(b, load_codes(codes + stride + j), q);
            c = add_code_products(c, load_codes(codes + 2 * stride + j), q);
            d = add_code_products(d, load_codes(codes + 3 * stride + j), q);
        }
        const int32x4_t sums = vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
        vst1q_s32(dots + i, vaddq_s32(sums, vdupq_n_s32(offset)));
    }
    for (; i < count; i++, codes += stride) {
        int32x4_t a = vdupq_n_s32(0);
        for (size_t j = 0; j < stride; j += 16) {
            a = add_code_products(a, load_codes(codes + j), vld1q_s8(query + j));
        }
        dots[i] = vaddvq_s32(a) + offset;
    }
}

/* Bit e: whether element e of a comparison is false. */
static inline uint64_t failed(uint32x4_t compared) {
    const uint32x4_t bits = {1, 2, 4, 8};
    return vaddvq_u32(vbicq_u32(bits, compared));
}

/* Two rows of a metric other than the cosine, in f64: what the filter of the scalar code calls upper. */
static inline float64x2_t upper_two(int32_t metric, const cal_code_query *query, int32x2_t dots, float32x2_t scales,
                                    float32x2_t errors, float64x2_t norms) {
    const float64x2_t dot = vcvtq_f64_s64(vmovl_s32(vsub_s32(dots, vdup_n_s32(query->offset))));
    const float64x2_t scaled = vmulq_n_f64(vmulq_f64(dot, vcvt_f64_f32(scales)), query->scale);
    const float64x2_t error = vmulq_n_f64(vcvt_f64_f32(errors), 1.0 + query->error);
    const float64x2_t cosine = vaddq_f64(scaled, vaddq_f64(error, vdupq_n_f64(query->error + CAL_CODE_SLACK)));
    const float64x2_t product = vmulq_n_f64(vmulq_f64(cosine, norms), query->norm);
    if (metric != CAL_METRIC_L2) {
        return product;
    }
    const float64x2_t squares = vaddq_f64(vmulq_f64(norms, norms), vdupq_n_f64(query->norm * query->norm));
    return vsubq_f64(vaddq_f64(product, product), vmulq_n_f64(squares, 1.0 - CAL_CODE_SLACK));
}

uint64_t cal_code_filter_neon(int32_t metric, const cal_code_query *query, const int32_t *dots, const float *scales,
                              const float *errors, const double *norms, size_t count, double limit) {
    uint64_t passed = 0;
    size_t i = 0;
    if (metric == CAL_METRIC_COSINE) {
        const float weight = (float)((1.0 + query->error) / query->scale);
        const float32x4_t least = vdupq_n_f32((float)((limit - query->error - CAL_FILTER_SLACK) / query->scale));
        const int32x4_t offset = vdupq_n_s32(query->offset);
        for (; i + 4 <= count; i += 4) {
            const float32x4_t dot = vcvtq_f32_s32(vsubq_s32(vld1q_s32(dots + i), offset));
            const float32x4_t upper =
                vaddq_f32(vmulq_f32(dot, vld1q_f32(scales + i)), vmulq_n_f32(vld1q_f32(errors + i), weight));
            passed |= failed(vcltq_f32(upper, least)) << i;
        }
    } else {
        const float64x2_t least = vdupq_n_f64(limit);
        for (; i + 4 <= count; i += 4) {
            const int32x4_t four = vld1q_s32(dots + i);
            const float32x4_t scale = vld1q_f32(scales + i), error = vld1q_f32(errors + i);
            const float64x2_t low = upper_two(metric, query, vget_low_s32(four), vget_low_f32(scale),
                                              vget_low_f32(error), vld1q_f64(norms + i));
            const float64x2_t high = upper_two(metric, query, vget_high_s32(four), vget_high_f32(scale),
                                               vget_high_f32(error), vld1q_f64(norms + i + 2));
            const uint32x2_t below = vmovn_u64(vcltq_f64(low, least)), above = vmovn_u64(vcltq_f64(high, least));
            passed |= failed(vcombine_u32(below, above)) << i;
        }
    }
    if (i < count) {
        passed |= cal_code_filter_scalar(metric, query, dots + i, scales + i, errors + i, norms + i, count - i, limit)
                  << i;
    }
    return passed;
}

const cal_vector_ops cal_vectors_neon = {cal_dot_neon, cal_squared_distance_neon, code_dots, cal_code_filter_neon};
