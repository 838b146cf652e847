/* Near pairs, and groups of near rows: every row against every later one, by codes (codes.h) first. */
#include "codes.h"

/* Pairs kept, as a heap with the worst at the root. */
typedef struct {
    int64_t *left, *right;
    float *scores;
    size_t count, capacity;
} pair_heap;

typedef struct {
    int64_t left, right;
    float score;
} pair;

static pair pair_at(const pair_heap *h, size_t i) {
    const pair p = {h->left[i], h->right[i], h->scores[i]};
    return p;
}

static void put_pair(pair_heap *h, size_t i, pair p) {
    h->left[i] = p.left;
    h->right[i] = p.right;
    h->scores[i] = p.score;
}

static int pair_precedes(pair a, pair b) {
    if (a.score != b.score) {
        return a.score > b.score;
    }
    return a.left != b.left ? a.left < b.left : a.right < b.right;
}

static void pair_sift_down(pair_heap *h, size_t hole, pair p) {
    for (;;) {
        size_t child = 2 * hole + 1;
        if (child >= h->count) {
            break;
        }
        if (child + 1 < h->count && pair_precedes(pair_at(h, child), pair_at(h, child + 1))) {
            child++;
        }
        if (!pair_precedes(p, pair_at(h, child))) {
            break;
        }
        put_pair(h, hole, pair_at(h, child));
        hole = child;
    }
    put_pair(h, hole, p);
}

/* Returns 1 if a pair had to be dropped. */
static int32_t pair_offer(pair_heap *h, pair p) {
    if (h->count == h->capacity) {
        if (h->capacity > 0 && pair_precedes(p, pair_at(h, 0))) {
            pair_sift_down(h, 0, p);
        }
        return 1;
    }
    size_t hole = h->count++;
    while (hole > 0) {
        const size_t parent = (hole - 1) / 2;
        const pair above = pair_at(h, parent);
        if (!pair_precedes(above, p)) {
            break;
        }
        put_pair(h, hole, above);
        hole = parent;
    }
    put_pair(h, hole, p);
    return 0;
}

/* Rows looked at together: their codes and those of a block of later rows fit the first cache. */
#define TOGETHER CAL_PAIR_ROWS

typedef struct {
    const cal_vector_ops *ops;
    const cal_segment *segment;
    size_t dimensions;
    float threshold;
    double limit; /* what the filter compares with: rises once pairs are dropped */
    pair_heap best;
    int32_t truncated;
    int64_t *leader; /* of groups, instead of pairs; else NULL */
    /* Rows whose pair with row `left` is to be scored, at most four. */
    size_t left, right[CAL_ROWS], waiting;
} pair_search;

static void offer_scored(pair_search *s, size_t left, size_t right, float score) {
    if (score >= s->threshold && s->leader) {
        s->leader[right] = s->leader[left] = (int64_t)left;
    } else if (score >= s->threshold) {
        const pair p = {(int64_t)left, (int64_t)right, score};
        s->truncated |= pair_offer(&s->best, p);
    }
}

static void score_waiting(pair_search *s) {
    const cal_segment *segment = s->segment;
    if (s->waiting == 0) {
        return;
    }
    const float *rows[CAL_ROWS];
    double reduced[CAL_ROWS];
    for (size_t r = 0; r < CAL_ROWS; r++) {
        rows[r] = segment->rows + s->right[r < s->waiting ? r : 0] * s->dimensions;
    }
    s->ops->dot(rows, segment->rows + s->left * s->dimensions, s->dimensions, reduced);
    for (size_t r = 0; r < s->waiting; r++) {
        const double norm = segment->norms[s->right[r]];
        offer_scored(s, s->left, s->right[r],
                     cal_to_score(CAL_METRIC_COSINE, reduced[r], segment->norms[s->left], norm));
    }
    s->waiting = 0;
    /* Only now may pairs below the worst kept be passed over: before, they would have set `truncated`. */
    if (s->truncated && s->best.capacity > 0) {
        s->limit = cal_filter_limit(CAL_METRIC_COSINE, s->best.scores[0]);
    }
}

static void consider(pair_search *s, size_t left, size_t right) {
    if (s->waiting > 0 && (s->left != left || s->waiting == CAL_ROWS)) {
        score_waiting(s);
    }
    s->left = left;
    s->right[s->waiting++] = right;
}

/* Rows [first, first + count) against every later row, of which only those are scored that codes let through. */
static void search_codes(pair_search *s, size_t first, size_t count, int8_t *query_codes) {
    const cal_segment *segment = s->segment;
    const size_t stride = cal_code_stride(s->dimensions);
    cal_code_query queries[TOGETHER];
    for (size_t q = 0; q < count; q++) {
        if (segment->norms[first + q] > 0.0) {
            cal_code_query_f32(segment->rows + (first + q) * s->dimensions, segment->norms[first + q], s->dimensions,
                               query_codes + q * stride, &queries[q]);
            continue;
        }
        for (size_t j = first + q + 1; j < segment->count; j++) {
            offer_scored(s, first + q, j, 0.0F); /* as cal_to_score says of a length of 0 */
        }
    }
    for (size_t block = first; block < segment->count; block += CAL_BLOCK) {
        const size_t end = segment->count - block < CAL_BLOCK ? segment->count : block + CAL_BLOCK;
        for (size_t q = 0; q < count; q++) {
            const size_t start = block > first + q ? block : first + q + 1;
            if (start >= end || !(segment->norms[first + q] > 0.0)) {
                continue;
            }
            int32_t dots[CAL_BLOCK];
            s->ops->code_dots(segment->codes + start * stride, stride, end - start, queries[q].codes, dots);
            uint64_t passed =
                s->ops->code_filter(CAL_METRIC_COSINE, &queries[q], dots, segment->scales + start,
                                    segment->errors + start, segment->norms + start, end - start, s->limit);
            for (; passed; passed &= passed - 1) {
                consider(s, first + q, start + (size_t)__builtin_ctzll(passed));
            }
        }
    }
    score_waiting(s);
}

static void search_rows(pair_search *s) {
    const size_t count = s->segment->count;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = i + 1; j < count; j++) {
            consider(s, i, j);
        }
    }
    score_waiting(s);
}

/* A search without results; ops is NULL if the kernels of the features are not built. */
static pair_search begin(uint32_t features, const cal_segment *segment, size_t dimensions, float threshold) {
    pair_search s = {0};
    s.ops = cal_choose_vectors(features);
    s.segment = segment;
    s.dimensions = dimensions;
    s.threshold = threshold;
    s.limit = cal_filter_limit(CAL_METRIC_COSINE, threshold);
    return s;
}

int32_t cal_pairs_above_f32(uint32_t features, const cal_segment *segment, size_t dimensions, float threshold,
                            size_t max_pairs, int8_t *query_codes, int64_t *left, int64_t *right, float *scores,
                            size_t *found, int32_t *truncated) {
    pair_search s = begin(features, segment, dimensions, threshold);
    if (!s.ops) {
        return CAL_E_UNSUPPORTED;
    }
    s.best = (pair_heap){left, right, scores, 0, max_pairs};
    if (segment->codes && cal_codes_fit(dimensions)) {
        for (size_t i = 0; i < segment->count; i += TOGETHER) {
            search_codes(&s, i, segment->count - i < TOGETHER ? segment->count - i : TOGETHER, query_codes);
        }
    } else {
        search_rows(&s);
    }
    pair_heap *best = &s.best;
    const size_t total = best->count;
    while (best->count > 1) {
        const size_t last = --best->count;
        const pair moved = pair_at(best, last);
        put_pair(best, last, pair_at(best, 0));
        pair_sift_down(best, 0, moved);
    }
    *found = total;
    *truncated = s.truncated;
    return CAL_OK;
}

/* Row i against the later rows that are in no group. */
static void group_row(pair_search *s, size_t i, const uint8_t *left_out, int8_t *query_codes) {
    const cal_segment *segment = s->segment;
    const size_t stride = cal_code_stride(s->dimensions);
    cal_code_query query;
    /* A row of length 0 has no codes to ask with. */
    const int by_codes = query_codes && segment->norms[i] > 0.0;
    if (by_codes) {
        cal_code_query_f32(segment->rows + i * s->dimensions, segment->norms[i], s->dimensions, query_codes, &query);
    }
    for (size_t start = i + 1; start < segment->count; start += CAL_BLOCK) {
        const size_t count = segment->count - start < CAL_BLOCK ? segment->count - start : CAL_BLOCK;
        uint64_t passed = count < 64 ? (UINT64_C(1) << count) - 1 : ~UINT64_C(0);
        if (by_codes) {
            int32_t dots[CAL_BLOCK];
            s->ops->code_dots(segment->codes + start * stride, stride, count, query_codes, dots);
            passed = s->ops->code_filter(CAL_METRIC_COSINE, &query, dots, segment->scales + start,
                                         segment->errors + start, segment->norms + start, count, s->limit);
        }
        for (; passed; passed &= passed - 1) {
            const size_t j = start + (size_t)__builtin_ctzll(passed);
            if (s->leader[j] < 0 && !left_out[j]) {
                consider(s, i, j);
            }
        }
    }
    score_waiting(s); /* the next row must know who is in a group */
}

int32_t cal_near_groups_f32(uint32_t features, const cal_segment *segment, size_t dimensions, float threshold,
                            const uint8_t *left_out, int8_t *query_codes, int64_t *leader) {
    pair_search s = begin(features, segment, dimensions, threshold);
    if (!s.ops) {
        return CAL_E_UNSUPPORTED;
    }
    s.leader = leader;
    const int coded = segment->codes && cal_codes_fit(dimensions);
    for (size_t i = 0; i < segment->count; i++) {
        leader[i] = -1;
    }
    for (size_t i = 0; i < segment->count; i++) {
        if (leader[i] < 0 && !left_out[i]) {
            group_row(&s, i, left_out, coded ? query_codes : NULL);
        }
    }
    return CAL_OK;
}
