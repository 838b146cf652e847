/*
 * cal_topk_f32, cal_scores_f32 and cal_score_bounds_f32: any rows in any segments, with mask, retired rows, ties and a
 * floor, with codes and without, against all scores of plain C put in order one by one.
 */
#include "vectors.h"

#define MOST_QUERIES 3

static int before(const uint64_t *tie, float x, size_t i, float y, size_t j) {
    if (x != y) {
        return x > y;
    }
    if (tie && tie[2 * i] != tie[2 * j]) {
        return tie[2 * i] < tie[2 * j];
    }
    if (tie && tie[2 * i + 1] != tie[2 * j + 1]) {
        return tie[2 * i + 1] < tie[2 * j + 1];
    }
    return i < j;
}

/* The best k that take part, by insertion. */
static size_t best_of(const float *scores, const table *t, const uint8_t *live, const uint8_t *mask,
                      const uint64_t *tie, size_t k, float floor, int64_t *ids) {
    size_t found = 0;
    for (size_t i = 0; i < t->n; i++) {
        if ((live && !live[i]) || (mask && !mask[i]) || !(scores[i] >= floor)) {
            continue;
        }
        size_t at = found < k ? found++ : k;
        while (at > 0 && before(tie, scores[i], i, scores[ids[at - 1]], (size_t)ids[at - 1])) {
            if (at < k) {
                ids[at] = ids[at - 1];
            }
            at--;
        }
        if (at < k) {
            ids[at] = (int64_t)i;
        }
    }
    return found;
}

static uint8_t *take_flags(input *in, arena *a, size_t n, uint64_t *state) {
    const uint64_t kind = take(in, 1);
    if (kind % 3 == 0) {
        return NULL;
    }
    uint8_t *flags = exact(a, n, 5);
    for (size_t i = 0; i < n; i++) {
        flags[i] = (uint8_t)(next_random(state) % 256 < kind);
    }
    return flags;
}

static void check_scores(arena *a, input *in, const table *t, uint32_t features, int32_t metric, const float *query,
                         double norm, const float *scores, size_t segment_rows) {
    const size_t count = take_below(in, 9);
    int64_t *ids = exact(a, count * sizeof *ids, 8);
    int inside = 1;
    for (size_t i = 0; i < count; i++) {
        ids[i] = take(in, 1) == 255 ? take_signed(in) : (int64_t)take_below(in, t->n + 1);
        inside = inside && ids[i] >= 0 && (uint64_t)ids[i] < t->n;
    }
    const size_t segments = (t->n + segment_rows - 1) / segment_rows;
    cal_segment *table_of = exact(a, segments * sizeof *table_of, 8);
    for (size_t s = 0; s < segments; s++) {
        const size_t end = (s + 1) * segment_rows;
        table_of[s] = segment_of(a, t, s * segment_rows, end < t->n ? end : t->n, NULL, 0);
    }
    float *found = exact(a, count * sizeof *found, 4);
    const int32_t status = cal_scores_f32(features, metric, table_of, segments, segment_rows, t->dimensions, query,
                                          norm, ids, count, found);
    CHECK(status == (inside ? CAL_OK : CAL_E_ARGUMENT));
    for (size_t i = 0; status == CAL_OK && i < count; i++) {
        CHECK(memcmp(&found[i], &scores[ids[i]], sizeof *found) == 0);
    }
}

static void check_bounds(arena *a, const table *t, uint32_t features, int32_t metric, const float *query, double norm,
                         float floor, const float *scores) {
    const cal_segment segment = segment_of(a, t, 0, t->n, NULL, t->dimensions >= 64);
    float *lower = exact(a, t->n * sizeof *lower, 4), *upper = exact(a, t->n * sizeof *upper, 4);
    uint8_t *passed = exact(a, t->n, 1);
    const int32_t status = cal_score_bounds_f32(features, metric, &segment, t->dimensions, query, floor,
                                                exact(a, t->stride, 1), lower, upper, passed);
    CHECK(status == (t->dimensions >= 64 && norm > 0.0 ? CAL_OK : CAL_E_ARGUMENT));
    for (size_t i = 0; status == CAL_OK && i < t->n; i++) {
        CHECK(lower[i] <= scores[i] && scores[i] <= upper[i]);
        CHECK(passed[i] || !(scores[i] >= floor));
    }
}

/* One table, one question, on one path. */
typedef struct {
    int32_t metric;
    size_t k, query_count;
    float floor;
    const float *queries;
    const uint8_t *mask;
    const uint64_t *tie;
} question;

/* Equal to what is expected; and no search with a byte of scratch or a finite query missing. */
static void check_topk(arena *a, const table *t, uint32_t features, int coded, const question *q,
                       const int64_t *expected, const size_t *expected_count, const float *scores) {
    const size_t size = cal_topk_scratch(t->dimensions, q->k, q->query_count);
    int64_t *ids = exact(a, q->query_count * q->k * sizeof *ids, 8);
    float *best = exact(a, q->query_count * q->k * sizeof *best, 4);
    size_t *found = exact(a, q->query_count * sizeof *found, 8);
    void *scratch = exact(a, size, 8);
    const cal_segment *segments = coded ? t->coded : t->plain;
    CHECK(cal_topk_f32(features, q->metric, segments, t->segment_count, t->dimensions, q->queries, q->query_count, q->k,
                       q->floor, q->mask, q->tie, scratch, size, ids, best, found) == CAL_OK);
    for (size_t query = 0; query < q->query_count; query++) {
        CHECK(found[query] == expected_count[query]);
        for (size_t rank = 0; rank < found[query]; rank++) {
            const size_t at = query * q->k + rank;
            CHECK(ids[at] == expected[at]);
            CHECK(memcmp(&best[at], &scores[query * t->n + (size_t)ids[at]], sizeof *best) == 0);
        }
    }
    CHECK(cal_topk_f32(features, q->metric, segments, t->segment_count, t->dimensions, q->queries, q->query_count, q->k,
                       q->floor, q->mask, q->tie, scratch, size - 1, ids, best, found) == CAL_E_ARGUMENT);
    const size_t values = q->query_count * t->dimensions;
    float *broken = copied(a, q->queries, values * sizeof *broken, 4);
    broken[values - 1] = NAN;
    CHECK(cal_topk_f32(features, q->metric, segments, t->segment_count, t->dimensions, broken, q->query_count, q->k,
                       q->floor, q->mask, q->tie, scratch, size, ids, best, found) == CAL_E_NON_FINITE);
}

static void check_everything(arena *a, input *in, table *t, uint64_t *state) {
    uint8_t *live = take_flags(in, a, t->n, state);
    cut(in, a, t, live);
    question q = {.metric = (int32_t)take_below(in, 3), .query_count = 1 + take_below(in, MOST_QUERIES)};
    q.k = take_below(in, take(in, 1) % 2 ? t->n + 2 : t->n / 8 + 2);
    q.mask = take_flags(in, a, t->n, state);
    uint64_t *tie = exact(a, 2 * t->n * sizeof *tie, 8);
    for (size_t i = 0; i < 2 * t->n; i++) {
        tie[i] = next_random(state) % 3 - 1;
    }
    q.tie = take(in, 1) % 2 ? tie : NULL;
    float *queries = exact(a, q.query_count * t->dimensions * sizeof *queries, 4);
    take_rows(in, queries, q.query_count, t->dimensions, 0, state);
    for (size_t query = 0; query < q.query_count && t->n > 0; query++) {
        if (take(in, 1) % 4) { /* a query that is a row, so that scores reach 1 */
            memcpy(queries + query * t->dimensions, t->rows + take_below(in, t->n) * t->dimensions,
                   t->dimensions * sizeof *queries);
        }
    }
    for (size_t i = 0; i < q.query_count * t->dimensions; i++) {
        queries[i] = isfinite(queries[i]) ? queries[i] : 1.0F;
    }
    q.queries = queries;
    double *norms = exact(a, q.query_count * sizeof *norms, 8);
    CHECK(cal_norms_f32(0, queries, q.query_count, t->dimensions, norms) == CAL_OK);
    float *scores = exact(a, q.query_count * t->n * sizeof *scores, 4);
    CHECK(cal_score_batch_f32(0, q.metric, t->rows, t->norms, t->n, t->dimensions, queries, norms, q.query_count,
                              scores) == CAL_OK);
    q.floor = take_threshold(in, scores, t->n);
    int64_t *expected = exact(a, q.query_count * q.k * sizeof *expected, 8);
    size_t expected_count[MOST_QUERIES];
    for (size_t query = 0; query < q.query_count; query++) {
        expected_count[query] =
            best_of(scores + query * t->n, t, live, q.mask, q.tie, q.k, q.floor, expected + query * q.k);
    }
    double *sums = exact(a, t->n * sizeof *sums, 8);
    CHECK(cal_sums_f32(0, q.metric, t->rows, t->n, t->dimensions, queries, sums) == CAL_OK);
    const size_t segment_rows = 1 + take_below(in, t->n + 3);
    const size_t few_segments = segment_rows * 8 < t->n ? t->n : segment_rows;
    uint32_t sets[MOST_PATHS];
    const size_t paths = feature_sets(sets, FOR_VECTORS);
    for (size_t p = 0; p < paths; p++) {
        float *again = exact(a, q.query_count * t->n * sizeof *again, 4);
        CHECK(cal_score_batch_f32(sets[p], q.metric, t->rows, t->norms, t->n, t->dimensions, queries, norms,
                                  q.query_count, again) == CAL_OK);
        CHECK(t->n == 0 || memcmp(scores, again, q.query_count * t->n * sizeof *again) == 0);
        double *same_sums = exact(a, t->n * sizeof *sums, 8);
        CHECK(cal_sums_f32(sets[p], q.metric, t->rows, t->n, t->dimensions, queries, same_sums) == CAL_OK);
        CHECK(t->n == 0 || memcmp(sums, same_sums, t->n * sizeof *sums) == 0);
        for (int coded = 0; coded < 2; coded++) {
            check_topk(a, t, sets[p], coded, &q, expected, expected_count, scores);
        }
        check_scores(a, in, t, sets[p], q.metric, queries, norms[0], scores, few_segments);
        check_bounds(a, t, sets[p], q.metric, queries, norms[0], q.floor, scores);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    arena a = {.count = 0};
    uint64_t state = take(&in, 4);
    static const size_t most[4] = {6, 140, 320, MOST_ROWS};
    const size_t n = take_below(&in, most[take(&in, 1) % 4]);
    table t = take_table(&in, &a, n, &state);
    if (t.finite) {
        check_everything(&a, &in, &t, &state);
    }
    free_all(&a);
    return 0;
}
