/* From Arrow's buffers to the tuples of binary COPY: one pass, each field measured before it is written. */
#include "copy.h"

/* A value before it is written. */
typedef struct {
    uint64_t from, to; /* in elements */
    uint64_t size;     /* bytes of the field, or NO_VALUE */
} value;

static int bit(const uint8_t *bits, uint64_t at) { return bits[at >> 3] >> (at & 7) & 1; }

static int64_t offset_at(const int32_t *narrow, const int64_t *wide, uint64_t i) { return wide ? wide[i] : narrow[i]; }

/* Elements [v->from, v->to) of `elements` that belong to a row. */
static uint64_t span(const cal_copy_column *c, uint64_t row, uint64_t elements, value *v) {
    if (c->offsets32 || c->offsets64) {
        const int64_t from = offset_at(c->offsets32, c->offsets64, row);
        const int64_t to = offset_at(c->offsets32, c->offsets64, row + 1);
        if (from < 0 || to < from || (uint64_t)to > elements) {
            return CAL_COPY_SPAN;
        }
        v->from = (uint64_t)from;
        v->to = (uint64_t)to;
        return 0;
    }
    if (c->width != 0 && row >= elements / c->width) {
        return CAL_COPY_SPAN;
    }
    v->from = row * c->width;
    v->to = v->from + c->width;
    return 0;
}

static uint64_t fixed(const cal_copy_column *c, uint64_t row, uint64_t width, value *v) {
    if (row >= c->size / width) {
        return CAL_COPY_SPAN;
    }
    v->from = row * width;
    v->size = width;
    return 0;
}

static int64_t load_i64(const uint8_t *p) {
    int64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Bytes of item i: [*from, *to) of values. */
static uint64_t item(const cal_copy_column *c, uint64_t i, uint64_t *from, uint64_t *to) {
    const int64_t start = offset_at(c->items32, c->items64, i), end = offset_at(c->items32, c->items64, i + 1);
    if (start < 0 || end < start || (uint64_t)end > c->size) {
        return CAL_COPY_SPAN;
    }
    *from = (uint64_t)start;
    *to = (uint64_t)end;
    return 0;
}

static uint64_t measure_array(const cal_copy_column *c, uint64_t row, value *v) {
    const int text = c->kind == CAL_COPY_TEXT_ARRAY;
    if (!text && c->item_count > c->size / UUID_BYTES) {
        return CAL_COPY_SPAN;
    }
    const uint64_t fault = span(c, row, c->item_count, v);
    if (fault) {
        return fault;
    }
    uint64_t size = ARRAY_HEAD + (v->to > v->from ? ARRAY_DIMENSION : 0);
    for (uint64_t i = v->from; i < v->to && size <= FIELD_MAX; i++) {
        uint64_t from = 0, to = UUID_BYTES;
        if (c->item_validity && !bit(c->item_validity, c->item_first + i)) {
            return CAL_COPY_ITEM;
        }
        if (text) {
            uint64_t wrong = item(c, i, &from, &to);
            wrong = wrong ? wrong : cal_copy_text(c->values + from, (size_t)(to - from));
            if (wrong) {
                return wrong;
            }
        }
        size += 4 + (to - from);
    }
    v->size = size;
    return 0;
}

#define INFINITE 0x7F800000      /* the bits of infinity; those of NaN are above */
#define HALF_OVERFLOW 0x477FF000 /* 65520, which rounds to more than a half holds */

/* The bits of the largest absolute value. */
static int32_t largest(const uint8_t *floats, size_t count) {
    int32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, floats + i * sizeof bits, sizeof bits);
        const int32_t each = (int32_t)(bits & 0x7FFFFFFF);
        most = each > most ? each : most;
    }
    return most;
}

static uint64_t measure_vector(const cal_copy_column *c, uint64_t row, value *v) {
    const uint64_t fault = span(c, row, c->size / sizeof(float), v);
    if (fault) {
        return fault;
    }
    const uint64_t dimensions = v->to - v->from;
    if (dimensions < 1 || dimensions > CAL_COPY_DIMENSIONS_MAX || (c->dimensions && dimensions != c->dimensions)) {
        return CAL_COPY_DIMENSIONS;
    }
    const int32_t most = largest(c->values + v->from * sizeof(float), (size_t)dimensions);
    if (most >= INFINITE) {
        return CAL_COPY_NON_FINITE;
    }
    v->size = VECTOR_HEAD + dimensions * (c->kind == CAL_COPY_VECTOR ? 4 : 2);
    return c->kind == CAL_COPY_HALFVEC && most >= HALF_OVERFLOW ? CAL_COPY_RANGE : 0;
}

static uint64_t measure_span(const cal_copy_column *c, uint64_t row, value *v) {
    const uint64_t fault = span(c, row, c->size, v);
    if (fault) {
        return fault;
    }
    v->size = v->to - v->from + (c->kind == CAL_COPY_JSONB ? 1 : 0);
    if (c->kind == CAL_COPY_BYTES || v->size > FIELD_MAX || v->to == v->from) {
        return 0;
    }
    return cal_copy_text(c->values + v->from, (size_t)(v->to - v->from));
}

/* Finds a row's value and how long its field is; returns why it cannot be sent, or 0. */
static uint64_t measure(const cal_copy_column *c, uint64_t row, value *v) {
    if (c->validity && !bit(c->validity, c->first + row)) {
        v->size = NO_VALUE;
        return c->nullable ? 0 : CAL_COPY_MISSING;
    }
    uint64_t fault;
    switch (c->kind) {
    case CAL_COPY_BOOL:
        v->size = 1;
        return (c->first + row) / 8 < c->size ? 0 : CAL_COPY_SPAN;
    case CAL_COPY_INT2:
        return fixed(c, row, 2, v);
    case CAL_COPY_INT4:
    case CAL_COPY_FLOAT4:
        return fixed(c, row, 4, v);
    case CAL_COPY_INT8:
    case CAL_COPY_FLOAT8:
        return fixed(c, row, 8, v);
    case CAL_COPY_INSTANT:
        fault = fixed(c, row, 8, v);
        return fault || load_i64(c->values + v->from) >= OLDEST_US + EPOCH_US ? fault : CAL_COPY_RANGE;
    case CAL_COPY_UUID:
        return fixed(c, row, UUID_BYTES, v);
    case CAL_COPY_TEXT_ARRAY:
    case CAL_COPY_UUID_ARRAY:
        fault = measure_array(c, row, v);
        break;
    case CAL_COPY_VECTOR:
    case CAL_COPY_HALFVEC:
        fault = measure_vector(c, row, v);
        break;
    default:
        fault = measure_span(c, row, v);
        break;
    }
    return fault || v->size <= FIELD_MAX ? fault : CAL_COPY_SIZE;
}

static void write_array(const cal_copy_column *c, const value *v, uint8_t *out) {
    const int text = c->kind == CAL_COPY_TEXT_ARRAY;
    store_u32(out, v->to > v->from);
    store_u32(out + 4, 0); /* no element is missing */
    store_u32(out + 8, text ? TEXT_OID : UUID_OID);
    out += ARRAY_HEAD;
    if (v->to > v->from) {
        store_u32(out, (uint32_t)(v->to - v->from));
        store_u32(out + 4, 1);
        out += ARRAY_DIMENSION;
    }
    for (uint64_t i = v->from; i < v->to; i++) {
        uint64_t from = i * UUID_BYTES, to = from + UUID_BYTES;
        if (text) {
            (void)item(c, i, &from, &to);
        }
        const size_t size = (size_t)(to - from);
        store_u32(out, (uint32_t)size);
        if (size > 0) {
            memcpy(out + 4, c->values + from, size);
        }
        out += 4 + size;
    }
}

/* The nearest half of what a half can hold, ties to even. */
static uint32_t half(uint32_t bits) {
    const uint32_t sign = bits >> 16 & 0x8000, exponent = bits >> 23 & 0xFF, fraction = bits & 0x7FFFFF;
    if (exponent < 102) { /* below half of the smallest */
        return sign;
    }
    uint32_t kept, rest, middle;
    if (exponent < 113) { /* subnormal: the leading one becomes visible */
        const uint32_t shift = 126 - exponent, whole = fraction | 0x800000;
        kept = whole >> shift;
        rest = whole & ((1U << shift) - 1);
        middle = 1U << (shift - 1);
    } else {
        kept = (exponent - 112) << 10 | fraction >> 13;
        rest = fraction & 0x1FFF;
        middle = 0x1000;
    }
    /* A carry out of the fraction is one more of the exponent. */
    return sign | (kept + (rest > middle || (rest == middle && kept & 1)));
}

static void write_vector(const cal_copy_column *c, const value *v, uint8_t *out) {
    const size_t dimensions = (size_t)(v->to - v->from);
    const uint8_t *from = c->values + v->from * sizeof(float);
    store_u16(out, (uint32_t)dimensions);
    store_u16(out + 2, 0);
    out += VECTOR_HEAD;
    for (size_t i = 0; i < dimensions; i++) {
        uint32_t bits;
        memcpy(&bits, from + i * sizeof bits, sizeof bits);
        if (c->kind == CAL_COPY_VECTOR) {
            store_u32(out + 4 * i, bits);
        } else {
            store_u16(out + 2 * i, half(bits));
        }
    }
}

static void write_number(const uint8_t *from, uint64_t width, uint8_t *out) {
    if (width == 8) {
        store_u64(out, (uint64_t)load_i64(from));
    } else if (width == 4) {
        uint32_t bits;
        memcpy(&bits, from, sizeof bits);
        store_u32(out, bits);
    } else {
        uint16_t bits;
        memcpy(&bits, from, sizeof bits);
        store_u16(out, bits);
    }
}

/* Writes what measure found. */
static void put(const cal_copy_column *c, uint64_t row, const value *v, uint8_t *out) {
    const uint8_t *from = c->values;
    size_t size = (size_t)v->size;
    switch (c->kind) {
    case CAL_COPY_BOOL:
        *out = (uint8_t)bit(from, c->first + row);
        return;
    case CAL_COPY_INT2:
    case CAL_COPY_INT4:
    case CAL_COPY_INT8:
    case CAL_COPY_FLOAT4:
    case CAL_COPY_FLOAT8:
        write_number(from + v->from, v->size, out);
        return;
    case CAL_COPY_INSTANT:
        store_u64(out, (uint64_t)(load_i64(from + v->from) - EPOCH_US));
        return;
    case CAL_COPY_TEXT_ARRAY:
    case CAL_COPY_UUID_ARRAY:
        write_array(c, v, out);
        return;
    case CAL_COPY_VECTOR:
    case CAL_COPY_HALFVEC:
        write_vector(c, v, out);
        return;
    case CAL_COPY_JSONB:
        *out++ = JSONB_VERSION;
        size--;
        break;
    default:
        break;
    }
    if (size > 0) {
        memcpy(out, from + v->from, size);
    }
}

int32_t cal_copy_encode(const cal_copy_column *columns, size_t column_count, size_t from, size_t rows, uint8_t *out,
                        size_t capacity, size_t *done, size_t *size, size_t *needed, cal_copy_fault *fault) {
    *done = *size = *needed = 0;
    for (size_t c = 0; c < column_count; c++) {
        if (columns[c].kind > CAL_COPY_HALFVEC) {
            return CAL_E_ARGUMENT;
        }
    }
    if (column_count >= TRAILER / 2 || from > rows) {
        return CAL_E_ARGUMENT;
    }
    for (size_t row = from; row < rows; row++) {
        size_t at = *size + 2;
        int fits = at <= capacity;
        if (fits) {
            store_u16(out + *size, (uint32_t)column_count);
        }
        for (size_t c = 0; c < column_count; c++) {
            value v = {0, 0, 0};
            const uint64_t reason = measure(&columns[c], row, &v);
            if (reason) {
                *fault = (cal_copy_fault){row, c, reason};
                return CAL_E_COPY;
            }
            const size_t bytes = v.size == NO_VALUE ? 0 : (size_t)v.size;
            /* What does not fit is measured to its end, so that the caller learns how much room it needs. */
            fits = fits && capacity - at >= 4 && capacity - at - 4 >= bytes;
            if (fits) {
                store_u32(out + at, (uint32_t)v.size);
                if (v.size != NO_VALUE) {
                    put(&columns[c], row, &v, out + at + 4);
                }
            }
            at += 4 + bytes;
        }
        if (!fits) {
            *needed = at - *size;
            return CAL_OK;
        }
        *size = at;
        (*done)++;
    }
    return CAL_OK;
}
