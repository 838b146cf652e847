/*
 * Runs each hot kernel once on fixed data, in a function of its own. Callgrind notes its counter whenever a function
 * named case_* begins, so between the beginning of one and that of case_done lies one kernel. Prints the CPU features
 * there are.
 *
 * Usage: driver FEATURES
 */
#include "caliber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 2000
#define DIMENSIONS 384
#define QUERIES 8
#define BEST 20
#define PAIR_ROWS 300
#define MOST_PAIRS 100
#define SPANS 200
#define SPAN_BYTES 512
#define IDS 5000
#define CANDIDATES 10000
#define SECTIONS 4

#define CASE static __attribute__((noinline)) void

CASE case_done(void) { __asm__ volatile(""); }

#define RUN(NAME) (case_##NAME(), case_done())

static uint32_t features;

static void *room(size_t size) {
    void *block = calloc(1, size);
    if (!block) {
        abort();
    }
    return block;
}

static void succeed(int32_t status) {
    if (status != CAL_OK) {
        fprintf(stderr, "a kernel answered %d\n", (int)status);
        exit(1);
    }
}

/* SplitMix64. */
static uint64_t next_random(void) {
    static uint64_t state = 20260101;
    uint64_t z = state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* About normal: the sum of four even numbers. */
static float next_value(void) {
    const uint64_t bits = next_random();
    const int sum = (int)(bits & 0xFFFF) + (int)(bits >> 16 & 0xFFFF) + (int)(bits >> 32 & 0xFFFF) + (int)(bits >> 48);
    return (float)(sum - 2 * 0xFFFF) / 65536.0F;
}

/* ---- vectors ------------------------------------------------------------------------------------------------ */

static float *rows, *queries, *scores;
static double *norms, *query_norms;
static cal_segment coded, plain;
static uint8_t *codes;
static float *scales, *errors;
static void *scratch;
static size_t scratch_size, found[QUERIES];
static int64_t ids[QUERIES * BEST];
static float best[QUERIES * BEST];

static void prepare_vectors(void) {
    rows = room(ROWS * DIMENSIONS * sizeof *rows);
    queries = room(QUERIES * DIMENSIONS * sizeof *queries);
    scores = room(QUERIES * ROWS * sizeof *scores);
    norms = room(ROWS * sizeof *norms);
    query_norms = room(QUERIES * sizeof *query_norms);
    codes = room(ROWS * DIMENSIONS);
    scales = room(ROWS * sizeof *scales);
    errors = room(ROWS * sizeof *errors);
    for (size_t i = 0; i < ROWS * DIMENSIONS; i++) {
        rows[i] = next_value();
    }
    /* Each query near a row, as those of a search are near what they look for. */
    for (size_t i = 0; i < QUERIES * DIMENSIONS; i++) {
        queries[i] = rows[i] + next_value() / 2;
    }
    scratch_size = cal_topk_scratch(DIMENSIONS, BEST, QUERIES);
    scratch = room(scratch_size);
    succeed(cal_norms_f32(features, queries, QUERIES, DIMENSIONS, query_norms));
}

CASE case_norms(void) { succeed(cal_norms_f32(features, rows, ROWS, DIMENSIONS, norms)); }

CASE case_code_rows(void) {
    succeed(cal_code_rows_f32(rows, norms, ROWS, DIMENSIONS, DIMENSIONS, codes, scales, errors));
}

static void search(const cal_segment *segment, int32_t metric, size_t count) {
    succeed(cal_topk_f32(features, metric, segment, 1, DIMENSIONS, queries, count, BEST, -1e30F, NULL, NULL, scratch,
                         scratch_size, ids, best, found));
}

CASE case_topk_codes(void) { search(&coded, CAL_METRIC_COSINE, 1); }
CASE case_topk_codes_l2(void) { search(&coded, CAL_METRIC_L2, 1); }
CASE case_topk_many_codes(void) { search(&coded, CAL_METRIC_COSINE, QUERIES); }
CASE case_topk_rows(void) { search(&plain, CAL_METRIC_COSINE, 1); }
CASE case_topk_rows_l2(void) { search(&plain, CAL_METRIC_L2, 1); }

CASE case_score_batch(void) {
    succeed(cal_score_batch_f32(features, CAL_METRIC_COSINE, rows, norms, ROWS / 4, DIMENSIONS, queries, query_norms,
                                QUERIES, scores));
}

static int64_t asked_ids[ROWS / 8];

CASE case_scores(void) {
    succeed(cal_scores_f32(features, CAL_METRIC_COSINE, &plain, 1, ROWS, DIMENSIONS, queries, query_norms[0], asked_ids,
                           ROWS / 8, scores));
}

CASE case_pairs(void) {
    static int8_t query_codes[CAL_PAIR_ROWS * DIMENSIONS];
    static int64_t left[MOST_PAIRS], right[MOST_PAIRS];
    static float pair_scores[MOST_PAIRS];
    cal_segment some = coded;
    some.count = PAIR_ROWS;
    size_t count;
    int32_t truncated;
    succeed(cal_pairs_above_f32(features, &some, DIMENSIONS, 0.1F, MOST_PAIRS, query_codes, left, right, pair_scores,
                                &count, &truncated));
}

CASE case_near_groups(void) {
    static int8_t query_codes[DIMENSIONS];
    static uint8_t left_out[PAIR_ROWS];
    static int64_t leader[PAIR_ROWS];
    cal_segment some = coded;
    some.count = PAIR_ROWS;
    succeed(cal_near_groups_f32(features, &some, DIMENSIONS, 0.1F, left_out, query_codes, leader));
}

static void vectors(void) {
    prepare_vectors();
    RUN(norms);
    RUN(code_rows);
    plain = (cal_segment){.rows = rows, .norms = norms, .count = ROWS};
    coded = plain;
    coded.codes = codes;
    coded.scales = scales;
    coded.errors = errors;
    for (size_t i = 0; i < ROWS / 8; i++) {
        asked_ids[i] = (int64_t)(next_random() % ROWS);
    }
    RUN(topk_codes);
    RUN(topk_codes_l2);
    RUN(topk_many_codes);
    RUN(topk_rows);
    RUN(topk_rows_l2);
    RUN(score_batch);
    RUN(scores);
    RUN(pairs);
    RUN(near_groups);
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

static uint8_t span_bytes[SPANS * SPAN_BYTES], text[SPANS * SPAN_BYTES], digests[32 * SPANS];
static int64_t offsets[SPANS + 1], tokens[SPANS];

/* Words of some two thousand, common ones often, a few in other scripts. */
static void write_text(void) {
    for (size_t at = 0; at < sizeof text;) {
        const uint64_t random = next_random();
        const uint64_t word = random % (1 + (random >> 16) % 2000);
        char next[32];
        const int size = word % 19 == 7
                             ? snprintf(next, sizeof next, "\xC3\xA9\xE6\x97\xA5%u ", (unsigned)word % 50)
                             : snprintf(next, sizeof next, "word%u%s", (unsigned)word, word % 7 ? " " : ", ");
        for (int i = 0; i < size && at < sizeof text; i++) {
            text[at++] = (uint8_t)next[i];
        }
    }
}

CASE case_sha256_spans(void) {
    succeed(cal_sha256_spans_i64(features, span_bytes, sizeof span_bytes, offsets, SPANS, digests));
}

CASE case_tokens_bytes_spans(void) {
    succeed(cal_tokens_bytes_spans_i64(sizeof span_bytes, offsets, SPANS, 7, 2, tokens));
}

CASE case_tokens_calibrated_spans(void) {
    succeed(cal_tokens_calibrated_spans_i64(features, CAL_VOCABULARY_O200K, text, sizeof text, offsets, SPANS, tokens));
}

CASE case_tokens_calibrated_prefix(void) {
    size_t length;
    succeed(cal_tokens_calibrated_prefix(features, CAL_VOCABULARY_O200K, text, sizeof text, 1000000, &length));
}

static uint8_t entropy[10 * IDS], made[16 * IDS];

CASE case_uuid7(void) {
    cal_uuid7_state state = {0, 0};
    succeed(cal_uuid7(&state, 1767225600000, entropy, sizeof entropy, IDS, made));
}

static void bytes(void) {
    for (size_t i = 0; i < sizeof span_bytes; i++) {
        span_bytes[i] = (uint8_t)next_random();
    }
    write_text();
    for (size_t i = 0; i <= SPANS; i++) {
        offsets[i] = (int64_t)(i * SPAN_BYTES);
    }
    for (size_t i = 0; i < sizeof entropy; i++) {
        entropy[i] = (uint8_t)next_random();
    }
    RUN(sha256_spans);
    RUN(tokens_bytes_spans);
    RUN(tokens_calibrated_spans);
    RUN(tokens_calibrated_prefix);
    RUN(uuid7);
}

/* ---- keywords ----------------------------------------------------------------------------------------------- */

#define WORDS 4096 /* different ones, at most */
#define WORD_IDS 40000
#define QUERY_WORDS 100
#define SEGMENTS 2

static cal_words dictionary;
static uint32_t word_ids[WORD_IDS], term_ids[WORDS], counts[WORDS], touched[WORDS], lengths[SPANS];
static uint32_t first[WORDS], chain[WORDS], tail[WORDS];
static uint16_t left[WORDS];
static uint8_t level[WORDS], word_flags[WORDS], mask[SPANS], flags[SPANS];
static uint32_t touched_documents[SPANS];
static int64_t word_offsets[SPANS + 1];
static uint64_t term_starts[WORDS + 1];
static uint32_t *segments[SEGMENTS];
static cal_postings postings;
static double document_scores[SPANS];

CASE case_words_intern(void) {
    size_t done;
    succeed(cal_words_intern(&dictionary, text, sizeof text, offsets, SPANS, word_ids, WORD_IDS, word_offsets, &done));
    if (done != SPANS) {
        exit(1);
    }
}

CASE case_postings_add(void) {
    size_t done;
    succeed(cal_postings_add(&postings, 0, word_ids, word_offsets, SPANS, term_starts, term_ids, word_flags,
                             dictionary.count, counts, touched, lengths, flags, &done));
}

static int64_t groups[QUERY_WORDS + 1], before[SPANS], after[SPANS];
static uint32_t asked[QUERY_WORDS];
static double strengths[QUERY_WORDS], reached[SPANS], own_scores[SPANS];
static uint8_t asks[SPANS];
static uint32_t places[SPANS];
static int64_t found_documents[SPANS];

static void score_keywords(const cal_lending *lending) {
    size_t count;
    succeed(cal_keyword_scores(&postings, groups, asked, strengths, strengths, QUERY_WORDS, SPANS, mask, mask, lengths,
                               1.2, 0.75, 80.0, 0.5, lending, reached, places, touched_documents, 0, found_documents,
                               own_scores, document_scores, &count));
}

CASE case_keyword_scores(void) {
    const cal_lending nobody = {NULL, NULL, NULL, 0, 0, 0};
    score_keywords(&nobody);
}

CASE case_keyword_scores_lending(void) {
    const cal_lending neighbours = {before, after, asks, 0.4, 0.2, 0.4};
    score_keywords(&neighbours);
}

CASE case_best_scores(void) {
    size_t count;
    succeed(cal_best_scores(document_scores, SPANS, NULL, NULL, BEST, ids, best, &count));
}

CASE case_join(void) {
    static const cal_part parts[] = {
        {.how = CAL_PART_QUOTIENT, .share = 0.5, .by = 3.0, .scores = document_scores},
        {.how = CAL_PART_LENT, .share = 0.5, .by = 3.0, .scores = document_scores, .less = own_scores},
        {.how = CAL_PART_STRETCHED, .share = 0.4, .by = 0.5, .low = 0.1, .near = best, .near_count = BEST},
        {.how = CAL_PART_FLAGGED, .share = -0.05, .flags = asks, .flag = 1},
    };
    static double told[4 * BEST], joined[SPANS];
    size_t count;
    succeed(cal_join(parts, 4, SPANS, found_documents, SPANS, mask, 1e-6, NULL, BEST, joined, ids, best, told, &count));
}

static void keywords(void) {
    dictionary.capacity = WORDS;
    dictionary.slot_count = 2 * WORDS;
    dictionary.slots = room(dictionary.slot_count * sizeof *dictionary.slots);
    dictionary.starts = room((WORDS + 1) * sizeof *dictionary.starts);
    dictionary.arena_size = sizeof text;
    dictionary.arena = room(dictionary.arena_size);
    dictionary.seed = 1;
    RUN(words_intern);
    for (uint32_t i = 0; i < WORDS; i++) { /* each word is a term */
        term_starts[i + 1] = i + 1;
        term_ids[i] = i;
    }
    for (size_t i = 0; i < SEGMENTS; i++) {
        segments[i] = room(CAL_POSTING_SEGMENT * sizeof **segments);
        memset(segments[i], 0xFF, CAL_POSTING_SEGMENT * sizeof **segments);
    }
    memset(first, 0xFF, sizeof first);
    memset(chain, 0xFF, sizeof chain);
    memset(mask, 1, sizeof mask);
    postings = (cal_postings){segments, SEGMENTS, WORDS, first, chain, tail, left, level, 0};
    RUN(postings_add);
    for (uint32_t i = 0; i < QUERY_WORDS; i++) { /* a word for each term */
        groups[i + 1] = i + 1;
        asked[i] = i;
        strengths[i] = 1.0 + i;
    }
    for (size_t i = 0; i < SPANS; i++) { /* one conversation */
        before[i] = (int64_t)i - 1;
        after[i] = (int64_t)i + 1;
        asks[i] = i % 3 == 0;
    }
    RUN(keyword_scores);
    RUN(keyword_scores_lending);
    RUN(best_scores);
    RUN(join);
}

/* ---- ranking ------------------------------------------------------------------------------------------------ */

static int32_t priority[CANDIDATES], costs[CANDIDATES], alone[CANDIDATES], group[CANDIDATES], section[CANDIDATES];
static float relevance[CANDIDATES];
static int64_t age_us[CANDIDATES], order[CANDIDATES];
static uint64_t tie[2 * CANDIDATES], *rank_scratch;
static uint8_t decision[CANDIDATES];

static void rank(const int32_t *groups) {
    static const int32_t budgets[SECTIONS] = {-1, 20000, 10000, 5000}, overheads[SECTIONS] = {12, 10, 8, 6};
    const cal_rank_columns columns = {priority, relevance, age_us, costs, tie, groups, section};
    succeed(cal_rank_and_fill(&columns, CANDIDATES, SECTIONS, 50000, budgets, overheads, 2, 0.2F, rank_scratch,
                              cal_rank_scratch(CANDIDATES, SECTIONS), order, decision));
}

CASE case_rank_and_fill(void) { rank(alone); }
CASE case_rank_and_fill_groups(void) { rank(group); }

static void ranking(void) {
    rank_scratch = room(cal_rank_scratch(CANDIDATES, SECTIONS));
    for (size_t i = 0; i < CANDIDATES; i++) {
        priority[i] = (int32_t)(next_random() % 4);
        relevance[i] = (float)(next_random() % 1000) / 1000.0F; /* ten of each, so that the keys after it matter */
        age_us[i] = (int64_t)(next_random() % 100) * 1000000;
        costs[i] = (int32_t)(next_random() % 300);
        section[i] = (int32_t)(next_random() % SECTIONS);
        tie[2 * i] = UINT64_C(0x019B000000007000) + next_random() % 4096;
        tie[2 * i + 1] = next_random();
        alone[i] = -1;
        group[i] = i % 3 ? -1 : (int32_t)(i % 300 / 3 * SECTIONS) + section[i];
    }
    RUN(rank_and_fill);
    RUN(rank_and_fill_groups);
}

/* ---- binary COPY -------------------------------------------------------------------------------------------- */

#define FIELDS 5

static cal_copy_column copied[FIELDS];
static cal_copy_buffer decoded[FIELDS];
static uint8_t *tuples;
static size_t tuples_size, tuples_capacity;
static cal_copy_fault fault;

CASE case_copy_encode(void) {
    size_t done, needed;
    succeed(cal_copy_encode(copied, FIELDS, 0, SPANS, tuples, tuples_capacity, &done, &tuples_size, &needed, &fault));
}

CASE case_copy_scan(void) {
    size_t count, consumed;
    int32_t ended;
    uint64_t sizes[2 * FIELDS];
    succeed(cal_copy_scan(tuples, tuples_size, decoded, FIELDS, SPANS, &count, &consumed, &ended, sizes, &fault));
}

CASE case_copy_decode(void) { succeed(cal_copy_decode(tuples, tuples_size, decoded, FIELDS, SPANS, &fault)); }

static void copying(void) {
    static const uint64_t kinds[FIELDS] = {CAL_COPY_UUID, CAL_COPY_INT8, CAL_COPY_INSTANT, CAL_COPY_TEXT,
                                           CAL_COPY_VECTOR};
    static const size_t widths[FIELDS] = {16, 8, 8, SPAN_BYTES, DIMENSIONS * sizeof(float)};
    tuples_capacity = SPANS * (SPAN_BYTES + DIMENSIONS * sizeof(float) + 128);
    tuples = room(tuples_capacity);
    for (size_t c = 0; c < FIELDS; c++) {
        uint8_t *values = c == 4 ? (uint8_t *)rows : room(SPANS * widths[c]);
        for (size_t i = 0; c < 4 && i < SPANS * widths[c]; i++) {
            values[i] = c == 2 ? (uint8_t)(i % 8 == 7 ? 0 : i) : (uint8_t)('a' + i % 26);
        }
        copied[c] = (cal_copy_column){.kind = kinds[c],
                                      .nullable = 1,
                                      .width = c == 4 ? DIMENSIONS : widths[c],
                                      .size = SPANS * widths[c],
                                      .values = values};
        decoded[c] = (cal_copy_buffer){.kind = kinds[c],
                                       .size = SPANS * widths[c],
                                       .validity = room(SPANS / 8 + 1),
                                       .values = room(SPANS * widths[c]),
                                       .offsets = c < 3 ? NULL : room((SPANS + 1) * sizeof(int32_t))};
    }
    RUN(copy_encode);
    RUN(copy_scan);
    RUN(copy_decode);
}

int main(int count, char **arguments) {
    features = count > 1 ? (uint32_t)strtoul(arguments[1], NULL, 10) : 0;
    if (features & ~cal_cpu_features()) {
        fprintf(stderr, "features %u are not all here\n", (unsigned)features);
        return 3;
    }
    printf("%u\n", (unsigned)cal_cpu_features());
    vectors();
    bytes();
    keywords();
    ranking();
    copying();
    return 0;
}
