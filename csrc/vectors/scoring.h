/* What decides a score, written once for every file that scores. See "Canonical scores" in caliber.h. */
#ifndef CALIBER_SCORING_H
#define CALIBER_SCORING_H

#include "../internal.h"

#include <math.h>

static inline float cal_to_score(int32_t metric, double reduced, double query_norm, double row_norm) {
    if (metric == CAL_METRIC_L2) {
        return (float)(1.0 / (1.0 + sqrt(reduced)));
    }
    if (metric == CAL_METRIC_COSINE) {
        const double scale = query_norm * row_norm;
        if (scale == 0.0) {
            return 0.0F;
        }
        const double cosine = reduced / scale;
        return (float)(cosine > 1.0 ? 1.0 : cosine < -1.0 ? -1.0 : cosine);
    }
    return (float)reduced;
}

static inline int cal_known_metric(int32_t metric) {
    return metric == CAL_METRIC_COSINE || metric == CAL_METRIC_L2 || metric == CAL_METRIC_INNER_PRODUCT;
}

static inline cal_reduce cal_reduction(const cal_vector_ops *ops, int32_t metric) {
    return metric == CAL_METRIC_L2 ? ops->squared_distance : ops->dot;
}

#endif
