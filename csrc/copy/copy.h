/* What encoding and decoding of binary COPY share; not part of the ABI. */
#ifndef CALIBER_COPY_H
#define CALIBER_COPY_H

#include "../internal.h"

#include <string.h>

#define UUID_BYTES 16
#define FIELD_MAX UINT64_C(0x3FFFFFFF)           /* the longest value PostgreSQL allocates */
#define EPOCH_US INT64_C(946684800000000)        /* 2000-01-01 in microseconds since 1970-01-01 */
#define OLDEST_US (-INT64_C(211813488000000000)) /* the first TIMESTAMPTZ, 4714 BC, since 2000 */
#define NO_VALUE UINT32_MAX                      /* the length of a field without a value: -1 */
#define TRAILER UINT16_MAX                       /* the number of fields after the last tuple: -1 */
#define ARRAY_HEAD 12                            /* dimensions, flags, type of the elements */
#define ARRAY_DIMENSION 8                        /* length, lower bound */
#define VECTOR_HEAD 4                            /* dimensions, unused */
#define JSONB_VERSION 1
#define TEXT_OID 25
#define UUID_OID 2950

static inline uint32_t load_u16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }

static inline uint32_t load_u32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t load_u64(const uint8_t *p) { return (uint64_t)load_u32(p) << 32 | load_u32(p + 4); }

static inline void store_u16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void store_u32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
}

static inline void store_u64(uint8_t *p, uint64_t v) {
    store_u32(p, (uint32_t)(v >> 32));
    store_u32(p + 4, (uint32_t)v);
}

/* 0 for UTF-8 without NUL, else CAL_COPY_UTF8 or CAL_COPY_NUL. */
uint64_t cal_copy_text(const uint8_t *text, size_t size);

#endif
