/*
 * The keyword kernels. Words of any bytes: with room for all, and with little room that grows, the same; in their
 * order, and together every letter. Postings, BM25 and phrases of those words: as counted one by one.
 */
#include "harness.h"

#define MOST_SPANS 12
#define MOST_WORDS 400 /* different ones */
#define MOST_IDS 2000
#define WORD_BYTES 256

/* ---- words -------------------------------------------------------------------------------------------------- */

static cal_words dictionary(arena *a, size_t capacity, size_t arena_size, uint64_t seed) {
    cal_words table = {.capacity = capacity, .arena_size = arena_size, .seed = seed};
    for (table.slot_count = 1; table.slot_count < 2 * capacity; table.slot_count *= 2) {
    }
    table.slots = exact(a, table.slot_count * sizeof *table.slots, 0);
    memset(table.slots, 0, table.slot_count * sizeof *table.slots);
    table.starts = exact(a, (capacity + 1) * sizeof *table.starts, 0);
    table.starts[0] = 0;
    table.arena = exact(a, arena_size, 1);
    return table;
}

/* The same words in a dictionary with more room. */
static cal_words larger(arena *a, const cal_words *before) {
    cal_words table = dictionary(a, before->capacity * 2 + 1, before->arena_size * 2 + WORD_BYTES, before->seed + 1);
    table.count = before->count;
    memcpy(table.starts, before->starts, (before->count + 1) * sizeof *table.starts);
    if (before->count > 0) {
        memcpy(table.arena, before->arena, (size_t)before->starts[before->count]);
    }
    CHECK(cal_words_rehash(&table) == CAL_OK);
    return table;
}

/* Bytes that are mostly text: letters, signs that join, and pieces of UTF-8, whole or not. */
static size_t take_text(input *in, uint8_t *text, size_t most) {
    static const char *const pieces[] = {
        "ab",
        "B2",
        " ",
        "'",
        "\xE2\x80\x99",
        ".",
        "-",
        "::",
        ":",
        "/",
        "\\",
        "@",
        "+",
        "++",
        "#",
        "&",
        "1,000",
        ",",
        "\xE6\x97\xA5\xE6\x9C\xAC",
        "\xE8\xAA\x9E",
        "\xC3\x9F",
        "\xED\x95\x9C",
        "\xF0\x9F\x8E\x89",
        "e\xCC\x81",
        "\xE2\x80",
        "\xF0\x9F",
        "\xC3",
        "\xFF",
        "_x",
    };
    size_t size = 0;
    while (in->size > 0 && size < most) {
        const uint64_t kind = take(in, 1);
        const size_t count = sizeof pieces / sizeof *pieces;
        if (kind < 4 * count) {
            const char *piece = pieces[kind % count];
            /* Now and then a long run, for words have a longest. */
            for (uint64_t again = kind / count == 3 ? take(in, 1) : 1; again > 0; again--) {
                for (const char *p = piece; *p && size < most; p++) {
                    text[size++] = (uint8_t)*p;
                }
            }
        } else {
            text[size++] = (uint8_t)take(in, 1);
        }
    }
    return size;
}

typedef struct {
    cal_words table;
    uint32_t ids[MOST_IDS];
    int64_t id_offsets[MOST_SPANS + 1];
    size_t spans;
} found_words;

static found_words plenty, little; /* too large for the stack */

/* A dictionary and a list that start with almost no room, and grow whenever they are full. */
static void intern_growing(arena *a, const uint8_t *data, size_t size, const int64_t *offsets, size_t spans) {
    little.table = dictionary(a, 1, 3, 7);
    size_t finished = 0, capacity = 0;
    little.id_offsets[0] = 0;
    for (int round = 0; finished < spans; round++) {
        CHECK(round < 100);
        uint32_t *ids = exact(a, capacity * sizeof *ids, 4);
        int64_t *id_offsets = exact(a, (spans - finished + 1) * sizeof *id_offsets, 8);
        size_t done = 0;
        CHECK(cal_words_intern(&little.table, data, size, offsets + finished, spans - finished, ids, capacity,
                               id_offsets, &done) == CAL_OK);
        for (size_t i = 0; i < done; i++) {
            const int64_t base = little.id_offsets[finished + i], count = id_offsets[i + 1] - id_offsets[i];
            CHECK(base + count <= MOST_IDS);
            if (count > 0) {
                memcpy(little.ids + base, ids + id_offsets[i], (size_t)count * sizeof *ids);
            }
            little.id_offsets[finished + i + 1] = base + count;
        }
        finished += done;
        if (round % 2) {
            little.table = larger(a, &little.table);
        } else {
            capacity = 2 * capacity + 1;
        }
    }
}

static int same_word(const cal_words *x, size_t i, const cal_words *y, size_t j) {
    const size_t size = (size_t)(x->starts[i + 1] - x->starts[i]);
    return size == y->starts[j + 1] - y->starts[j] &&
           memcmp(x->arena + x->starts[i], y->arena + y->starts[j], size) == 0;
}

static size_t character_size(uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

static int is_letter(uint8_t c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

/* Words of a span stand in it in their order, none is too long, and no ASCII letter is left out. */
static void check_span(const uint8_t *from, const uint8_t *to, const uint32_t *ids, size_t count) {
    const cal_words *table = &plenty.table;
    const uint8_t *covered = from, *last = NULL;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *word = table->arena + table->starts[ids[i]];
        const size_t size = (size_t)(table->starts[ids[i] + 1] - table->starts[ids[i]]);
        CHECK(size > 0 && size <= WORD_BYTES);
        /* Of a script without spaces, a pair begins with the second character of the pair before it. */
        const uint8_t *at = last && *last >= 0xE0 && *word >= 0xE0 ? last + character_size(*last) : covered;
        if ((size_t)(to - at) < size || memcmp(at, word, size) != 0) {
            for (at = covered; (size_t)(to - at) >= size && memcmp(at, word, size) != 0; at++) {
                CHECK(!is_letter(*at));
            }
        }
        CHECK((size_t)(to - at) >= size);
        last = at;
        covered = at + size > covered ? at + size : covered;
    }
    for (; covered < to; covered++) {
        CHECK(!is_letter(*covered));
    }
}

static void check_words(arena *a, input *in) {
    static uint8_t text[1500];
    const size_t spans = take_below(in, MOST_SPANS + 1), cuts = take(in, 1) % 4;
    const int broken = take(in, 1) == 255;
    uint8_t *cut_at = exact(a, MOST_SPANS + 1, 0);
    for (size_t i = 0; i <= MOST_SPANS; i++) {
        cut_at[i] = (uint8_t)take(in, 1);
    }
    const size_t size = take_text(in, text, sizeof text);
    const uint8_t *data = copied(a, text, size, 1);
    int64_t *offsets = exact(a, (spans + 1) * sizeof *offsets, 8);
    offsets[0] = cuts ? 0 : (int64_t)(cut_at[0] % (size + 1));
    for (size_t i = 1; i <= spans; i++) {
        const size_t left = size - (size_t)offsets[i - 1];
        offsets[i] = offsets[i - 1] + (int64_t)(i == spans && cuts ? left : cut_at[i] % (left / (cuts + 1) + 1));
    }
    plenty.spans = spans;
    plenty.table = dictionary(a, MOST_WORDS, sizeof text * 4, 7);
    size_t done = 0;
    if (broken) {
        offsets[cut_at[1] % (spans + 1)] = cut_at[2] % 2 ? (int64_t)size + 1 : -1;
        const int32_t status =
            cal_words_intern(&plenty.table, data, size, offsets, spans, plenty.ids, MOST_IDS, plenty.id_offsets, &done);
        CHECK(status == CAL_E_OFFSETS && done == 0);
        plenty.spans = 0;
        return;
    }
    CHECK(cal_words_intern(&plenty.table, data, size, offsets, spans, plenty.ids, MOST_IDS, plenty.id_offsets, &done) ==
          CAL_OK);
    if (done < spans) { /* more different words than fit */
        plenty.spans = 0;
        return;
    }
    for (size_t i = 0; i < spans; i++) {
        const int64_t from = plenty.id_offsets[i], to = plenty.id_offsets[i + 1];
        check_span(data + offsets[i], data + offsets[i + 1], plenty.ids + from, (size_t)(to - from));
    }
    for (size_t i = 0; i < plenty.table.count; i++) {
        for (size_t j = 0; j < i; j++) {
            CHECK(!same_word(&plenty.table, i, &plenty.table, j));
        }
    }
    intern_growing(a, data, size, offsets, spans);
    CHECK(memcmp(plenty.id_offsets, little.id_offsets, (spans + 1) * sizeof *offsets) == 0);
    for (int64_t i = 0; i < plenty.id_offsets[spans]; i++) {
        CHECK(same_word(&plenty.table, plenty.ids[i], &little.table, little.ids[i]));
    }
}

/* ---- postings ----------------------------------------------------------------------------------------------- */

/* How often each document holds each term: a word's terms are itself and, for every third, the word after it. */
static uint32_t held[MOST_SPANS][MOST_WORDS + 1];

static double stands_for(uint32_t count) {
    static const uint32_t steps[16] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64, 128, 256};
    double value = 1;
    for (int i = 0; i < 16; i++) {
        value = count >= steps[i] ? steps[i] : value;
    }
    return value;
}

/* A query of a word for each term, and what scoring it needs. */
typedef struct {
    const cal_postings *postings;
    const int64_t *groups;
    const uint32_t *asked;
    const double *weights;
    size_t documents;
    const uint8_t *mask;
    const uint32_t *lengths;
    double *reached;
    uint32_t *places, *touched;
} question;

/* Scores by document, 0 where none is found; what is found comes once, given documents first, and only if it may. */
static void score(arena *a, const question *q, const cal_lending *lending, const uint8_t *kept, const int64_t *given,
                  size_t given_count, double *own, double *scores) {
    const size_t n = q->documents;
    int64_t *found = exact(a, n * sizeof *found, 8);
    double *found_own = exact(a, n * sizeof *own, 8), *found_scores = exact(a, n * sizeof *scores, 8);
    uint8_t *seen = exact(a, n, 1);
    size_t count = 0;
    for (size_t d = 0; d < n; d++) {
        own[d] = scores[d] = 0;
        seen[d] = 0;
        found_own[d] = found_scores[d] = -1;
    }
    for (size_t i = 0; i < given_count; i++) {
        found[i] = given[i];
    }
    CHECK(cal_keyword_scores(q->postings, q->groups, q->asked, q->weights, q->weights, q->postings->terms + 1, n,
                             q->mask, kept, q->lengths, 0.9, 0.4, 3.7, 0, lending, q->reached, q->places, q->touched,
                             given_count, found, found_own, found_scores, &count) == CAL_OK);
    CHECK(count <= n && count >= given_count);
    for (size_t i = 0; i < count; i++) {
        CHECK(found[i] >= 0 && (size_t)found[i] < n && !seen[found[i]]);
        CHECK(i < given_count ? found[i] == given[i] : q->mask[found[i]] && kept[found[i]] && found_scores[i] > 0);
        seen[found[i]] = 1;
        own[found[i]] = found_own[i];
        scores[found[i]] = found_scores[i];
    }
    for (size_t d = 0; d < n; d++) {
        CHECK(q->reached[d] == 0 && q->places[d] == 0 && q->touched[d] == 0);
    }
    for (int i = 0; i < 4; i++) { /* more than the arena holds, for each question */
        free(a->blocks[--a->count]);
    }
}

/* Some documents are asked for, and every other one left out: what is found has the scores it has among all. */
static void check_kept(arena *a, const question *q, const cal_lending *lending, const double *own,
                       const double *scores) {
    const size_t n = q->documents, given_count = n / 3;
    int64_t *given = exact(a, n * sizeof *given, 8);
    uint8_t *kept = exact(a, n, 1);
    double *some_own = exact(a, n * sizeof *own, 8), *some = exact(a, n * sizeof *scores, 8);
    for (size_t d = 0; d < n; d++) {
        kept[d] = d % 2 == 0;
        given[d] = (int64_t)(n - 1 - d); /* from the last on */
    }
    score(a, q, lending, kept, given, given_count, some_own, some);
    for (size_t d = 0; d < n; d++) {
        const int wanted = kept[d] || d >= n - given_count;
        CHECK(some_own[d] == (wanted ? own[d] : 0) && some[d] == (wanted ? scores[d] : 0));
    }
    size_t count = 7;
    if (n > 1) {
        given[1] = given[0];
        CHECK(cal_keyword_scores(q->postings, q->groups, q->asked, q->weights, q->weights, 0, n, q->mask, kept,
                                 q->lengths, 0.9, 0.4, 3.7, 0, lending, q->reached, q->places, q->touched, 2, given,
                                 some_own, some, &count) == CAL_E_ARGUMENT);
        CHECK(q->places[n - 1] == 0);
    }
    if (n > 0) {
        given[0] = (int64_t)n;
        CHECK(cal_keyword_scores(q->postings, q->groups, q->asked, q->weights, q->weights, 0, n, q->mask, kept,
                                 q->lengths, 0.9, 0.4, 3.7, 0, lending, q->reached, q->places, q->touched, 1, given,
                                 some_own, some, &count) == CAL_E_ARGUMENT);
    }
}

/* All documents in one row, every third of them a question: neighbours lend what is left of a word without them. */
static void check_lending(arena *a, const question *q, const double *alone) {
    const size_t documents = q->documents;
    int64_t *before = exact(a, documents * sizeof *before, 8), *after = exact(a, documents * sizeof *after, 8);
    uint8_t *asks = exact(a, documents, 1);
    double *own = exact(a, documents * sizeof *own, 8), *lent = exact(a, documents * sizeof *lent, 8);
    for (size_t d = 0; d < documents; d++) {
        before[d] = (int64_t)d - 1;
        after[d] = (int64_t)d + 1; /* of the last one: beyond the documents */
        asks[d] = d % 3 == 0;
    }
    const cal_lending row = {before, after, asks, 0.5, 0.25, 0.125};
    score(a, q, &row, q->mask, NULL, 0, own, lent);
    for (size_t d = 0; d < documents; d++) {
        double expected = alone[d];
        if (d > 0) {
            expected += alone[d - 1] * (0.5 + (asks[d - 1] ? 0.125 : 0));
        }
        if (d > 1) {
            expected += alone[d - 2] * 0.25;
        }
        if (d + 1 < documents) {
            expected += alone[d + 1] * 0.5;
        }
        if (d + 2 < documents) {
            expected += alone[d + 2] * 0.25;
        }
        const double difference = lent[d] > expected ? lent[d] - expected : expected - lent[d];
        CHECK(q->mask[d] ? own[d] == alone[d] && difference <= 1e-9 * (1 + expected) : lent[d] == 0);
    }
    check_kept(a, q, &row, own, lent);
}

static void check_reading(arena *a, const cal_postings *postings, size_t documents, const uint8_t *mask,
                          const uint32_t *lengths) {
    const size_t terms = postings->terms;
    uint32_t *asked = exact(a, (terms + 1) * sizeof *asked, 4);
    double *weights = exact(a, (terms + 1) * sizeof *weights, 8);
    int64_t *counts = exact(a, (terms + 1) * sizeof *counts, 8);
    for (size_t t = 0; t <= terms; t++) { /* the last one is unknown */
        asked[t] = (uint32_t)t;
        weights[t] = 1.0 + (double)t / 7;
    }
    CHECK(cal_postings_count(postings, asked, terms + 1, documents, mask, counts) == CAL_OK);
    double *scores = exact(a, documents * sizeof *scores, 8), *expected = exact(a, documents * sizeof *scores, 8);
    memset(expected, 0, documents * sizeof *scores);
    int64_t *groups = exact(a, (terms + 2) * sizeof *groups, 8); /* a word for each term */
    for (size_t t = 0; t <= terms + 1; t++) {
        groups[t] = (int64_t)t;
    }
    double *own = exact(a, documents * sizeof *own, 8), *reached = exact(a, documents * sizeof *reached, 8);
    uint32_t *places = exact(a, documents * sizeof *places, 4);
    uint32_t *touched = exact(a, documents * sizeof *touched, 4);
    memset(reached, 0, documents * sizeof *reached);
    memset(places, 0, documents * sizeof *places);
    memset(touched, 0, documents * sizeof *touched);
    const question q = {postings, groups, asked, weights, documents, mask, lengths, reached, places, touched};
    const cal_lending nobody = {NULL, NULL, NULL, 0.4, 0.25, 0.4};
    score(a, &q, &nobody, mask, NULL, 0, own, scores);
    CHECK(documents == 0 || memcmp(own, scores, documents * sizeof *own) == 0);
    check_lending(a, &q, own);
    for (size_t t = 0; t <= terms; t++) {
        int64_t *found = exact(a, documents * sizeof *found, 8);
        size_t count = 0, seen = 0;
        CHECK(cal_postings_documents(postings, (uint32_t)t, documents, mask, found, documents, &count) == CAL_OK);
        for (size_t d = 0; d < documents; d++) {
            if (t == terms || held[d][t] == 0 || !mask[d]) {
                continue;
            }
            CHECK(seen < count && found[seen] == (int64_t)d);
            seen++;
            const double frequency = stands_for(held[d][t]);
            const double room = 0.9 * (1 - 0.4 + 0.4 * (lengths[d] / 3.7));
            expected[d] += weights[t] * ((0.9 + 1) * frequency / (frequency + room));
        }
        CHECK(seen == count && counts[t] == (int64_t)count);
        free(a->blocks[--a->count]); /* as many as terms: more than the arena holds */
    }
    CHECK(documents == 0 || memcmp(scores, expected, documents * sizeof *scores) == 0);
    const size_t k = documents / 2;
    int64_t *ids = exact(a, k * sizeof *ids, 8);
    float *best = exact(a, k * sizeof *best, 4);
    size_t found = 0;
    uint64_t *tie = exact(a, 2 * documents * sizeof *tie, 8);
    for (size_t d = 0; d < documents; d++) { /* from the last to the first */
        tie[2 * d] = 7;
        tie[2 * d + 1] = documents - d;
        expected[d] = scores[d] > 0 ? 0.5 * (double)(1 + d % 2) : -0.5; /* many equal ones */
    }
    CHECK(cal_best_scores(expected, documents, NULL, tie, k, ids, best, &found) == CAL_OK);
    size_t rank = 0;
    for (int odd = 1; odd >= 0; odd--) {
        for (size_t d = documents; d-- > 0;) {
            if ((int)(d % 2) == odd && expected[d] > 0 && rank < k) {
                CHECK(rank < found && ids[rank] == (int64_t)d && best[rank] == (float)expected[d]);
                rank++;
            }
        }
    }
    CHECK(rank == found);
    /* The same scores of the same rows, given from the last row on: the same rows are best. */
    int64_t *rows = exact(a, documents * sizeof *rows, 8), *again = exact(a, k * sizeof *again, 8);
    for (size_t d = 0; d < documents; d++) {
        rows[d] = (int64_t)(documents - 1 - d);
        scores[d] = expected[documents - 1 - d];
    }
    CHECK(cal_best_scores(scores, documents, rows, tie, k, again, best, &found) == CAL_OK && found == rank);
    for (size_t i = 0; i < rank; i++) {
        CHECK(rows[again[i]] == ids[i]);
    }
}

static double said_by(const cal_part *part, size_t i, int64_t row) {
    const double values[] = {
        part->scores ? part->scores[i] : 0,
        part->scores ? part->scores[i] / part->by : 0,
        part->less ? part->scores[i] / part->by - part->less[i] / part->by : 0,
        part->near && i < part->near_count ? ((double)part->near[i] - part->low) / part->by : 0,
        part->flags && (part->flags[row] & part->flag) != 0,
    };
    return values[part->how];
}

/* Parts of every kind, joined one number at a time as well. */
static void check_join(arena *a, input *in) {
    const size_t rows_there = 1 + take_below(in, 40), count = take_below(in, rows_there + 1), k = take_below(in, 50);
    double *own = exact(a, count * sizeof *own, 8), *less = exact(a, count * sizeof *less, 8);
    float *near = exact(a, count * sizeof *near, 4);
    uint8_t *flags = exact(a, rows_there, 1), *inside = exact(a, rows_there, 1);
    int64_t *rows = exact(a, count * sizeof *rows, 8);
    uint64_t *tie = exact(a, 2 * rows_there * sizeof *tie, 8);
    for (size_t r = 0; r < rows_there; r++) {
        flags[r] = (uint8_t)take(in, 1);
        inside[r] = flags[r] & 1;
        tie[2 * r] = flags[r] >> 7;
        tie[2 * r + 1] = rows_there - r;
    }
    for (size_t i = 0; i < count; i++) { /* each row once, from the last on */
        rows[i] = (int64_t)(rows_there - 1 - i);
        own[i] = (double)(int8_t)take(in, 1) / 8;
        less[i] = (double)(int8_t)take(in, 1) / 16;
        near[i] = (float)(int8_t)take(in, 1) / 128;
    }
    cal_part parts[CAL_PART_FLAGGED + 1];
    const size_t part_count = take_below(in, CAL_PART_FLAGGED + 2);
    for (size_t p = 0; p < part_count; p++) {
        const cal_part part = {.how = (int32_t)take_below(in, CAL_PART_FLAGGED + 1), .share = 0.7 - 0.3 * (double)p};
        parts[p] = part;
        parts[p].by = 0.3;
        parts[p].low = 0.125;
        if (part.how == CAL_PART_STRETCHED) {
            parts[p].near = near;
            parts[p].near_count = take_below(in, count + 1);
        } else if (part.how == CAL_PART_FLAGGED) {
            parts[p].flags = flags;
            parts[p].flag = 6;
        } else {
            parts[p].scores = own;
            parts[p].less = part.how == CAL_PART_LENT ? less : NULL;
        }
    }
    const uint8_t *mask = take(in, 1) % 2 ? inside : NULL;
    const double least = take(in, 1) % 2 ? 1e-6 : 0;
    double *scores = exact(a, count * sizeof *scores, 8), *expected = exact(a, count * sizeof *expected, 8);
    int64_t *ids = exact(a, k * sizeof *ids, 8), *order = exact(a, k * sizeof *order, 8);
    float *best = exact(a, k * sizeof *best, 4), *sorted = exact(a, k * sizeof *sorted, 4);
    double *told = exact(a, part_count * k * sizeof *told, 8), *again = exact(a, part_count * k * sizeof *again, 8);
    size_t found = 0, sure = 0;
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (size_t p = 0; p < part_count; p++) {
            const double product = parts[p].share * said_by(&parts[p], i, rows[i]);
            sum += product;
        }
        sum = sum < least ? least : sum;
        expected[i] = mask && !mask[rows[i]] ? 0 : sum;
    }
    CHECK(cal_join(parts, part_count, count, rows, rows_there, mask, least, tie, k, scores, ids, best, told, &found) ==
          CAL_OK);
    for (size_t i = 0; i < count; i++) {
        CHECK(scores[i] == expected[i]);
    }
    CHECK(cal_best_scores(expected, count, rows, tie, k, order, sorted, &sure) == CAL_OK && sure == found);
    for (size_t j = 0; j < found; j++) {
        CHECK(ids[j] == order[j] && best[j] == sorted[j]);
        for (size_t p = 0; p < part_count; p++) {
            const double gave = parts[p].share * said_by(&parts[p], (size_t)ids[j], rows[ids[j]]);
            CHECK(told[p * found + j] == gave);
        }
    }
    if (found > 0) {
        order[0] = -1;
        CHECK(cal_join_told(parts, part_count, count, rows, rows_there, order, found, again) == CAL_OK);
        for (size_t p = 0; p < part_count; p++) {
            CHECK(again[p * found] == 0);
            CHECK(memcmp(again + p * found + 1, told + p * found + 1, (found - 1) * sizeof *again) == 0);
        }
        order[0] = (int64_t)count;
        CHECK(cal_join_told(parts, part_count, count, rows, rows_there, order, found, again) == CAL_E_ARGUMENT);
    }
    if (count > 0) { /* what does not fit is refused before anything is read of it */
        cal_part wrong = {.how = CAL_PART_FLAGGED + 1, .scores = own, .near = near, .near_count = count + 1};
        CHECK(cal_join(&wrong, 1, count, rows, rows_there, mask, 0, tie, 0, scores, ids, best, told, &found) ==
              CAL_E_ARGUMENT);
        wrong.how = CAL_PART_STRETCHED;
        CHECK(cal_join(&wrong, 1, count, rows, rows_there, mask, 0, tie, 0, scores, ids, best, told, &found) ==
              CAL_E_ARGUMENT);
        CHECK(cal_join(parts, 0, count, rows, (size_t)rows[0], mask, 0, tie, 0, scores, ids, best, told, &found) ==
              CAL_E_ARGUMENT);
    }
}

static void check_postings(arena *a, input *in) {
    const size_t documents = plenty.spans, words = plenty.table.count, terms = words + 1;
    uint64_t *starts = exact(a, (words + 1) * sizeof *starts, 8);
    uint32_t *terms_of = exact(a, 2 * words * sizeof *terms_of, 4);
    starts[0] = 0;
    for (size_t w = 0; w < words; w++) {
        starts[w + 1] = starts[w];
        terms_of[starts[w + 1]++] = (uint32_t)w;
        if (w % 3 == 0) {
            terms_of[starts[w + 1]++] = (uint32_t)w + 1;
        }
    }
    uint32_t *segment = exact(a, CAL_POSTING_SEGMENT * sizeof *segment, 0);
    memset(segment, 0xFF, CAL_POSTING_SEGMENT * sizeof *segment);
    uint32_t **segments = exact(a, sizeof *segments, 0);
    segments[0] = segment;
    cal_postings postings = {.segments = segments, .segment_count = 1, .terms = terms};
    postings.first = exact(a, terms * sizeof(uint32_t), 4);
    postings.chain = exact(a, terms * sizeof(uint32_t), 4);
    postings.tail = exact(a, terms * sizeof(uint32_t), 4);
    postings.left = exact(a, terms * sizeof(uint16_t), 2);
    postings.level = exact(a, terms, 1);
    memset(postings.first, 0xFF, terms * sizeof(uint32_t));
    memset(postings.chain, 0xFF, terms * sizeof(uint32_t));
    memset(postings.left, 0, terms * sizeof(uint16_t));
    memset(postings.level, 0, terms);
    uint32_t *counts = exact(a, terms * sizeof *counts, 4), *touched = exact(a, terms * sizeof *touched, 4);
    uint32_t *lengths = exact(a, documents * sizeof *lengths, 4);
    uint8_t *word_flags = exact(a, words, 1), *flags = exact(a, documents, 1);
    for (size_t w = 0; w < words; w++) {
        word_flags[w] = (uint8_t)(1U << (w % 8));
    }
    memset(counts, 0, terms * sizeof *counts);
    memset(held, 0, sizeof held);
    const uint32_t *ids = copied(a, plenty.ids, (size_t)plenty.id_offsets[documents] * sizeof *ids, 4);
    for (size_t d = 0; d < documents; d++) {
        for (int64_t i = plenty.id_offsets[d]; i < plenty.id_offsets[d + 1]; i++) {
            for (uint64_t t = starts[ids[i]]; t < starts[ids[i] + 1]; t++) {
                held[d][terms_of[t]]++;
            }
        }
    }
    /* In two goes. */
    const size_t first = documents ? take_below(in, documents + 1) : 0;
    const int64_t *offsets = copied(a, plenty.id_offsets, (documents + 1) * sizeof *offsets, 8);
    size_t done = 0;
    CHECK(cal_postings_add(&postings, 0, ids, offsets, first, starts, terms_of, word_flags, words, counts, touched,
                           lengths, flags, &done) == CAL_OK);
    CHECK(done == first);
    CHECK(cal_postings_add(&postings, first, ids, offsets + first, documents - first, starts, terms_of, word_flags,
                           words, counts, touched, lengths + first, flags + first, &done) == CAL_OK);
    CHECK(done == documents - first);
    for (size_t d = 0; d < documents; d++) {
        uint8_t expected = 0;
        for (int64_t i = plenty.id_offsets[d]; i < plenty.id_offsets[d + 1]; i++) {
            expected |= word_flags[ids[i]];
        }
        CHECK(flags[d] == expected);
    }
    uint8_t *mask = exact(a, documents, 1);
    for (size_t d = 0; d < documents; d++) {
        mask[d] = (uint8_t)(take(in, 1) % 4 != 1);
    }
    check_reading(a, &postings, documents, mask, lengths);
    if (documents > 0) {
        check_reading(a, &postings, documents - 1, mask, lengths);
    }
}

/* ---- phrases ------------------------------------------------------------------------------------------------ */

static void check_phrases(arena *a, input *in) {
    const size_t documents = plenty.spans, words = plenty.table.count;
    const size_t count = (size_t)plenty.id_offsets[documents];
    if (count == 0) {
        return;
    }
    /* Numbers of one to five bytes: those of words, spread over what fits. */
    const uint32_t spread = (uint32_t)(take(in, 1) % 64 + 1);
    uint32_t *numbers = exact(a, count * sizeof *numbers, 4);
    for (size_t i = 0; i < count; i++) {
        numbers[i] = plenty.ids[i] * spread;
    }
    const size_t numbered = words * spread;
    uint8_t *packed = exact(a, count * 5, 1);
    int64_t *sizes = exact(a, (documents + 1) * sizeof *sizes, 8);
    CHECK(cal_words_pack(numbers, plenty.id_offsets, documents, packed, count * 5, sizes) == CAL_OK);
    CHECK(cal_words_pack(numbers, plenty.id_offsets, documents, packed, 4, sizes) == CAL_E_ARGUMENT || count == 0);
    CHECK(cal_words_pack(numbers, plenty.id_offsets, documents, packed, count * 5, sizes) == CAL_OK);
    uint64_t *starts = exact(a, (numbered + 1) * sizeof *starts, 8);
    uint32_t *parts = exact(a, 2 * numbered * sizeof *parts, 4);
    starts[0] = 0;
    for (size_t w = 0; w < numbered; w++) { /* every second word has two parts */
        starts[w + 1] = starts[w];
        parts[starts[w + 1]++] = (uint32_t)w / 3;
        if (w % 2) {
            parts[starts[w + 1]++] = (uint32_t)w / 5;
        }
    }
    uint32_t phrase[CAL_PHRASE_MAX];
    const size_t length = 1 + take_below(in, 4);
    const size_t from = take_below(in, count);
    for (size_t j = 0; j < length; j++) { /* often one that stands there */
        phrase[j] = parts[starts[numbers[(from + j) % count]]];
    }
    const uint8_t **documents_of = exact(a, documents * sizeof *documents_of, 0);
    int64_t *lengths = exact(a, documents * sizeof *lengths, 8);
    uint32_t *matches = exact(a, documents * sizeof *matches, 4);
    for (size_t d = 0; d < documents; d++) {
        lengths[d] = sizes[d + 1] - sizes[d];
        documents_of[d] = copied(a, packed + sizes[d], (size_t)lengths[d], 1);
    }
    CHECK(cal_phrase_matches(documents_of, lengths, documents, starts, parts, numbered, phrase, length, matches) ==
          CAL_OK);
    for (size_t d = 0; d < documents; d++) {
        static uint32_t row[2 * MOST_IDS];
        size_t size = 0;
        for (int64_t i = plenty.id_offsets[d]; i < plenty.id_offsets[d + 1]; i++) {
            for (uint64_t p = starts[numbers[i]]; p < starts[numbers[i] + 1]; p++) {
                row[size++] = parts[p];
            }
        }
        uint32_t expected = 0;
        for (size_t i = 0; i + length <= size; i++) {
            expected += memcmp(row + i, phrase, length * sizeof *phrase) == 0;
        }
        CHECK(matches[d] == expected);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    arena a = {.count = 0};
    uint64_t choices = take(&in, 4);
    check_words(&a, &in);
    uint8_t drawn[256];
    for (size_t i = 0; i < sizeof drawn; i++) {
        drawn[i] = (uint8_t)next_random(&choices);
    }
    check_join(&a, &(input){drawn, sizeof drawn});
    if (plenty.spans > 0) {
        uint8_t bytes[64];
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)next_random(&choices);
        }
        input rest = {bytes, sizeof bytes};
        check_postings(&a, &rest);
        check_phrases(&a, &rest);
    }
    free_all(&a);
    return 0;
}
