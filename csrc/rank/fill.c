/* Filling a budget that sections share; the rules are in caliber.h. */
#include "../internal.h"

#define NONE (-1)
#define NO_LIMIT (-1)
#define MAGNITUDE (INT64_C(1) << 40) /* of one length: sums of a million prices stay below 2^62 */
#define TOTAL (INT64_C(1) << 60)     /* of a budget, or what is used of it */

/* One filling: the rows of its columns. */
typedef struct {
    const int64_t *section, *cost, *passage, *number, *lead, *compressed, *link;
    int64_t *used;
    const int64_t *opening, *most, *cap, *floor;
    size_t n, sections;
    int64_t separator, line, hole, least;
    uint8_t *codes;
    int64_t room;
    int64_t *shortened;
    size_t shortened_count;
} filling;

static const int64_t *row(const int64_t *columns, size_t length, int number) {
    return columns + length * (size_t)number;
}

static filling filling_of(const int64_t *candidates, size_t n, int64_t *sections, size_t section_count,
                          const int64_t *measures, uint8_t *codes) {
    const filling f = {
        .section = row(candidates, n, CAL_FILL_SECTION),
        .cost = row(candidates, n, CAL_FILL_COST),
        .passage = row(candidates, n, CAL_FILL_PASSAGE),
        .number = row(candidates, n, CAL_FILL_NUMBER),
        .lead = row(candidates, n, CAL_FILL_LEAD),
        .compressed = row(candidates, n, CAL_FILL_SHORT),
        .link = row(candidates, n, CAL_FILL_LINK),
        .used = sections + section_count * (size_t)CAL_FILL_USED,
        .opening = row(sections, section_count, CAL_FILL_OPENING),
        .most = row(sections, section_count, CAL_FILL_MOST),
        .cap = row(sections, section_count, CAL_FILL_CAP),
        .floor = row(sections, section_count, CAL_FILL_FLOOR),
        .n = n,
        .sections = section_count,
        .separator = measures[CAL_FILL_SEPARATOR],
        .line = measures[CAL_FILL_LINE],
        .hole = measures[CAL_FILL_HOLE],
        .least = measures[CAL_FILL_LEAST],
        .codes = codes,
    };
    return f;
}

static int is_within(int64_t value, int64_t bound) {
    return (uint64_t)value + (uint64_t)(bound - 1) <= 2 * (uint64_t)(bound - 1);
}

/* The caller may change rows between calls, so each call checks the values that it adds or indexes with. */
static int32_t check_measures(const filling *f) {
    return is_within(f->separator, MAGNITUDE) && is_within(f->line, MAGNITUDE) && is_within(f->hole, MAGNITUDE) &&
                   is_within(f->least, MAGNITUDE)
               ? CAL_OK
               : CAL_E_OVERFLOW;
}

static int32_t check_shared(const filling *f) {
    if (check_measures(f) != CAL_OK) {
        return CAL_E_OVERFLOW;
    }
    for (size_t s = 0; s < f->sections; s++) {
        if (!is_within(f->opening[s], MAGNITUDE) || !is_within(f->used[s], TOTAL) || !is_within(f->most[s], TOTAL) ||
            !is_within(f->cap[s], TOTAL) || !is_within(f->floor[s], TOTAL)) {
            return CAL_E_OVERFLOW;
        }
    }
    return CAL_OK;
}

static int32_t check_candidate(const filling *f, size_t place) {
    if ((uint64_t)f->section[place] >= f->sections) {
        return CAL_E_SECTION;
    }
    const int within = is_within(f->cost[place], MAGNITUDE) & is_within(f->lead[place], MAGNITUDE) &
                       is_within(f->compressed[place], MAGNITUDE); /* one branch: a walk asks for each place */
    return within ? CAL_OK : CAL_E_OVERFLOW;
}

/* Whether two numbers of lines, which nobody bounds again, are apart by more than one. */
static int is_hole(int64_t from, int64_t to) { return (uint64_t)to - (uint64_t)from != 1; }

static int is_inside(uint8_t code) {
    return code == CAL_FILL_INCLUDED || code == CAL_FILL_CUT || code == CAL_FILL_COMPRESSED;
}

/* Whether other lines of its passage are inside, and the price of a line among them. */
static int price_in_passage(const filling *f, size_t place, int64_t cost, int leaving, int64_t *price) {
    const int64_t number = f->number[place];
    int64_t before = 0, after = 0;
    int any_before = 0, any_after = 0;
    size_t other = place, left = f->n; /* a ring that the caller broke ends too */
    do {
        if (is_inside(f->codes[other]) && f->section[other] == f->section[place] && !(leaving && other == place)) {
            const int64_t its = f->number[other];
            if (its < number && (!any_before || its > before)) {
                before = its;
                any_before = 1;
            }
            if (its >= number && (!any_after || its < after)) {
                after = its;
                any_after = 1;
            }
        }
        other = (size_t)f->link[other];
    } while (other != place && other < f->n && --left);
    if (!any_before && !any_after) {
        return 0;
    }
    const int64_t made = (any_before && is_hole(before, number)) + (any_after && is_hole(number, after)) -
                         (any_before && any_after && is_hole(before, after));
    *price = cost + f->line + f->hole * made;
    return 1;
}

/* What a candidate of some length costs beside what is inside. */
static int64_t price_of(const filling *f, size_t place, int64_t cost) {
    if (f->passage[place]) {
        int64_t price;
        if (price_in_passage(f, place, cost, 0, &price)) {
            return price;
        }
        cost += f->lead[place];
    }
    const int64_t section = f->section[place];
    return cost + (f->used[section] ? f->separator : f->opening[section]);
}

static void enter(filling *f, size_t place, int64_t price, uint8_t code) {
    f->codes[place] = code;
    f->room -= price;
    f->used[f->section[place]] += price;
}

static int fits(const filling *f, size_t place, int64_t price, int64_t limit) {
    const int64_t section = f->section[place], after = f->used[section] + price;
    return price <= f->room && (limit == NO_LIMIT || after <= limit) &&
           (f->most[section] < 0 || after <= f->most[section]);
}

static int enter_whole(filling *f, size_t place, int64_t limit) {
    if (f->cost[place] > f->room + f->hole) { /* no price is lower than its cost but for a hole that it fills */
        return 0;
    }
    const int64_t price = price_of(f, place, f->cost[place]);
    if (!fits(f, place, price, limit)) {
        return 0;
    }
    enter(f, place, price, CAL_FILL_INCLUDED);
    return 1;
}

static int enter_compressed(filling *f, size_t place, int64_t limit) {
    if (f->compressed[place] < 0) {
        return 0;
    }
    const int64_t price = price_of(f, place, f->compressed[place]);
    if (!fits(f, place, price, limit)) {
        return 0;
    }
    f->shortened[f->shortened_count++] = (int64_t)place;
    enter(f, place, price, CAL_FILL_COMPRESSED);
    return 1;
}

static void walk(filling *f, const int64_t *places, size_t count, int32_t how, int64_t limit) {
    for (size_t i = 0; i < count; i++) {
        const size_t place = (size_t)places[i];
        if (f->codes[place]) {
            continue;
        }
        if (how != CAL_WALK_COMPRESSED && enter_whole(f, place, limit)) {
            continue;
        }
        if (how != CAL_WALK_WHOLE) {
            enter_compressed(f, place, limit);
        }
    }
}

/* Fills the floor of one section, until hardly anything of it is left. */
static void fill_floor(filling *f, const int64_t *places, size_t count, int64_t section) {
    const int64_t floor = f->floor[section];
    for (size_t i = 0; i < count; i++) {
        const size_t place = (size_t)places[i];
        if (f->section[place] != section) {
            continue;
        }
        const int64_t left = floor - f->used[section];
        if (left < f->least) {
            return;
        }
        if (!f->codes[place] && f->cost[place] <= left + f->hole) {
            enter_whole(f, place, floor);
        }
    }
}

static void fill_shares(filling *f, const int64_t *places, size_t count) {
    for (size_t section = 0; section < f->sections; section++) {
        if (f->floor[section] > 0) {
            fill_floor(f, places, count, (int64_t)section);
        }
    }
    int capped = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t place = (size_t)places[i];
        if (f->room < f->least) {
            return;
        }
        if (f->codes[place]) {
            continue;
        }
        const int64_t section = f->section[place], cap = f->cap[section];
        if (f->used[section] + f->least > cap || !enter_whole(f, place, cap)) {
            capped |= !enter_compressed(f, place, cap);
        }
    }
    if (capped && f->room >= f->least) {
        walk(f, places, count, CAL_WALK_WHOLE, NO_LIMIT);
    }
    walk(f, places, count, CAL_WALK_COMPRESSED, NO_LIMIT);
}

int32_t cal_fill_link(int64_t *candidates, size_t n, size_t section_count, int64_t *heads, size_t passages) {
    const int64_t *section = row(candidates, n, CAL_FILL_SECTION), *passage = row(candidates, n, CAL_FILL_PASSAGE);
    int64_t *link = candidates + n * (size_t)CAL_FILL_LINK;
    for (size_t i = 0; i < n; i++) {
        if (section[i] < 0 || (size_t)section[i] >= section_count) {
            return CAL_E_SECTION;
        }
        if (passage[i] < 0 || (size_t)passage[i] >= passages) {
            return CAL_E_GROUP;
        }
        for (int number = CAL_FILL_COST; number < CAL_FILL_LINK; number++) {
            const int64_t value = row(candidates, n, number)[i];
            if (!is_within(value, MAGNITUDE)) {
                return CAL_E_OVERFLOW;
            }
        }
    }
    for (size_t p = 0; p < passages; p++) {
        heads[p] = NONE;
    }
    for (size_t i = 0; i < n; i++) {
        int64_t *head = &heads[passage[i]];
        if (!passage[i] || *head == NONE) {
            link[i] = (int64_t)i;
            *head = (int64_t)i;
        } else {
            link[i] = link[*head];
            link[*head] = (int64_t)i;
        }
    }
    return CAL_OK;
}

int32_t cal_fill_price(const int64_t *candidates, size_t n, int64_t *sections, size_t section_count,
                       const int64_t *measures, uint8_t *codes, size_t place, int64_t cost, int32_t leaving,
                       int64_t *price) {
    if (place >= n) {
        return CAL_E_ARGUMENT;
    }
    const filling f = filling_of(candidates, n, sections, section_count, measures, codes);
    const int32_t status = check_candidate(&f, place);
    if (status != CAL_OK) {
        return status;
    }
    if (!is_within(cost, MAGNITUDE) || !is_within(f.opening[f.section[place]], MAGNITUDE) ||
        check_measures(&f) != CAL_OK) {
        return CAL_E_OVERFLOW;
    }
    if (!leaving) {
        *price = price_of(&f, place, cost);
        return CAL_OK;
    }
    if (f.passage[place]) {
        if (price_in_passage(&f, place, cost, 1, price)) {
            return CAL_OK;
        }
        cost += f.lead[place];
    }
    const int64_t section = f.section[place], alone = cost + f.opening[section];
    *price = f.used[section] == alone ? alone : cost + f.separator;
    return CAL_OK;
}

int32_t cal_fill_walk(const int64_t *candidates, size_t n, int64_t *sections, size_t section_count,
                      const int64_t *measures, const int64_t *places, size_t count, int32_t how, int64_t limit,
                      uint8_t *codes, int64_t *room, int64_t *compressed, size_t *compressed_count) {
    if (how < CAL_WALK_WHOLE || how > CAL_WALK_SHARES) {
        return CAL_E_ARGUMENT;
    }
    filling f = filling_of(candidates, n, sections, section_count, measures, codes);
    if (!is_within(*room, TOTAL) || !is_within(limit, TOTAL) || check_shared(&f) != CAL_OK) {
        return CAL_E_OVERFLOW;
    }
    for (size_t i = 0; i < count; i++) {
        if (places[i] < 0 || (size_t)places[i] >= n) {
            return CAL_E_ARGUMENT;
        }
        const int32_t status = check_candidate(&f, (size_t)places[i]);
        if (status != CAL_OK) {
            return status;
        }
    }
    f.room = *room;
    f.shortened = compressed;
    if (how == CAL_WALK_SHARES) {
        fill_shares(&f, places, count);
    } else {
        walk(&f, places, count, how, limit);
    }
    *room = f.room;
    *compressed_count = f.shortened_count;
    return CAL_OK;
}
