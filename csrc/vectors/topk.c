/*
 * Top-k. Codes (codes.h) say which rows could be among the best; only those are scored canonically.
 *
 * A search holds three things. `floors`: the k highest lower bounds seen, so that k rows are known to score at least
 * their lowest. `waiting`: rows whose upper bound was not below the threshold when they were met. `best`: rows scored
 * canonically. The threshold is the highest of min_similarity, the lowest of k floors and the lowest of k best; it
 * only rises. A row whose score is below it is worse than k other rows, or refused, so it is dropped. A row equal to
 * it is kept, for ties decide by what the codes do not know.
 */
#include "../heap.h"
#include "codes.h"

#include <string.h>

#define ALIGNMENT 64

/* Below these, scoring every row is as fast as asking its codes first (measured at 64 to 1536 dimensions). */
#define CAL_SCAN_SMALLEST 64
#define CAL_SCAN_SHARE 8 /* rows for each of the k that are wanted */

/* A row that could be among the best. */
typedef struct {
    const float *row;
    double norm;
    int64_t id;
    float upper;
} candidate;

typedef struct {
    int32_t metric;
    size_t dimensions;
    const float *query;
    double norm;
    float min_similarity, threshold;
    double limit; /* the threshold, as the filter wants it */
    heap best;
    cal_code_query codes;
    float *floors; /* a heap with the lowest at the root */
    size_t floor_count, k;
    candidate *waiting;
    size_t waiting_count, waiting_capacity;
    size_t *found;
} search;

/* How many candidates wait before they are scored. Enough that the threshold has risen by then. */
static size_t waiting_capacity(size_t k) { return 2 * k + 256; }

static size_t aligned(size_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Scratch of one query besides its search. */
static size_t query_scratch(size_t dimensions, size_t k) {
    if (!cal_codes_fit(dimensions)) {
        return 0;
    }
    return aligned(k * sizeof(float)) + aligned(waiting_capacity(k) * sizeof(candidate)) +
           cal_code_stride(dimensions);
}

size_t cal_topk_scratch(size_t dimensions, size_t k, size_t query_count) {
    if (k > SIZE_MAX / 256) {
        return SIZE_MAX;
    }
    const size_t each = aligned(sizeof(search)) + query_scratch(dimensions, k);
    return query_count > (SIZE_MAX - ALIGNMENT) / each ? SIZE_MAX : query_count * each + ALIGNMENT;
}

static void raise_threshold(search *s, float threshold) {
    if (threshold > s->threshold) {
        s->threshold = threshold;
        s->limit = cal_filter_limit(s->metric, threshold);
    }
}

/* Keeps the k highest lower bounds. */
static void add_floor(search *s, float floor) {
    float *h = s->floors;
    size_t hole;
    if (s->floor_count < s->k) {
        for (hole = s->floor_count++; hole > 0 && h[(hole - 1) / 2] > floor; hole = (hole - 1) / 2) {
            h[hole] = h[(hole - 1) / 2];
        }
    } else if (floor > h[0]) {
        for (hole = 0;;) {
            size_t child = 2 * hole + 1;
            if (child >= s->k) {
                break;
            }
            child += child + 1 < s->k && h[child + 1] < h[child];
            if (h[child] >= floor) {
                break;
            }
            h[hole] = h[child];
            hole = child;
        }
    } else {
        return;
    }
    h[hole] = floor;
    if (s->floor_count == s->k) {
        raise_threshold(s, h[0]);
    }
}

static void offer_scored(search *s, float score, int64_t id) {
    if (score >= s->min_similarity) {
        offer(&s->best, score, id);
    }
}

static void sink(candidate *h, size_t count, size_t hole) {
    const candidate moved = h[hole];
    for (;;) {
        size_t child = 2 * hole + 1;
        if (child >= count) {
            break;
        }
        child += child + 1 < count && h[child + 1].upper > h[child].upper;
        if (h[child].upper <= moved.upper) {
            break;
        }
        h[hole] = h[child];
        hole = child;
    }
    h[hole] = moved;
}

static void drop_hopeless(search *s) {
    size_t kept = 0;
    for (size_t i = 0; i < s->waiting_count; i++) {
        if (!(s->waiting[i].upper < s->threshold)) {
            s->waiting[kept++] = s->waiting[i];
        }
    }
    s->waiting_count = kept;
}

/* Scores what waits, the most promising first: what the rising threshold overtakes need not be scored. */
static void score_waiting(search *s, cal_reduce reduce) {
    drop_hopeless(s);
    candidate *h = s->waiting;
    size_t count = s->waiting_count;
    for (size_t i = count / 2; i-- > 0;) {
        sink(h, count, i);
    }
    while (count > 0 && !(h[0].upper < s->threshold)) {
        const float *rows[CAL_ROWS];
        candidate taken[CAL_ROWS];
        size_t filled = 0;
        for (; filled < CAL_ROWS && count > 0; filled++) {
            taken[filled] = h[0];
            rows[filled] = h[0].row;
            h[0] = h[--count];
            sink(h, count, 0);
        }
        for (size_t r = filled; r < CAL_ROWS; r++) {
            rows[r] = rows[0];
        }
        double reduced[CAL_ROWS];
        reduce(rows, s->query, s->dimensions, reduced);
        for (size_t r = 0; r < filled; r++) {
            offer_scored(s, cal_to_score(s->metric, reduced[r], s->norm, taken[r].norm), taken[r].id);
        }
        if (s->best.count == s->k) {
            raise_threshold(s, s->best.scores[0]);
        }
    }
    s->waiting_count = 0;
}

/* Looks closer at a row that passed the filter. */
static void consider(search *s, const cal_segment *segment, size_t i, int64_t id, int32_t dot, cal_reduce reduce) {
    const cal_bounds bounds =
        cal_score_bounds(s->metric, &s->codes, dot, segment->scales[i], segment->errors[i], segment->norms[i]);
    if (bounds.upper < s->threshold) {
        return;
    }
    add_floor(s, bounds.lower);
    if (s->waiting_count == s->waiting_capacity) {
        drop_hopeless(s);
        if (s->waiting_count > s->waiting_capacity / 2) {
            score_waiting(s, reduce);
        }
    }
    const candidate row = {segment->rows + i * s->dimensions, segment->norms[i], id, bounds.upper};
    s->waiting[s->waiting_count++] = row;
}

/* Bit i: whether row first + i takes part. */
static uint64_t taking_part(const cal_segment *segment, const uint8_t *mask, size_t first, size_t count) {
    uint64_t bits = 0;
    for (size_t i = 0; i < count; i++) {
        const int in = (!segment->live || segment->live[first + i]) && (!mask || mask[first + i]);
        bits |= (uint64_t)in << i;
    }
    return bits;
}

/* Every query over the codes of every row: a block of rows stays in the cache for all queries. */
static void search_codes(const cal_vector_ops *ops, const cal_segment *segments, size_t segment_count,
                         const uint8_t *mask, search *searches, size_t query_count) {
    const size_t dimensions = searches[0].dimensions, stride = cal_code_stride(dimensions);
    const cal_reduce reduce = cal_reduction(ops, searches[0].metric);
    int64_t base = 0;
    for (size_t g = 0; g < segment_count; g++) {
        const cal_segment *segment = &segments[g];
        const uint8_t *flags = mask ? mask + base : NULL;
        /* Where rows may be left out, in shorter blocks, of which more are empty. */
        const size_t block = flags || segment->live ? 8 : CAL_BLOCK;
        for (size_t i = 0; i < segment->count; i += block) {
            const size_t count = segment->count - i < block ? segment->count - i : block;
            uint64_t in = ~UINT64_C(0);
            if (block != CAL_BLOCK && (in = taking_part(segment, flags, i, count)) == 0) {
                continue;
            }
            for (size_t q = 0; q < query_count; q++) {
                search *s = &searches[q];
                int32_t dots[CAL_BLOCK];
                ops->code_dots(segment->codes + i * stride, stride, count, s->codes.codes, dots);
                uint64_t passed = in & ops->code_filter(s->metric, &s->codes, dots, segment->scales + i,
                                                        segment->errors + i, segment->norms + i, count, s->limit);
                for (; passed; passed &= passed - 1) {
                    const size_t at = (size_t)__builtin_ctzll(passed);
                    consider(s, segment, i + at, base + (int64_t)(i + at), dots[at], reduce);
                }
            }
        }
        base += (int64_t)segment->count;
    }
    for (size_t q = 0; q < query_count; q++) {
        score_waiting(&searches[q], reduce);
    }
}

/* Every query against every row, canonically. */
static void search_rows(const cal_vector_ops *ops, const cal_segment *segments, size_t segment_count,
                        const uint8_t *mask, search *searches, size_t query_count) {
    const size_t dimensions = searches[0].dimensions;
    const cal_reduce reduce = cal_reduction(ops, searches[0].metric);
    int64_t base = 0;
    for (size_t g = 0; g < segment_count; g++) {
        const cal_segment *segment = &segments[g];
        size_t i = 0;
        while (i < segment->count) {
            /* The next four rows that take part, wherever they are in the segment. */
            const float *rows[CAL_ROWS];
            size_t at[CAL_ROWS], filled = 0;
            for (; i < segment->count && filled < CAL_ROWS; i++) {
                if ((!segment->live || segment->live[i]) && (!mask || mask[(size_t)base + i])) {
                    at[filled] = i;
                    rows[filled++] = segment->rows + i * dimensions;
                }
            }
            if (filled == 0) {
                break;
            }
            for (size_t r = filled; r < CAL_ROWS; r++) {
                rows[r] = rows[0];
            }
            for (size_t q = 0; q < query_count; q++) {
                search *s = &searches[q];
                double reduced[CAL_ROWS];
                reduce(rows, s->query, dimensions, reduced);
                for (size_t r = 0; r < filled; r++) {
                    const float score = cal_to_score(s->metric, reduced[r], s->norm, segment->norms[at[r]]);
                    offer_scored(s, score, base + (int64_t)at[r]);
                }
            }
        }
        base += (int64_t)segment->count;
    }
}

/* Codes cost a pass of their own, which pays when most of the rows that a mask lets through need no other. */
static int codes_pay(const cal_segment *segments, size_t segment_count, size_t dimensions, const uint8_t *mask,
                     size_t k) {
    size_t count = 0, base = 0;
    for (size_t g = 0; g < segment_count; g++) {
        if (segments[g].count > 0 && !segments[g].codes) {
            return 0;
        }
        for (size_t i = 0; mask && i < segments[g].count; i++) {
            count += mask[base + i] != 0;
        }
        base += segments[g].count;
    }
    count = mask ? count : base;
    return cal_codes_fit(dimensions) && count >= CAL_SCAN_SMALLEST && count / CAL_SCAN_SHARE >= k;
}

/* Gives a search its part of the scratch and codes its query; returns where the next part begins. */
static uint8_t *prepare_codes(search *s, uint8_t *scratch) {
    s->floors = (float *)(void *)scratch;
    scratch += aligned(s->k * sizeof(float));
    s->waiting = (candidate *)(void *)scratch;
    s->waiting_capacity = waiting_capacity(s->k);
    scratch += aligned(s->waiting_capacity * sizeof(candidate));
    cal_code_query_f32(s->query, s->norm, s->dimensions, (int8_t *)scratch, &s->codes);
    return scratch + cal_code_stride(s->dimensions);
}

int32_t cal_topk_f32(uint32_t features, int32_t metric, const cal_segment *segments, size_t segment_count,
                     size_t dimensions, const float *queries, size_t query_count, size_t k, float min_similarity,
                     const uint8_t *mask, const uint64_t *tie, void *scratch, size_t scratch_size, int64_t *ids,
                     float *scores, size_t *found) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    if (!cal_known_metric(metric) || scratch_size < cal_topk_scratch(dimensions, k, query_count)) {
        return CAL_E_ARGUMENT;
    }
    uint8_t *free_scratch = (uint8_t *)scratch + (ALIGNMENT - (uintptr_t)scratch % ALIGNMENT) % ALIGNMENT;
    search *searches = (search *)(void *)free_scratch;
    free_scratch += aligned(query_count * sizeof(search));
    const int use_codes = codes_pay(segments, segment_count, dimensions, mask, k);
    /* Searches with codes first; a query of length 0 has no direction and scores every row. */
    size_t coded = 0, uncoded = query_count;
    for (size_t q = 0; q < query_count; q++) {
        double norm;
        const int32_t status = cal_norms_f32(features, queries + q * dimensions, 1, dimensions, &norm);
        if (status != CAL_OK) {
            return status;
        }
        const int codes = use_codes && norm > 0.0;
        search *s = &searches[codes ? coded++ : --uncoded];
        memset(s, 0, sizeof *s);
        s->metric = metric;
        s->dimensions = dimensions;
        s->query = queries + q * dimensions;
        s->norm = norm;
        s->min_similarity = min_similarity;
        s->threshold = -INFINITY;
        s->limit = -INFINITY;
        raise_threshold(s, min_similarity);
        s->best = (heap){ids + q * k, scores + q * k, tie, NULL, 0, k};
        s->k = k;
        s->found = &found[q];
        if (codes) {
            free_scratch = prepare_codes(s, free_scratch);
        }
    }
    if (k > 0 && coded > 0) {
        search_codes(ops, segments, segment_count, mask, searches, coded);
    }
    if (k > 0 && uncoded < query_count) {
        search_rows(ops, segments, segment_count, mask, searches + uncoded, query_count - uncoded);
    }
    for (size_t q = 0; q < query_count; q++) {
        sort_heap(&searches[q].best);
        *searches[q].found = searches[q].best.count;
    }
    return CAL_OK;
}

int32_t cal_score_bounds_f32(uint32_t features, int32_t metric, const cal_segment *segment, size_t dimensions,
                             const float *query, float threshold, int8_t *query_codes, float *lower, float *upper,
                             uint8_t *passed) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    double norm;
    const int32_t status = cal_norms_f32(features, query, 1, dimensions, &norm);
    if (status != CAL_OK) {
        return status;
    }
    if (!cal_known_metric(metric) || !cal_codes_fit(dimensions) || !segment->codes || norm == 0.0) {
        return CAL_E_ARGUMENT;
    }
    const size_t stride = cal_code_stride(dimensions);
    cal_code_query codes;
    cal_code_query_f32(query, norm, dimensions, query_codes, &codes);
    for (size_t i = 0; i < segment->count; i += CAL_BLOCK) {
        const size_t count = segment->count - i < CAL_BLOCK ? segment->count - i : CAL_BLOCK;
        int32_t dots[CAL_BLOCK];
        ops->code_dots(segment->codes + i * stride, stride, count, codes.codes, dots);
        const uint64_t bits =
            ops->code_filter(metric, &codes, dots, segment->scales + i, segment->errors + i, segment->norms + i,
                             count, cal_filter_limit(metric, threshold));
        for (size_t r = 0; r < count; r++) {
            const cal_bounds bounds = cal_score_bounds(metric, &codes, dots[r], segment->scales[i + r],
                                                       segment->errors[i + r], segment->norms[i + r]);
            lower[i + r] = bounds.lower;
            upper[i + r] = bounds.upper;
            passed[i + r] = (uint8_t)(bits >> r & 1);
        }
    }
    return CAL_OK;
}
