/* Norms, sums and scores over the reductions of one instruction set. */
#include "scoring.h"

int32_t cal_norms_f32(uint32_t features, const float *rows, size_t count, size_t dimensions, double *norms) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < count; i++) {
        /* One row against itself: the other three slots of a reduction repeat it. */
        const float *row = rows + i * dimensions;
        const float *const four[CAL_ROWS] = {row, row, row, row};
        double squares[CAL_ROWS];
        ops->dot(four, row, dimensions, squares);
        /* Squares of finite f32 cannot overflow f64, so NaN or infinity in the row shows in the sum. */
        if (!isfinite(squares[0])) {
            return CAL_E_NON_FINITE;
        }
        norms[i] = sqrt(squares[0]);
    }
    return CAL_OK;
}

int32_t cal_sums_f32(uint32_t features, int32_t metric, const float *rows, size_t count, size_t dimensions,
                     const float *query, double *sums) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    if (!cal_known_metric(metric)) {
        return CAL_E_ARGUMENT;
    }
    const cal_reduce reduce = cal_reduction(ops, metric);
    for (size_t i = 0; i < count; i += CAL_ROWS) {
        const size_t filled = count - i < CAL_ROWS ? count - i : CAL_ROWS;
        const float *four[CAL_ROWS];
        for (size_t r = 0; r < CAL_ROWS; r++) {
            four[r] = rows + (i + (r < filled ? r : 0)) * dimensions;
        }
        double reduced[CAL_ROWS];
        reduce(four, query, dimensions, reduced);
        for (size_t r = 0; r < filled; r++) {
            sums[i + r] = reduced[r];
        }
    }
    return CAL_OK;
}

int32_t cal_scores_f32(uint32_t features, int32_t metric, const cal_segment *segments, size_t segment_count,
                       size_t segment_rows, size_t dimensions, const float *query, double query_norm,
                       const int64_t *ids, size_t count, float *scores) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    if (!cal_known_metric(metric) || segment_rows == 0) {
        return CAL_E_ARGUMENT;
    }
    const cal_reduce reduce = cal_reduction(ops, metric);
    for (size_t i = 0; i < count; i += CAL_ROWS) {
        const float *rows[CAL_ROWS];
        double norms[CAL_ROWS], reduced[CAL_ROWS];
        const size_t filled = count - i < CAL_ROWS ? count - i : CAL_ROWS;
        for (size_t r = 0; r < CAL_ROWS; r++) {
            const int64_t id = ids[r < filled ? i + r : i];
            if (id < 0 || (uint64_t)id / segment_rows >= segment_count) {
                return CAL_E_ARGUMENT;
            }
            const cal_segment *segment = &segments[(size_t)id / segment_rows];
            const size_t offset = (size_t)id % segment_rows;
            if (offset >= segment->count) {
                return CAL_E_ARGUMENT;
            }
            rows[r] = segment->rows + offset * dimensions;
            norms[r] = segment->norms[offset];
        }
        reduce(rows, query, dimensions, reduced);
        for (size_t r = 0; r < filled; r++) {
            scores[i + r] = cal_to_score(metric, reduced[r], query_norm, norms[r]);
        }
    }
    return CAL_OK;
}

int32_t cal_score_batch_f32(uint32_t features, int32_t metric, const float *rows, const double *norms, size_t count,
                            size_t dimensions, const float *queries, const double *query_norms, size_t query_count,
                            float *scores) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    if (!cal_known_metric(metric)) {
        return CAL_E_ARGUMENT;
    }
    const cal_reduce reduce = cal_reduction(ops, metric);
    for (size_t i = 0; i < count; i += CAL_ROWS) {
        /* Four rows against all queries, so that the rows are read from memory once. */
        const size_t filled = count - i < CAL_ROWS ? count - i : CAL_ROWS;
        const float *four[CAL_ROWS];
        for (size_t r = 0; r < CAL_ROWS; r++) {
            four[r] = rows + (i + (r < filled ? r : 0)) * dimensions;
        }
        for (size_t q = 0; q < query_count; q++) {
            double reduced[CAL_ROWS];
            reduce(four, queries + q * dimensions, dimensions, reduced);
            for (size_t r = 0; r < filled; r++) {
                scores[q * count + i + r] = cal_to_score(metric, reduced[r], query_norms[q], norms[i + r]);
            }
        }
    }
    return CAL_OK;
}
