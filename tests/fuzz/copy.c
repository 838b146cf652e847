/*
 * cal_copy_*: values go into Arrow's buffers and, written down here value by value, into the bytes that PostgreSQL's
 * documentation says; the kernel must give the same bytes, or the same fault. What is decoded from them must give them
 * again when it is encoded. Damaged bytes must be refused, or decode to what can be encoded and decoded once more.
 */
#include "harness.h"

#define MOST_ROWS 12
#define MOST_COLUMNS 4
#define MOST_ITEMS 4
#define MOST_BYTES 20 /* of a text */
#define MOST_FLOATS 6
#define ROOM 16384
#define EPOCH_US INT64_C(946684800000000)
#define OLDEST_US (EPOCH_US - INT64_C(211813488000000000))

/* ---- a column, growing ------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t values[2048], validity[8], item_validity[16];
    size_t size, count, items;
    int64_t offsets[MOST_ROWS + 1], item_offsets[MOST_ROWS * MOST_ITEMS + 1];
} built;

typedef struct {
    uint8_t bytes[ROOM];
    size_t size;
    size_t starts[MOST_ROWS + 1]; /* of tuples */
    cal_copy_fault fault;         /* reason 0: none */
} expectation;

static void put(expectation *e, const void *bytes, size_t size) {
    CHECK(e->size + size <= ROOM);
    memcpy(e->bytes + e->size, bytes, size);
    e->size += size;
}

static void put_number(expectation *e, uint64_t value, size_t bytes) {
    for (size_t i = bytes; i-- > 0;) {
        const uint8_t byte = (uint8_t)(value >> (8 * i));
        put(e, &byte, 1);
    }
}

static void set_bit(uint8_t *bits, size_t at, int value) {
    if (value) {
        bits[at / 8] |= (uint8_t)(1 << (at % 8));
    } else {
        bits[at / 8] &= (uint8_t)~(1 << (at % 8));
    }
}

/* ---- the rules a second time ------------------------------------------------------------------------------------- */

/* 0, or why not: characters by their number, then as many bytes as it needs. */
static uint64_t text_fault(const uint8_t *text, size_t size) {
    for (size_t at = 0; at < size;) {
        const uint8_t lead = text[at];
        if (lead == 0) {
            return CAL_COPY_NUL;
        }
        const size_t more = lead < 0x80 ? 0 : lead >> 5 == 6 ? 1 : lead >> 4 == 14 ? 2 : lead >> 3 == 30 ? 3 : 9;
        if (more > size - at - 1) {
            return CAL_COPY_UTF8;
        }
        uint32_t number = more == 0 ? lead : lead & (0x3FU >> more);
        for (size_t i = 1; i <= more; i++) {
            if (text[at + i] >> 6 != 2) {
                return CAL_COPY_UTF8;
            }
            number = number << 6 | (text[at + i] & 0x3FU);
        }
        const size_t needed = number < 0x80 ? 0 : number < 0x800 ? 1 : number < 0x10000 ? 2 : 3;
        if (needed != more || number > 0x10FFFF || number >> 11 == 0x1B) {
            return CAL_COPY_UTF8;
        }
        at += more + 1;
    }
    return 0;
}

/* The nearest half as a number of steps of its binade. */
static uint32_t half_of(float value) {
    const uint32_t sign = signbit(value) ? 0x8000 : 0;
    const double magnitude = fabs((double)value);
    int exponent = 0;
    frexp(magnitude, &exponent);
    const int step = magnitude == 0 || exponent < -13
                         ? -24
                         : exponent - 11; /* subnormals share the step of the smallest normal ones */
    const double steps = nearbyint(ldexp(magnitude, -step));
    const double biased = step == -24 ? steps : steps + 1024.0 * (step + 24);
    return sign | (uint32_t)biased;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Characters at the borders of what there is, on either side of them. */
static const char *const pieces[] = {
    "a",
    "{}",
    "12345678",
    "\x7F",
    "\xC2\x80",
    "\xC1\xBF",
    "\xDF\xBF",
    "\xE0\xA0\x80",
    "\xE0\x9F\xBF",
    "\xED\x9F\xBF",
    "\xED\xA0\x80",
    "\xEF\xBF\xBF",
    "\xF0\x90\x80\x80",
    "\xF0\x8F\xBF\xBF",
    "\xF4\x8F\xBF\xBF",
    "\xF4\x90\x80\x80",
    "\xF5\x80\x80\x80",
    "\xE6\x97",
    "\xE6\x97\xC0",
    "\x80",
};

static size_t make_text(input *in, uint8_t *text) {
    const size_t kind = (size_t)take(in, 1), most = kind / 4 % MOST_BYTES;
    size_t size = 0;
    if (kind % 4 == 3) {
        for (; size < most; size++) {
            text[size] = (uint8_t)take(in, 1);
        }
        return size;
    }
    for (;;) { /* nearly always of the first few */
        const size_t any = (size_t)take(in, 1),
                     piece = any % 8 ? any % 3 : any / 8 % (sizeof pieces / sizeof pieces[0]);
        const size_t length = strlen(pieces[piece]);
        if (size + length > most) {
            return size;
        }
        memcpy(text + size, pieces[piece], length);
        size += length;
    }
}

static uint64_t add_array(input *in, uint64_t kind, built *b, expectation *e) {
    const size_t count = (size_t)take(in, 1) % (MOST_ITEMS + 1);
    uint64_t reason = 0;
    put_number(e, count > 0, 4);
    put_number(e, 0, 4);
    put_number(e, kind == CAL_COPY_TEXT_ARRAY ? 25 : 2950, 4);
    if (count > 0) {
        put_number(e, count, 4);
        put_number(e, 1, 4);
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t item[MOST_BYTES];
        size_t size = 16;
        const int missing = take(in, 1) % 32 == 31;
        if (kind == CAL_COPY_TEXT_ARRAY) {
            size = make_text(in, item);
        } else {
            for (size_t k = 0; k < size; k++) {
                item[k] = (uint8_t)take(in, 1);
            }
        }
        memcpy(b->values + b->size, item, size);
        b->size += size;
        set_bit(b->item_validity, b->items, !missing);
        b->item_offsets[++b->items] = (int64_t)b->size;
        put_number(e, size, 4);
        put(e, item, size);
        reason = reason ? reason : missing ? CAL_COPY_ITEM : kind == CAL_COPY_TEXT_ARRAY ? text_fault(item, size) : 0;
    }
    return reason;
}

static uint64_t add_vector(input *in, uint64_t kind, uint64_t dimensions, built *b, expectation *e) {
    const size_t any = (size_t)take(in, 1), count = any % 8 == 7 ? any / 8 % MOST_FLOATS : dimensions ? dimensions : 3;
    int infinite = 0, large = 0;
    put_number(e, count, 2);
    put_number(e, 0, 2);
    for (size_t i = 0; i < count; i++) {
        const uint64_t bits = take(in, 4);
        float value = (float)(int16_t)(bits & 0xFFFF) / (float)(1 << (bits >> 16 & 15));
        if (bits >> 24 > 200) { /* any, or at the borders of what a half and a float hold */
            static const uint32_t borders[] = {0x477FEFFF, 0x477FF000, 0x477FF001, 0x7F7FFFFF, 0x7F800000, 0xFF800000};
            const uint32_t raw = bits & 1 ? (uint32_t)bits : borders[(bits >> 1) % 6];
            memcpy(&value, &raw, sizeof value);
        } else if (bits >> 24 > 150) {
            value *= 0x1p-20F; /* among the subnormal halves */
        }
        memcpy(b->values + b->size, &value, sizeof value);
        b->size += sizeof value;
        if (isnan(value) || isinf(value)) {
            infinite = 1;
        } else if (kind == CAL_COPY_HALFVEC && half_of(fabsf(value)) >= 0x7C00) {
            large = 1;
        } else if (kind == CAL_COPY_HALFVEC) {
            put_number(e, half_of(value), 2);
        } else {
            uint32_t raw;
            memcpy(&raw, &value, sizeof raw);
            put_number(e, raw, 4);
        }
    }
    if (count == 0 || (dimensions && count != dimensions)) {
        return CAL_COPY_DIMENSIONS;
    }
    return infinite ? CAL_COPY_NON_FINITE : large ? CAL_COPY_RANGE : 0;
}

static uint64_t add_fixed(input *in, uint64_t kind, built *b, size_t row, size_t first, expectation *e) {
    static const size_t widths[] = {1, 2, 4, 8, 4, 8, 16, 8};
    const size_t width = widths[kind];
    uint64_t number = take(in, width > 8 ? 8 : width);
    if (kind == CAL_COPY_BOOL) {
        set_bit(b->values, first + row, (int)number & 1);
        b->size = (first + row) / 8 + 1;
        put_number(e, number & 1, 1);
        return 0;
    }
    if (kind == CAL_COPY_INSTANT && number % 4) { /* more often one that can be sent */
        number =
            number % 4 == 1 ? (uint64_t)(OLDEST_US - (int64_t)(number >> 2 & 1)) : number % UINT64_C(8000000000000000);
    }
    memcpy(b->values + b->size, &number, width > 8 ? 8 : width); /* least significant first: as these machines do */
    if (kind == CAL_COPY_UUID) {
        memcpy(b->values + b->size + 8, &number, 8);
        put(e, b->values + b->size, 16);
    } else {
        put_number(e, kind == CAL_COPY_INSTANT ? number - (uint64_t)EPOCH_US : number, width);
    }
    b->size += width;
    return kind == CAL_COPY_INSTANT && (int64_t)number < OLDEST_US ? CAL_COPY_RANGE : 0;
}

/* Adds a value to a column and a field to the bytes; returns why it cannot be sent, or 0. */
static uint64_t add(input *in, const cal_copy_column *c, built *b, size_t row, expectation *e) {
    const int missing = take(in, 1) % 8 == 7;
    const size_t length_at = e->size;
    uint64_t reason = 0;
    put_number(e, 0, 4);
    set_bit(b->validity, c->first + row, !missing);
    if (c->kind <= CAL_COPY_INSTANT) {
        reason = add_fixed(in, c->kind, b, row, c->first, e);
    } else if (!missing && (c->kind == CAL_COPY_TEXT_ARRAY || c->kind == CAL_COPY_UUID_ARRAY)) {
        reason = add_array(in, c->kind, b, e);
    } else if (!missing && c->kind >= CAL_COPY_VECTOR) {
        reason = add_vector(in, c->kind, c->dimensions, b, e);
    } else if (!missing) {
        uint8_t text[MOST_BYTES];
        const size_t size = make_text(in, text);
        memcpy(b->values + b->size, text, size);
        b->size += size;
        if (c->kind == CAL_COPY_JSONB) {
            put_number(e, 1, 1);
        }
        put(e, text, size);
        reason = c->kind == CAL_COPY_BYTES ? 0 : text_fault(text, size);
    }
    const int array = c->kind == CAL_COPY_TEXT_ARRAY || c->kind == CAL_COPY_UUID_ARRAY;
    b->offsets[row + 1] = (int64_t)(array ? b->items : c->kind >= CAL_COPY_VECTOR ? b->size / 4 : b->size);
    if (missing) {
        e->size = length_at + 4;
        memset(e->bytes + length_at, 0xFF, 4);
        return c->nullable ? 0 : CAL_COPY_MISSING;
    }
    const size_t end = e->size;
    e->size = length_at;
    put_number(e, end - length_at - 4, 4);
    e->size = end;
    return reason;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

static int is_fixed(uint64_t kind) { return kind <= CAL_COPY_INSTANT; }

static size_t fixed_size(uint64_t kind, size_t rows) {
    static const size_t widths[] = {0, 2, 4, 8, 4, 8, 16, 8};
    return kind == CAL_COPY_BOOL ? (rows + 7) / 8 : rows * widths[kind];
}

/* Buffers of just the sizes that were found, or one byte or item less. */
static void make_room(arena *a, cal_copy_buffer *buffers, size_t columns, size_t rows, const uint64_t *sizes,
                      size_t short_of) {
    for (size_t c = 0; c < columns; c++) {
        cal_copy_buffer *b = &buffers[c];
        const uint64_t kind = b->kind;
        b->size = is_fixed(kind) ? fixed_size(kind, rows) : sizes[2 * c];
        b->item_count = sizes[2 * c + 1];
        if (short_of == c && b->size > 0) {
            b->size--;
        } else if (short_of == c + columns && b->item_count > 0) {
            b->item_count--;
        }
        b->validity = exact(a, (rows + 7) / 8, 1);
        b->values = exact(a, (size_t)b->size, 1);
        b->offsets = is_fixed(kind) ? NULL : exact(a, (rows + 1) * sizeof(int32_t), 4);
        b->items = kind == CAL_COPY_TEXT_ARRAY ? exact(a, ((size_t)b->item_count + 1) * sizeof(int32_t), 4) : NULL;
        if (rows == 0) { /* nothing is written then */
            memset(b->values, 0, (size_t)b->size);
        }
    }
}

/* Decoded columns as columns to encode, and what they are encoded to. */
static size_t encode_again(arena *a, const cal_copy_buffer *buffers, size_t columns, size_t rows, uint8_t *out) {
    cal_copy_column again[MOST_COLUMNS];
    for (size_t c = 0; c < columns; c++) {
        const cal_copy_buffer *b = &buffers[c];
        again[c] = (cal_copy_column){.kind = b->kind,
                                     .nullable = 1,
                                     .validity = b->validity,
                                     .values = b->values,
                                     .size = b->size,
                                     .offsets32 = b->offsets,
                                     .item_count = b->item_count,
                                     .items32 = b->items};
    }
    size_t done, size, needed;
    cal_copy_fault fault;
    CHECK(cal_copy_encode(copied(a, again, columns * sizeof *again, 0), columns, 0, rows, out, 2 * ROOM, &done, &size,
                          &needed, &fault) == CAL_OK);
    CHECK(done == rows && needed == 0);
    return size;
}

/* Decodes bytes that a scan accepted; returns the bytes that what was decoded is encoded to. */
static size_t decode(arena *a, const cal_copy_column *columns, size_t count, const uint8_t *bytes, size_t size,
                     size_t rows, const uint64_t *sizes, uint8_t *out) {
    cal_copy_buffer buffers[MOST_COLUMNS];
    cal_copy_fault fault;
    for (size_t short_of = 0; short_of < 2 * count; short_of++) { /* without room: refused, nothing beyond is written */
        for (size_t c = 0; c < count; c++) {
            buffers[c] = (cal_copy_buffer){.kind = columns[c].kind, .dimensions = columns[c].dimensions};
        }
        make_room(a, buffers, count, rows, sizes, short_of);
        const cal_copy_buffer *less = &buffers[short_of % count];
        const int complete =
            short_of < count ? less->size == (is_fixed(less->kind) ? fixed_size(less->kind, rows) : sizes[2 * short_of])
                             : less->item_count == sizes[2 * (short_of - count) + 1];
        CHECK(cal_copy_decode(bytes, size, buffers, count, rows, &fault) == (complete ? CAL_OK : CAL_E_ARGUMENT));
    }
    for (size_t c = 0; c < count; c++) {
        buffers[c] = (cal_copy_buffer){.kind = columns[c].kind, .dimensions = columns[c].dimensions};
    }
    make_room(a, buffers, count, rows, sizes, SIZE_MAX);
    CHECK(cal_copy_decode(bytes, size, buffers, count, rows, &fault) == CAL_OK);
    for (size_t c = 0; c < count; c++) {
        uint64_t missing = 0;
        for (size_t row = 0; row < rows; row++) {
            if (buffers[c].validity[row / 8] >> (row % 8) & 1) {
                continue;
            }
            missing++;
            if (is_fixed(columns[c].kind) && columns[c].kind != CAL_COPY_BOOL) {
                for (size_t i = fixed_size(columns[c].kind, row); i < fixed_size(columns[c].kind, row + 1); i++) {
                    CHECK(buffers[c].values[i] == 0);
                }
            }
        }
        CHECK(buffers[c].missing == missing);
    }
    return encode_again(a, buffers, count, rows, out);
}

static int32_t scan(arena *a, const cal_copy_column *columns, size_t count, const uint8_t *bytes, size_t size,
                    size_t rows_max, size_t *rows, size_t *consumed, int32_t *ended, uint64_t *sizes,
                    cal_copy_fault *fault) {
    cal_copy_buffer *kinds = exact(a, count * sizeof *kinds, 8);
    for (size_t c = 0; c < count; c++) {
        kinds[c] = (cal_copy_buffer){.kind = columns[c].kind, .dimensions = columns[c].dimensions};
    }
    return cal_copy_scan(bytes, size, kinds, count, rows_max, rows, consumed, ended, sizes, fault);
}

static void check_decoding(arena *a, input *in, const cal_copy_column *columns, size_t count, const expectation *e,
                           size_t total) {
    static uint8_t again[2 * ROOM], twice[2 * ROOM];
    size_t rows, consumed;
    int32_t ended;
    uint64_t *sizes = exact(a, 2 * count * sizeof *sizes, 8);
    cal_copy_fault fault = {0, 0, 0};
    /* What is there of the bytes gives the rows that are there. */
    const size_t cut = take_below(in, e->size + 1), rows_max = take_below(in, MOST_ROWS + 1);
    size_t whole = 0;
    while (whole < total && whole < rows_max && e->starts[whole + 1] <= cut) {
        whole++;
    }
    const uint8_t *part = copied(a, e->bytes, cut, 1);
    CHECK(scan(a, columns, count, part, cut, rows_max, &rows, &consumed, &ended, sizes, &fault) == CAL_OK);
    CHECK(rows == whole && consumed == e->starts[whole] && !ended);
    CHECK(decode(a, columns, count, part, consumed, rows, sizes, again) == consumed);
    CHECK(memcmp(again, e->bytes, consumed) == 0);
    /* And the trailer. */
    uint8_t *with_trailer = exact(a, e->size + 2, 0);
    memcpy(with_trailer, e->bytes, e->size);
    memset(with_trailer + e->size, 0xFF, 2);
    CHECK(scan(a, columns, count, with_trailer, e->size + 2, rows_max, &rows, &consumed, &ended, sizes, &fault) ==
          CAL_OK);
    CHECK(ended == (rows_max >= total) && consumed == (ended ? e->size + 2 : e->starts[rows_max]));
    /* Damaged. */
    uint8_t *damaged = copied(a, e->bytes, e->size, 0);
    memcpy(damaged, e->bytes, e->size);
    for (uint64_t left = take(in, 1) % 4; left > 0 && e->size > 0; left--) {
        const size_t at = take_below(in, e->size);
        damaged[at] = (uint8_t)(take(in, 1) % 4 ? damaged[at] ^ (1U << take(in, 1) % 8) : take(in, 1));
    }
    const int32_t status = scan(a, columns, count, damaged, e->size, SIZE_MAX, &rows, &consumed, &ended, sizes, &fault);
    if (status != CAL_OK) {
        CHECK(status == CAL_E_COPY && fault.row <= total && fault.column < count);
        CHECK(fault.reason >= CAL_COPY_UTF8 && fault.reason <= CAL_COPY_VERSION);
        return;
    }
    const size_t size = decode(a, columns, count, damaged, consumed, rows, sizes, again);
    size_t rows_again, consumed_again;
    CHECK(scan(a, columns, count, again, size, rows, &rows_again, &consumed_again, &ended, sizes, &fault) == CAL_OK);
    CHECK(rows_again == rows && consumed_again == size);
    CHECK(decode(a, columns, count, again, size, rows, sizes, twice) == size);
    CHECK(memcmp(again, twice, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static built columns_built[MOST_COLUMNS];
    static expectation expected;
    input in = {data, size};
    arena a = {.count = 0};
    cal_copy_column columns[MOST_COLUMNS];
    const size_t count = 1 + take_below(&in, MOST_COLUMNS), rows = take_below(&in, MOST_ROWS + 1);
    const uint64_t wide = take(&in, 1);
    memset(columns_built, 0, sizeof columns_built);
    expected.size = 0;
    expected.starts[0] = 0;
    expected.fault = (cal_copy_fault){0, 0, 0};
    for (size_t c = 0; c < count; c++) {
        const uint64_t any = take(&in, 2);
        columns[c] = (cal_copy_column){.kind = any % 15,
                                       .nullable = any >> 8 & 3 ? 1 : 0,
                                       .first = any >> 10 & 15,
                                       .dimensions = any % 15 >= CAL_COPY_VECTOR ? any >> 14 : 0};
    }
    for (size_t row = 0; row < rows; row++) {
        put_number(&expected, count, 2);
        for (size_t c = 0; c < count; c++) {
            const uint64_t reason = add(&in, &columns[c], &columns_built[c], row, &expected);
            if (reason && !expected.fault.reason) {
                expected.fault = (cal_copy_fault){row, c, reason};
            }
        }
        expected.starts[row + 1] = expected.size;
    }
    for (size_t c = 0; c < count; c++) {
        built *b = &columns_built[c];
        columns[c].validity = copied(&a, b->validity, (columns[c].first + rows + 7) / 8, 1);
        columns[c].size = b->size;
        columns[c].values = copied(&a, b->values, b->size, 1);
        columns[c].item_count = b->items;
        columns[c].item_validity = copied(&a, b->item_validity, (b->items + 7) / 8, 1);
        if (wide >> c & 1) {
            columns[c].offsets64 = copied(&a, b->offsets, (rows + 1) * sizeof(int64_t), 8);
            columns[c].items64 = copied(&a, b->item_offsets, (b->items + 1) * sizeof(int64_t), 8);
        } else {
            int32_t *offsets = exact(&a, (rows + 1) * sizeof *offsets, 4);
            int32_t *items = exact(&a, (b->items + 1) * sizeof *items, 4);
            for (size_t i = 0; i <= rows; i++) {
                offsets[i] = (int32_t)b->offsets[i];
            }
            for (size_t i = 0; i <= b->items; i++) {
                items[i] = (int32_t)b->item_offsets[i];
            }
            columns[c].offsets32 = offsets;
            columns[c].items32 = items;
        }
    }
    /* All at once, or from where it stopped for lack of room. */
    const size_t capacity = take(&in, 1) % 2 ? expected.size : take_below(&in, expected.size + 1);
    uint8_t *out = exact(&a, capacity, 1);
    size_t from = 0, begins = 0, done, bytes, needed;
    cal_copy_fault fault = {0, 0, 0};
    for (;;) {
        const int32_t status =
            cal_copy_encode(columns, count, from, rows, out, capacity, &done, &bytes, &needed, &fault);
        if (status != CAL_OK) {
            CHECK(status == CAL_E_COPY && fault.row == expected.fault.row && fault.column == expected.fault.column &&
                  fault.reason == expected.fault.reason);
            break;
        }
        CHECK(bytes == expected.starts[from + done] - begins && bytes <= capacity);
        CHECK(memcmp(out, expected.bytes + begins, bytes) == 0);
        from += done;
        begins += bytes;
        if (needed == 0) {
            CHECK(from == rows && expected.fault.reason == 0);
            break;
        }
        CHECK(needed == expected.starts[from + 1] - begins && needed > capacity - bytes);
        if (done == 0) {
            break; /* not even one row fits */
        }
    }
    if (expected.fault.reason == 0) {
        check_decoding(&a, &in, columns, count, &expected, rows);
    }
    free_all(&a);
    return 0;
}
