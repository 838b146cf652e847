/*
 * cal_rank_and_fill: any columns, right or wrong, against a second implementation that compares candidates one with
 * another and looks up each group by walking all candidates.
 */
#include "harness.h"

#define MOST_CANDIDATES 3000
#define MOST_SECTIONS 6

typedef struct {
    int32_t priority, tokens, group, section;
    float relevance;
    int64_t age_us;
    uint64_t tie[2];
} candidate;

typedef struct {
    candidate candidates[MOST_CANDIDATES];
    size_t n, sections;
    int64_t budget;
    int32_t section_budget[MOST_SECTIONS], section_overhead[MOST_SECTIONS], separator_tokens;
    float min_relevance;
} problem;

static problem asked; /* too large for the stack */

/* ---- the second implementation ---------------------------------------------------------------------------- */

static int less(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

static int compare(const void *left, const void *right) {
    const int64_t i = *(const int64_t *)left, j = *(const int64_t *)right;
    const candidate *a = &asked.candidates[i], *b = &asked.candidates[j];
    if (a->priority != b->priority) {
        return a->priority > b->priority ? -1 : 1;
    }
    if (a->relevance != b->relevance) {
        return a->relevance > b->relevance ? -1 : 1;
    }
    if (a->age_us != b->age_us) {
        return a->age_us < b->age_us ? -1 : 1;
    }
    for (int half = 0; half < 2; half++) {
        if (a->tie[half] != b->tie[half]) {
            return less(a->tie[half], b->tie[half]);
        }
    }
    return i < j ? -1 : 1;
}

static int valid(void) {
    int right = asked.budget >= 0 && asked.separator_tokens >= 0 && !isnan(asked.min_relevance);
    for (size_t s = 0; s < asked.sections; s++) {
        right = right && asked.section_budget[s] >= -1 && asked.section_overhead[s] >= 0;
    }
    static int32_t section_of_group[MOST_CANDIDATES];
    memset(section_of_group, 0xFF, sizeof section_of_group);
    for (size_t i = 0; i < asked.n; i++) {
        const candidate *c = &asked.candidates[i];
        if (!isfinite(c->relevance) || c->tokens < 0 || c->section < 0 || (size_t)c->section >= asked.sections ||
            c->group < -1 || (c->group >= 0 && (size_t)c->group >= asked.n)) {
            return 0;
        }
        if (c->group >= 0) {
            int32_t *section = &section_of_group[c->group];
            right = right && (*section == -1 || *section == c->section);
            *section = c->section;
        }
    }
    return right;
}

typedef struct {
    int64_t used, section_used[MOST_SECTIONS];
    int started[MOST_SECTIONS];
} ledger;

static uint8_t judge(ledger *l, int32_t s, float best, int64_t cost) {
    cost += l->started[s] ? asked.separator_tokens : asked.section_overhead[s];
    if (best < asked.min_relevance) {
        return CAL_FILL_EXCLUDED_RELEVANCE;
    }
    if (asked.section_budget[s] != -1 && l->section_used[s] + cost > asked.section_budget[s]) {
        return CAL_FILL_EXCLUDED_SECTION_BUDGET;
    }
    if (cost > asked.budget - l->used) {
        return CAL_FILL_EXCLUDED_BUDGET;
    }
    l->used += cost;
    l->section_used[s] += cost;
    l->started[s] = 1;
    return CAL_FILL_INCLUDED;
}

static void rank_and_fill(int64_t *order, uint8_t *decision) {
    static int64_t sorted[MOST_CANDIDATES], next_in_group[MOST_CANDIDATES], last_of_group[MOST_CANDIDATES];
    static uint8_t placed[MOST_CANDIDATES];
    for (size_t i = 0; i < asked.n; i++) {
        sorted[i] = (int64_t)i;
        next_in_group[i] = last_of_group[i] = -1;
    }
    memset(placed, 0, sizeof placed);
    qsort(sorted, asked.n, sizeof *sorted, compare);
    for (size_t r = 0; r < asked.n; r++) {
        const int32_t group = asked.candidates[sorted[r]].group;
        if (group >= 0) {
            if (last_of_group[group] >= 0) {
                next_in_group[last_of_group[group]] = sorted[r];
            }
            last_of_group[group] = sorted[r];
        }
    }
    ledger l = {0, {0}, {0}};
    size_t at = 0;
    for (size_t r = 0; r < asked.n; r++) {
        const size_t from = at;
        float best = -INFINITY;
        int64_t cost = -(int64_t)asked.separator_tokens;
        for (int64_t i = sorted[r]; i >= 0 && !placed[i]; i = next_in_group[i]) {
            const candidate *c = &asked.candidates[i];
            placed[i] = 1;
            order[at++] = i;
            best = c->relevance > best ? c->relevance : best;
            cost += (int64_t)c->tokens + asked.separator_tokens;
        }
        if (at == from) {
            continue;
        }
        const uint8_t code = judge(&l, asked.candidates[sorted[r]].section, best, cost);
        for (size_t place = from; place < at; place++) {
            const int alone_or_whole = code == CAL_FILL_INCLUDED || code == CAL_FILL_EXCLUDED_RELEVANCE;
            decision[order[place]] = place == from || alone_or_whole ? code : CAL_FILL_EXCLUDED_GROUP;
        }
    }
}

/* ---- what an input asks ----------------------------------------------------------------------------------- */

static float take_relevance(input *in) {
    const uint64_t kind = take(in, 1);
    if (kind < 250) {
        return kind == 249 ? -0.0F : (float)(kind % 16) / 8.0F - 1.0F;
    }
    float value;
    const uint32_t bits = (uint32_t)take(in, 4);
    memcpy(&value, &bits, sizeof value);
    return kind == 255 || isfinite(value) ? value : -0.0F;
}

static int32_t take_number(input *in, int32_t usual) {
    const uint64_t kind = take(in, 1);
    return kind == 255 ? (int32_t)take_signed(in) : kind == 254 ? INT32_MAX : (int32_t)kind % usual;
}

static candidate take_candidate(input *in, int grouped) {
    candidate c;
    const uint64_t kind = take(in, 1);
    c.priority = kind % 4 ? (int32_t)(kind % 3) - 1 : (int32_t)take_signed(in);
    c.relevance = take_relevance(in);
    c.age_us = kind & 4 ? take_signed(in) : (int64_t)(kind & 3);
    c.tie[0] = kind & 8 ? (uint64_t)take_signed(in) : 0;
    c.tie[1] = kind & 16 ? (uint64_t)take_signed(in) : 0;
    c.tokens = take_number(in, 50);
    c.section = (int32_t)(asked.sections ? kind / 32 % asked.sections : 0);
    c.group = -1;
    if (grouped && kind & 64) {
        c.group = (int32_t)(take(in, 1) % 32);
        c.section = take(in, 1) > 252 ? c.section : (int32_t)(asked.sections ? (size_t)c.group % asked.sections : 0);
    }
    switch (take(in, 1)) {
    case 255: /* anything at all */
        c.group = (int32_t)take_signed(in);
        c.section = (int32_t)take_signed(in);
        break;
    case 254: /* one too many */
        c.section = (int32_t)asked.sections;
        break;
    case 253:
        c.group = (int32_t)asked.n;
        break;
    default:
        break;
    }
    return c;
}

static void take_problem(input *in) {
    const uint64_t kind = take(in, 1);
    asked.sections = 1 + take_below(in, MOST_SECTIONS);
    asked.budget = kind & 1 ? (int64_t)take(in, 2) : take_signed(in);
    asked.separator_tokens = take_number(in, 4);
    asked.min_relevance = kind & 2 ? -INFINITY : take_relevance(in);
    for (size_t s = 0; s < MOST_SECTIONS; s++) {
        asked.section_budget[s] = take_number(in, 200);
        asked.section_budget[s] -= asked.section_budget[s] > INT32_MIN; /* -1, no budget, is usual */
        asked.section_overhead[s] = take_number(in, 10);
    }
    asked.n = take(in, 2) % MOST_CANDIDATES;
    asked.n = kind & 4 ? asked.n : asked.n % 64;
    /* Later candidates are earlier ones with a change, so that few bytes make many, and equal keys are usual. */
    uint64_t state = kind;
    for (size_t i = 0; i < asked.n; i++) {
        if (in->size > 0) {
            asked.candidates[i] = take_candidate(in, kind & 8 ? 1 : 0);
            continue;
        }
        const uint64_t random = next_random(&state);
        asked.candidates[i] = i ? asked.candidates[random % i] : (candidate){.group = -1};
        const uint64_t change = random >> 32 & 63, bit = random >> 40 & 63;
        if (change < 8) {
            asked.candidates[i].age_us ^= (int64_t)(UINT64_C(1) << bit);
        } else if (change < 16) {
            asked.candidates[i].tie[random >> 50 & 1] ^= UINT64_C(1) << bit;
        } else if (change < 24) {
            asked.candidates[i].priority ^= (int32_t)(UINT32_C(1) << (bit & 31));
        } else if (change == 24) { /* away from its group */
            asked.candidates[i].section = (int32_t)(bit % asked.sections);
        }
    }
}

/* ---- the kernel's turn ------------------------------------------------------------------------------------ */

#define COLUMN(NAME, TYPE)                                                                                             \
    TYPE *NAME = exact(a, asked.n * sizeof(TYPE), sizeof(TYPE));                                                       \
    for (size_t i = 0; i < asked.n; i++) {                                                                             \
        NAME[i] = asked.candidates[i].NAME;                                                                            \
    }

static int32_t run(arena *a, size_t scratch_missing, int64_t *order, uint8_t *decision) {
    COLUMN(priority, int32_t)
    COLUMN(relevance, float)
    COLUMN(age_us, int64_t)
    COLUMN(tokens, int32_t)
    COLUMN(group, int32_t)
    COLUMN(section, int32_t)
    uint64_t *tie = exact(a, 2 * asked.n * sizeof *tie, sizeof *tie);
    for (size_t i = 0; i < asked.n; i++) {
        memcpy(tie + 2 * i, asked.candidates[i].tie, 2 * sizeof *tie);
    }
    const cal_rank_columns columns = {priority, relevance, age_us, tokens, tie, group, section};
    const int32_t *budgets = copied(a, asked.section_budget, asked.sections * sizeof *budgets, 0);
    const int32_t *overheads = copied(a, asked.section_overhead, asked.sections * sizeof *overheads, 4);
    const size_t size = cal_rank_scratch(asked.n, asked.sections) - scratch_missing;
    return cal_rank_and_fill(&columns, asked.n, asked.sections, asked.budget, budgets, overheads,
                             asked.separator_tokens, asked.min_relevance, exact(a, size, 8), size, order, decision);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    arena a = {.count = 0};
    take_problem(&in);
    int64_t *order = exact(&a, asked.n * sizeof *order, 8);
    uint8_t *decision = exact(&a, asked.n, 1);
    const int32_t status = run(&a, 0, order, decision);
    CHECK((status == CAL_OK) == valid());
    if (status == CAL_OK) {
        static int64_t expected_order[MOST_CANDIDATES];
        static uint8_t expected_decision[MOST_CANDIDATES];
        rank_and_fill(expected_order, expected_decision);
        CHECK(asked.n == 0 || memcmp(order, expected_order, asked.n * sizeof *order) == 0);
        CHECK(asked.n == 0 || memcmp(decision, expected_decision, asked.n) == 0);
        CHECK(run(&a, 1, order, decision) == CAL_E_ARGUMENT);
    }
    free_all(&a);
    return 0;
}
