/*
 * Top-k. Codes (codes.h) say which rows could be among the best; only those are scored canonically.
 *
 * A search holds three things. `bins`: how many lower bounds were seen, by size, so that k rows are known to score at
 * least the lowest of the bin where the k highest end. `waiting`: rows whose upper bound was not below the threshold
 * when they were met. `best`: rows scored canonically. The threshold is the highest of min_similarity, that lowest
 * bound and the lowest of k best; it only rises. A row whose score is below it is worse than k other rows, or refused,
 * so it is dropped. A row equal to it is kept, for ties decide by what the codes do not know.
 */
#include "../heap.h"
#include "codes.h"

#include <string.h>

#define ALIGNMENT 64

/* Below these, scoring every row is as fast as asking its codes first (measured at 64 to 1536 dimensions). */
#define CAL_SCAN_SMALLEST 64
#define CAL_SHORT_BLOCK 8
#define CAL_SCAN_SHARE 8 /* rows for each of the k that are wanted */

/* A row that could be among the best. */
typedef struct {
    const float *row;
    double norm;
    int64_t id;
    float upper;
} candidate;

/* Bounds by size, in bins of a 512th of the largest score: a fifteenth of what codes leave open at 256 dimensions. */
#define CAL_BINS 1024

/* The lower bounds of one bin; `lowest` holds once there is one. */
typedef struct {
    uint32_t count;
    float lowest;
} floors;

typedef struct {
    int32_t metric;
    size_t dimensions;
    const float *query;
    double norm;
    float min_similarity, threshold;
    double limit; /* the threshold, as the filter wants it */
    heap best;
    cal_code_query codes;
    double bin_scale, bin_offset; /* bring scores between 0 and CAL_BINS */
    floors *bins;
    size_t lowest_bin, above, k; /* above: how many bounds are in lowest_bin and those after it */
    candidate *waiting;
    uint32_t *order, *places;
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
    return aligned(CAL_BINS * sizeof(floors)) + aligned(waiting_capacity(k) * sizeof(candidate)) +
           aligned(waiting_capacity(k) * sizeof(uint32_t)) + aligned(CAL_BINS * sizeof(uint32_t)) +
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

/* The bin of a bound: never a lower one for a higher bound. */
static size_t bin_of(const search *s, float bound) {
    const double at = (double)bound * s->bin_scale + s->bin_offset;
    return !(at > 0.0) ? 0 : at < CAL_BINS - 1 ? (size_t)at : CAL_BINS - 1;
}

/* Counts a lower bound, and raises the threshold to what k rows are known to score. */
static void add_floor(search *s, float floor) {
    if (floor < s->threshold) {
        return;
    }
    const size_t bin = bin_of(s, floor);
    floors *one = &s->bins[bin];
    if (one->count++ == 0 || floor < one->lowest) {
        one->lowest = floor;
    }
    s->above += bin >= s->lowest_bin;
    if (s->above >= s->k) {
        while (s->above - s->bins[s->lowest_bin].count >= s->k) {
            s->above -= s->bins[s->lowest_bin++].count;
        }
        raise_threshold(s, s->bins[s->lowest_bin].lowest);
    }
}

static void offer_scored(search *s, float score, int64_t id) {
    if (score >= s->min_similarity) {
        offer_late(&s->best, score, id);
    }
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

/* Puts what waits in order, the most promising bins first. */
static void order_waiting(search *s) {
    uint32_t *places = s->places, next = 0;
    memset(places, 0, CAL_BINS * sizeof *places);
    for (size_t i = 0; i < s->waiting_count; i++) {
        places[bin_of(s, s->waiting[i].upper)]++;
    }
    for (size_t bin = CAL_BINS; bin-- > 0;) {
        const uint32_t count = places[bin];
        places[bin] = next;
        next += count;
    }
    for (size_t i = 0; i < s->waiting_count; i++) {
        s->order[places[bin_of(s, s->waiting[i].upper)]++] = (uint32_t)i;
    }
}

/* Scores what waits, the most promising first: what the rising threshold overtakes need not be scored. */
static void score_waiting(search *s, cal_reduce reduce) {
    drop_hopeless(s);
    order_waiting(s);
    for (size_t i = 0; i < s->waiting_count;) {
        const float *rows[CAL_ROWS];
        const candidate *taken[CAL_ROWS];
        size_t filled = 0;
        for (; i < s->waiting_count && filled < CAL_ROWS; i++) {
            const candidate *next = &s->waiting[s->order[i]];
            if (!(next->upper < s->threshold)) {
                taken[filled] = next;
                rows[filled++] = next->row;
            }
        }
        if (filled == 0) {
            break;
        }
        for (size_t r = filled; r < CAL_ROWS; r++) {
            rows[r] = rows[0];
        }
        double reduced[CAL_ROWS];
        reduce(rows, s->query, s->dimensions, reduced);
        for (size_t r = 0; r < filled; r++) {
            offer_scored(s, cal_to_score(s->metric, reduced[r], s->norm, taken[r]->norm), taken[r]->id);
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

/* Bit i: whether flag i is set. */
static uint64_t set_flags(const uint8_t *flags, size_t count) {
    uint64_t bits = 0;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t eight;
        memcpy(&eight, flags + i, sizeof eight);
        if (eight == UINT64_C(0x0101010101010101)) {
            bits |= UINT64_C(0xff) << i;
        } else if (eight != 0) {
            for (size_t j = i; j < i + 8; j++) {
                bits |= (uint64_t)(flags[j] != 0) << j;
            }
        }
    }
    for (; i < count; i++) {
        bits |= (uint64_t)(flags[i] != 0) << i;
    }
    return bits;
}

/* Bit i: whether row first + i takes part. */
static uint64_t taking_part(const cal_segment *segment, const uint8_t *mask, size_t first, size_t count) {
    uint64_t bits = ~UINT64_C(0);
    if (segment->live) {
        bits &= set_flags(segment->live + first, count);
    }
    return mask ? bits & set_flags(mask + first, count) : bits;
}

/* Every query over the codes of rows that follow each other; `in` has a bit for each that takes part. */
static void search_block(const cal_vector_ops *ops, const cal_segment *segment, size_t first, size_t count, uint64_t in,
                         int64_t base, search *searches, size_t query_count, cal_reduce reduce) {
    const size_t stride = cal_code_stride(searches[0].dimensions);
    for (size_t q = 0; q < query_count; q++) {
        search *s = &searches[q];
        int32_t dots[CAL_BLOCK];
        ops->code_dots(segment->codes + first * stride, stride, count, s->codes.codes, dots);
        uint64_t passed = in & ops->code_filter(s->metric, &s->codes, dots, segment->scales + first,
                                                segment->errors + first, segment->norms + first, count, s->limit);
        for (; passed; passed &= passed - 1) {
            const size_t at = (size_t)__builtin_ctzll(passed);
            consider(s, segment, first + at, base + (int64_t)(first + at), dots[at], reduce);
        }
    }
}

/* A block of rows stays in the cache for all queries. */
static void search_codes(const cal_vector_ops *ops, const cal_segment *segments, size_t segment_count,
                         const uint8_t *mask, search *searches, size_t query_count) {
    const cal_reduce reduce = cal_reduction(ops, searches[0].metric);
    int64_t base = 0;
    for (size_t g = 0; g < segment_count; g++) {
        const cal_segment *segment = &segments[g];
        const uint8_t *flags = mask ? mask + base : NULL;
        for (size_t i = 0; i < segment->count; i += CAL_BLOCK) {
            const size_t count = segment->count - i < CAL_BLOCK ? segment->count - i : CAL_BLOCK;
            const uint64_t in = taking_part(segment, flags, i, count);
            if (!~in) {
                search_block(ops, segment, i, count, in, base, searches, query_count, reduce);
                continue;
            }
            /* Where rows are left out, in shorter blocks, of which more are empty. */
            for (size_t j = 0; j < count; j += CAL_SHORT_BLOCK) {
                const uint64_t some = in >> j & ((UINT64_C(1) << CAL_SHORT_BLOCK) - 1);
                const size_t left = count - j < CAL_SHORT_BLOCK ? count - j : CAL_SHORT_BLOCK;
                if (some) {
                    search_block(ops, segment, i + j, left, some, base, searches, query_count, reduce);
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
        const uint8_t *flags = mask ? mask + base : NULL;
        uint64_t in = 0;
        for (size_t next = 0;;) {
            /* The next four rows that take part, wherever they are in the segment; `in` has those below next. */
            const float *rows[CAL_ROWS];
            size_t at[CAL_ROWS], filled = 0;
            while (filled < CAL_ROWS) {
                while (!in && next < segment->count) {
                    const size_t count = segment->count - next < CAL_BLOCK ? segment->count - next : CAL_BLOCK;
                    in = taking_part(segment, flags, next, count);
                    in &= ~UINT64_C(0) >> (CAL_BLOCK - count);
                    next += CAL_BLOCK;
                }
                if (!in) {
                    break;
                }
                at[filled] = next - CAL_BLOCK + (size_t)__builtin_ctzll(in);
                in &= in - 1;
                rows[filled] = segment->rows + at[filled] * dimensions;
                filled++;
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

/* The length of the longest row; 1 where all are zero. */
static double longest(const cal_segment *segments, size_t segment_count) {
    double most = 0.0;
    for (size_t g = 0; g < segment_count; g++) {
        for (size_t i = 0; i < segments[g].count; i++) {
            most = segments[g].norms[i] > most ? segments[g].norms[i] : most;
        }
    }
    return most > 0.0 ? most : 1.0;
}

/* Gives a search its part of the scratch and codes its query; returns where the next part begins. */
static uint8_t *prepare_codes(search *s, uint8_t *scratch) {
    s->bins = (floors *)(void *)scratch;
    memset(s->bins, 0, CAL_BINS * sizeof *s->bins);
    scratch += aligned(CAL_BINS * sizeof(floors));
    s->waiting = (candidate *)(void *)scratch;
    s->waiting_capacity = waiting_capacity(s->k);
    scratch += aligned(s->waiting_capacity * sizeof(candidate));
    s->order = (uint32_t *)(void *)scratch;
    scratch += aligned(s->waiting_capacity * sizeof(uint32_t));
    s->places = (uint32_t *)(void *)scratch;
    scratch += aligned(CAL_BINS * sizeof(uint32_t));
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
    const double reach = use_codes && metric == CAL_METRIC_INNER_PRODUCT ? longest(segments, segment_count) : 1.0;
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
            /* L2 is a similarity above 0, a cosine has both signs, and a product those of the longest row. */
            s->bin_offset = metric == CAL_METRIC_L2 ? 0.0 : CAL_BINS / 2;
            s->bin_scale = (CAL_BINS - s->bin_offset) / (metric == CAL_METRIC_INNER_PRODUCT ? norm * reach : 1.0);
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
        if (searches[q].best.count < k) {
            make_heap(&searches[q].best);
        }
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
        const uint64_t bits = ops->code_filter(metric, &codes, dots, segment->scales + i, segment->errors + i,
                                               segment->norms + i, count, cal_filter_limit(metric, threshold));
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
