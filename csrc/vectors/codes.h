/*
 * Codes: rows in one byte an element, and bounds on what they stand for.
 *
 * A top-k search reads the codes of every row, which are a quarter of the rows, and scores canonically only the rows
 * whose bounds say that they could still be among the best. The result is that of scoring every row.
 *
 * What is stored. For a row x of length N > 0, with unit vector u = x / N:
 *   scale a (f32)     the largest |u_i| / 127
 *   codes r_i         u_i / a rounded, in [-127, 127], kept as r_i + 128; padded with 128 to a multiple of 64
 *   error b (f32)     at least |u - a r|, the length of what the codes leave out
 * A row of length 0 has a = b = 0. A query q of length M > 0 has in the same way codes p_i, a scale s (f64) and an
 * error h >= |v - s p| for its unit vector v. Its scale is the smallest for which |p_2i| + |p_2i+1| <= 128, so that
 * (r + 128) p summed over two neighbours, at most 255 * 128, fits 16 bits: what maddubs needs.
 *
 * The bound. With I the integer sum of r_i p_i, e = u - a r, f = v - s p, and the Cauchy-Schwarz inequality
 *   u.v = (a r + e).v = a r.(s p + f) + e.v = a s I + a r.f + e.v
 *   |u.v - a s I| <= |a r| |f| + |e| |v| <= (1 + b) h + b                       as |a r| <= |u| + |e| <= 1 + b
 *
 * Rounding. Every f64 quantity below has a relative error under 2^-33: sums of at most 2^16 terms in eight lanes lose
 * under 2^14 * 2^-53, and products of f32 are exact in f64 and cannot underflow there. What is computed of e is off
 * by less than 2^-33 in length; the stored errors are made larger by 2^-20 of themselves and 2^-30 besides, which
 * covers that and their rounding to f32 (2^-24). The canonical sums differ from the true ones by less than 2^-32 N M.
 * CAL_CODE_SLACK = 2^-30, added to the bound of u.v, covers both and the f64 arithmetic of the bound itself.
 *   cosine         canonical f64 in [C - E, C + E], C = a s I, E = (1 + b) h + b + slack
 *   inner product  canonical f64 in N M [C - E, C + E], N and M as stored
 *   l2             |x - q|^2 = N^2 + M^2 - 2 N M u.v; canonical sum of squares within
 *                  N^2 + M^2 - 2 N M (C +- E) -+ slack (N^2 + M^2)
 * Correctly rounded division, square root and conversion to f32 never turn a larger argument into a smaller result,
 * so cal_to_score of these ends are bounds of the f32 score, overflow to infinity and equal scores included.
 *
 * The filter does the same in f32 for eight rows at once, on the safe side: dividing by s, a row passes unless
 *   I a + b (1 + h) / s < (limit - h - CAL_FILTER_SLACK) / s
 * In units of the cosine, |s I a| <= (1 + b)(1 + h) <= 4 and b (1 + h) <= 2: converting I, three products, two
 * constants and one addition round by 2^-24 each, together less than 2^-19; CAL_FILTER_SLACK is 2^-18. For the other
 * metrics it works in f64, where CAL_CODE_SLACK suffices.
 */
#ifndef CALIBER_CODES_H
#define CALIBER_CODES_H

#include "scoring.h"

#define CAL_CODE_STEP 64           /* codes of a row are padded to a multiple of this */
#define CAL_CODE_SMALLEST 64       /* fewer dimensions are scored faster than looked up */
#define CAL_CODE_LARGEST (1 << 16) /* 255 * 64 * 2^16 < 2^31: sums fit 32 bits */
#define CAL_CODE_SLACK (1.0 / (1 << 30))
#define CAL_FILTER_SLACK (1.0 / (1 << 18))

static inline size_t cal_code_stride(size_t dimensions) {
    return (dimensions + CAL_CODE_STEP - 1) / CAL_CODE_STEP * CAL_CODE_STEP;
}

static inline int cal_codes_fit(size_t dimensions) {
    return dimensions >= CAL_CODE_SMALLEST && dimensions <= CAL_CODE_LARGEST;
}

/* Codes a query of a length above 0; codes: stride bytes. */
void cal_code_query_f32(const float *query, double norm, size_t dimensions, int8_t *codes, cal_code_query *out);

typedef struct {
    float lower, upper;
} cal_bounds;

/* The ends between which the score of a row lies whose codes give dot. */
static inline cal_bounds cal_score_bounds(int32_t metric, const cal_code_query *query, int32_t dot, float scale,
                                          float error, double norm) {
    const double middle = (double)(dot - query->offset) * ((double)scale * query->scale);
    const double radius = (1.0 + (double)error) * query->error + (double)error + CAL_CODE_SLACK;
    const double low = middle - radius, high = middle + radius;
    cal_bounds bounds;
    if (metric == CAL_METRIC_L2) {
        const double squares = norm * norm + query->norm * query->norm, twice = 2.0 * norm * query->norm;
        const double most = squares - twice * low + CAL_CODE_SLACK * squares;
        const double least = squares - twice * high - CAL_CODE_SLACK * squares;
        bounds.lower = cal_to_score(metric, most > 0.0 ? most : 0.0, 0.0, 0.0);
        bounds.upper = cal_to_score(metric, least > 0.0 ? least : 0.0, 0.0, 0.0);
    } else {
        /* A cosine is bounded itself, not by way of the product; its clamp keeps the order too. */
        const double unit = metric == CAL_METRIC_COSINE ? 1.0 : norm * query->norm;
        bounds.lower = (float)(metric == CAL_METRIC_COSINE && low < -1.0 ? -1.0 : low * unit);
        bounds.upper = (float)(metric == CAL_METRIC_COSINE && high > 1.0 ? 1.0 : high * unit);
    }
    return bounds;
}

/*
 * What the filter compares with, from a score: rows whose score is at least threshold have a cosine, a product, or
 * (l2) minus a squared distance, of at least the limit. One f32 below covers the rounding of the score.
 */
static inline double cal_filter_limit(int32_t metric, float threshold) {
    const double below = (double)nextafterf(threshold, -INFINITY);
    if (metric != CAL_METRIC_L2) {
        return below;
    }
    if (!(below > 0.0)) {
        return -INFINITY;
    }
    /* 1 / (1 + d) >= below, hence d <= 1 / below - 1, all enlarged by more than f64 rounds. */
    const double larger = 1.0 + 1.0 / (1LL << 40);
    const double distance = larger / below - 1.0;
    return distance < 0.0 ? INFINITY : -(distance * distance * larger);
}

#endif
