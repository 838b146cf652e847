/* From the tuples of binary COPY to Arrow's buffers: once over the bytes to learn the sizes, once to fill them. */
#include "copy.h"

typedef struct {
    const uint8_t *at;
    size_t left;
} reader;

/* A field, checked: what it holds, and what it adds to its column. */
typedef struct {
    const uint8_t *data; /* NULL: no value */
    size_t size;
    uint64_t bytes, items;
} field;

static size_t width_of(uint64_t kind) {
    static const uint8_t widths[] = {1, 2, 4, 8, 4, 8, UUID_BYTES, 8};
    return kind < sizeof widths ? widths[kind] : 0;
}

static uint64_t check_array(const uint8_t *p, size_t size, int text, field *f) {
    if (size < ARRAY_HEAD) {
        return CAL_COPY_LENGTH;
    }
    const uint32_t dimensions = load_u32(p), flags = load_u32(p + 4);
    if (dimensions > 1 || flags > 1 || load_u32(p + 8) != (text ? TEXT_OID : UUID_OID)) {
        return CAL_COPY_ARRAY;
    }
    if (dimensions == 0) {
        return size == ARRAY_HEAD ? 0 : CAL_COPY_LENGTH;
    }
    if (size < ARRAY_HEAD + ARRAY_DIMENSION) {
        return CAL_COPY_LENGTH;
    }
    const uint32_t count = load_u32(p + ARRAY_HEAD);
    if (count == 0 || count > INT32_MAX || load_u32(p + ARRAY_HEAD + 4) != 1) {
        return CAL_COPY_ARRAY;
    }
    size_t at = ARRAY_HEAD + ARRAY_DIMENSION;
    for (uint32_t i = 0; i < count; i++) {
        if (size - at < 4) {
            return CAL_COPY_LENGTH;
        }
        const uint32_t length = load_u32(p + at);
        at += 4;
        if (length == NO_VALUE) {
            return CAL_COPY_ITEM;
        }
        if (length > size - at || (!text && length != UUID_BYTES)) {
            return CAL_COPY_LENGTH;
        }
        const uint64_t wrong = text ? cal_copy_text(p + at, length) : 0;
        if (wrong) {
            return wrong;
        }
        at += length;
        f->bytes += length;
    }
    f->items = count;
    return at == size ? 0 : CAL_COPY_LENGTH;
}

static uint64_t check_vector(const uint8_t *p, size_t size, const cal_copy_buffer *column, field *f) {
    const size_t width = column->kind == CAL_COPY_VECTOR ? 4 : 2;
    if (size < VECTOR_HEAD) {
        return CAL_COPY_LENGTH;
    }
    const size_t dimensions = load_u16(p);
    if (load_u16(p + 2) != 0) {
        return CAL_COPY_VERSION;
    }
    if (dimensions < 1 || dimensions > CAL_COPY_DIMENSIONS_MAX ||
        (column->dimensions && dimensions != column->dimensions)) {
        return CAL_COPY_DIMENSIONS;
    }
    if (size != VECTOR_HEAD + dimensions * width) {
        return CAL_COPY_LENGTH;
    }
    const uint32_t infinite = width == 4 ? 0x7F800000 : 0x7C00;
    for (size_t i = 0; i < dimensions; i++) {
        const uint8_t *each = p + VECTOR_HEAD + i * width;
        if (((width == 4 ? load_u32(each) : load_u16(each)) & infinite) == infinite) {
            return CAL_COPY_NON_FINITE;
        }
    }
    f->bytes = dimensions * sizeof(float);
    return 0;
}

/* Checks the bytes of a field, and finds what it adds to its column; returns what is wrong with it, or 0. */
static uint64_t check(const cal_copy_buffer *column, field *f) {
    const uint8_t *p = f->data;
    const size_t width = width_of(column->kind);
    if (width > 0) {
        if (f->size != width) {
            return CAL_COPY_LENGTH;
        }
        if (column->kind == CAL_COPY_INSTANT) {
            const int64_t us = (int64_t)load_u64(p);
            return us >= OLDEST_US && us <= INT64_MAX - EPOCH_US ? 0 : CAL_COPY_RANGE;
        }
        return 0;
    }
    switch (column->kind) {
    case CAL_COPY_BYTES:
        f->bytes = f->size;
        return 0;
    case CAL_COPY_TEXT:
        f->bytes = f->size;
        return cal_copy_text(p, f->size);
    case CAL_COPY_JSONB:
        if (f->size < 1) {
            return CAL_COPY_LENGTH;
        }
        f->bytes = f->size - 1;
        return p[0] == JSONB_VERSION ? cal_copy_text(p + 1, f->size - 1) : CAL_COPY_VERSION;
    case CAL_COPY_TEXT_ARRAY:
    case CAL_COPY_UUID_ARRAY:
        return check_array(p, f->size, column->kind == CAL_COPY_TEXT_ARRAY, f);
    default:
        return check_vector(p, f->size, column, f);
    }
}

/* The float that a half is. */
static uint32_t widened(uint32_t half) {
    const uint32_t sign = (half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 0x1F, fraction = half & 0x3FF;
    if (exponent == 0) {
        if (fraction == 0) {
            return sign;
        }
        exponent = 1;
        while (!(fraction & 0x400)) { /* subnormal here, not there */
            fraction <<= 1;
            exponent--;
        }
        fraction &= 0x3FF;
    }
    return sign | (exponent + 112) << 23 | fraction << 13;
}

static void fill_number(const uint8_t *from, size_t width, uint8_t *to) {
    if (width == 8) {
        const uint64_t bits = load_u64(from);
        memcpy(to, &bits, sizeof bits);
    } else if (width == 4) {
        const uint32_t bits = load_u32(from);
        memcpy(to, &bits, sizeof bits);
    } else {
        const uint16_t bits = (uint16_t)load_u16(from);
        memcpy(to, &bits, sizeof bits);
    }
}

static void fill_fixed(cal_copy_buffer *column, size_t row, const field *f) {
    const size_t width = width_of(column->kind);
    uint8_t *to = column->values + row * width;
    if (column->kind == CAL_COPY_BOOL) {
        if (row % 8 == 0) {
            column->values[row / 8] = 0;
        }
        if (f->data && f->data[0]) {
            column->values[row / 8] |= (uint8_t)(1U << (row % 8));
        }
    } else if (!f->data) {
        memset(to, 0, width);
    } else if (column->kind == CAL_COPY_UUID) {
        memcpy(to, f->data, UUID_BYTES);
    } else if (column->kind == CAL_COPY_INSTANT) {
        const int64_t us = (int64_t)load_u64(f->data) + EPOCH_US;
        memcpy(to, &us, sizeof us);
    } else {
        fill_number(f->data, width, to);
    }
}

/* The elements of an array one after the other; returns how many there are. */
static size_t fill_array(const cal_copy_buffer *column, const field *f, uint8_t *to, size_t before, size_t items) {
    const uint8_t *p = f->data + ARRAY_HEAD + ARRAY_DIMENSION;
    size_t end = before;
    for (size_t i = 0; i < f->items; i++) {
        const size_t length = load_u32(p);
        if (length > 0) {
            memcpy(to, p + 4, length);
        }
        to += length;
        p += 4 + length;
        end += length;
        if (column->items) {
            column->items[items + i + 1] = (int32_t)end;
        }
    }
    return f->items;
}

static void fill_vector(uint64_t kind, const field *f, uint8_t *to) {
    const size_t dimensions = load_u16(f->data);
    const uint8_t *from = f->data + VECTOR_HEAD;
    for (size_t i = 0; i < dimensions; i++) {
        const uint32_t bits = kind == CAL_COPY_VECTOR ? load_u32(from + 4 * i) : widened(load_u16(from + 2 * i));
        memcpy(to + i * sizeof bits, &bits, sizeof bits);
    }
}

/* Elements that offsets count: bytes, floats, uuids or items. */
static size_t bytes_before(const cal_copy_buffer *column, size_t row) {
    const size_t elements = (size_t)column->offsets[row];
    switch (column->kind) {
    case CAL_COPY_TEXT_ARRAY:
        return (size_t)column->items[elements];
    case CAL_COPY_UUID_ARRAY:
        return elements * UUID_BYTES;
    case CAL_COPY_VECTOR:
    case CAL_COPY_HALFVEC:
        return elements * sizeof(float);
    default:
        return elements;
    }
}

static int32_t fill_span(cal_copy_buffer *column, size_t row, const field *f) {
    if (row == 0) {
        column->offsets[0] = 0;
        if (column->items) {
            column->items[0] = 0;
        }
    }
    const size_t start = (size_t)column->offsets[row], before = bytes_before(column, row);
    const int array = column->kind == CAL_COPY_TEXT_ARRAY || column->kind == CAL_COPY_UUID_ARRAY;
    if (f->bytes > column->size - before || (array && f->items > column->item_count - start)) {
        return CAL_E_ARGUMENT;
    }
    size_t elements = (size_t)f->bytes;
    uint8_t *to = column->values + before;
    if (!f->data) {
        elements = 0;
    } else if (array) {
        elements = f->items ? fill_array(column, f, to, before, start) : 0;
    } else if (column->kind == CAL_COPY_VECTOR || column->kind == CAL_COPY_HALFVEC) {
        fill_vector(column->kind, f, to);
        elements = (size_t)f->bytes / sizeof(float);
    } else if (f->bytes > 0) {
        memcpy(to, f->data + (column->kind == CAL_COPY_JSONB ? 1 : 0), (size_t)f->bytes);
    }
    column->offsets[row + 1] = (int32_t)(start + elements);
    return CAL_OK;
}

static int32_t fill(cal_copy_buffer *column, size_t row, const field *f) {
    if (row % 8 == 0) {
        column->validity[row / 8] = 0;
    }
    if (f->data) {
        column->validity[row / 8] |= (uint8_t)(1U << (row % 8));
    } else {
        column->missing++;
    }
    if (width_of(column->kind) == 0) {
        return fill_span(column, row, f);
    }
    fill_fixed(column, row, f);
    return CAL_OK;
}

/* Takes the next field; 0 if it is not there to its end. */
static int next_field(reader *in, field *f, uint64_t *reason) {
    *f = (field){NULL, 0, 0, 0};
    if (in->left < 4) {
        return 0;
    }
    const uint32_t length = load_u32(in->at);
    if (length != NO_VALUE && length > FIELD_MAX) {
        *reason = CAL_COPY_LENGTH;
        return 1;
    }
    const size_t size = length == NO_VALUE ? 0 : length;
    if (in->left - 4 < size) {
        return 0;
    }
    f->data = length == NO_VALUE ? NULL : in->at + 4;
    f->size = size;
    in->at += 4 + size;
    in->left -= 4 + size;
    return 1;
}

static int kinds_are_known(const cal_copy_buffer *columns, size_t column_count) {
    for (size_t c = 0; c < column_count; c++) {
        if (columns[c].kind > CAL_COPY_HALFVEC) {
            return 0;
        }
    }
    return column_count < TRAILER / 2;
}

int32_t cal_copy_scan(const uint8_t *data, size_t size, const cal_copy_buffer *columns, size_t column_count,
                      size_t rows_max, size_t *rows, size_t *consumed, int32_t *ended, uint64_t *sizes,
                      cal_copy_fault *fault) {
    *rows = *consumed = 0;
    *ended = 0;
    if (size > INT32_MAX || !kinds_are_known(columns, column_count)) {
        return CAL_E_ARGUMENT;
    }
    memset(sizes, 0, 2 * column_count * sizeof *sizes);
    while (size - *consumed >= 2) {
        reader in = {data + *consumed + 2, size - *consumed - 2};
        const uint32_t fields = load_u16(data + *consumed);
        if (fields == TRAILER) {
            *ended = 1;
            *consumed += 2;
            return CAL_OK;
        }
        if (*rows == rows_max) {
            return CAL_OK;
        }
        if (fields != column_count) {
            *fault = (cal_copy_fault){*rows, 0, CAL_COPY_FIELDS};
            return CAL_E_COPY;
        }
        /* Sizes are added once the whole tuple is there. */
        for (int adding = 0; adding < 2; adding++) {
            in = (reader){data + *consumed + 2, size - *consumed - 2};
            for (size_t c = 0; c < column_count; c++) {
                field f;
                uint64_t reason = 0;
                if (!next_field(&in, &f, &reason)) {
                    return CAL_OK;
                }
                if (!reason && f.data && adding) {
                    reason = check(&columns[c], &f);
                    sizes[2 * c] += f.bytes;
                    sizes[2 * c + 1] += f.items;
                }
                if (reason) {
                    *fault = (cal_copy_fault){*rows, c, reason};
                    return CAL_E_COPY;
                }
            }
        }
        *consumed = size - in.left;
        (*rows)++;
    }
    return CAL_OK;
}

int32_t cal_copy_decode(const uint8_t *data, size_t size, cal_copy_buffer *columns, size_t column_count, size_t rows,
                        cal_copy_fault *fault) {
    if (size > INT32_MAX || !kinds_are_known(columns, column_count)) {
        return CAL_E_ARGUMENT;
    }
    for (size_t c = 0; c < column_count; c++) {
        const size_t width = width_of(columns[c].kind), needed = columns[c].kind ? rows * width : (rows + 7) / 8;
        columns[c].missing = 0;
        if (width > 0 && columns[c].size < needed) {
            return CAL_E_ARGUMENT;
        }
    }
    reader in = {data, size};
    for (size_t row = 0; row < rows; row++) {
        if (in.left < 2) {
            return CAL_E_ARGUMENT;
        }
        if (load_u16(in.at) != column_count) {
            *fault = (cal_copy_fault){row, 0, CAL_COPY_FIELDS};
            return CAL_E_COPY;
        }
        in.at += 2;
        in.left -= 2;
        for (size_t c = 0; c < column_count; c++) {
            field f;
            uint64_t reason = 0;
            if (!next_field(&in, &f, &reason)) {
                return CAL_E_ARGUMENT;
            }
            reason = reason || !f.data ? reason : check(&columns[c], &f);
            if (reason) {
                *fault = (cal_copy_fault){row, c, reason};
                return CAL_E_COPY;
            }
            const int32_t status = fill(&columns[c], row, &f);
            if (status != CAL_OK) {
                return status;
            }
        }
    }
    return CAL_OK;
}
