/*
 * The one place that asks what the CPU and the operating system can do, and that picks an implementation.
 */
#include "internal.h"

#include <stdatomic.h>

#if defined(CALIBER_X86)
#include <cpuid.h>

/* XGETBV with XCR0: which register files the operating system saves and restores. */
static uint64_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((uint64_t)high << 32) | low;
}

static uint32_t detect(void) {
    uint32_t a, b, c, d, features = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) {
        return 0;
    }
    const uint32_t ecx1 = c;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        return 0;
    }
    const uint32_t osxsave_and_avx = bit_OSXSAVE | bit_AVX;
    const uint64_t xmm_and_ymm = 6;
    if ((ecx1 & osxsave_and_avx) == osxsave_and_avx && (read_xcr0() & xmm_and_ymm) == xmm_and_ymm && (b & bit_AVX2)) {
        features |= CAL_CPU_AVX2;
    }
    /* SHA-NI works on XMM registers, which every x86-64 system saves. The code also uses SSSE3 and SSE4.1. */
    if ((b & bit_SHA) && (ecx1 & bit_SSSE3) && (ecx1 & bit_SSE4_1)) {
        features |= CAL_CPU_SHANI;
    }
    return features;
}
#elif defined(CALIBER_ARM64) && defined(__linux__)
#include <sys/auxv.h>

static uint32_t detect(void) {
    const unsigned long present = getauxval(AT_HWCAP);
    uint32_t features = 0;
    if (present & HWCAP_ASIMD) {
        features |= CAL_CPU_NEON;
    }
    if (present & HWCAP_ASIMDDP) {
        features |= CAL_CPU_DOTPROD;
    }
    if (present & HWCAP_SHA2) {
        features |= CAL_CPU_SHA2;
    }
    return features;
}
#elif defined(CALIBER_ARM64) && defined(__APPLE__)
#include <sys/types.h>

#include <sys/sysctl.h>

/* A name that this macOS does not know counts as missing: the feature is then left unused. */
static int has(const char *name) {
    int32_t value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}

static uint32_t detect(void) {
    return CAL_CPU_NEON | (has("hw.optional.arm.FEAT_DotProd") ? CAL_CPU_DOTPROD : 0) |
           (has("hw.optional.arm.FEAT_SHA256") ? CAL_CPU_SHA2 : 0);
}
#elif defined(CALIBER_ARM64)
static uint32_t detect(void) { return CAL_CPU_NEON; } /* the baseline; other systems tell the rest in other ways */
#else
static uint32_t detect(void) { return 0; }
#endif

uint32_t cal_cpu_features(void) {
    static const uint32_t known = UINT32_C(1) << 31; /* set once detected, so that "none" is cached too */
    static _Atomic uint32_t cached = 0;
    uint32_t value = atomic_load_explicit(&cached, memory_order_relaxed);
    if (!value) {
        value = detect() | known;
        atomic_store_explicit(&cached, value, memory_order_relaxed);
    }
    return value & ~known;
}

static int available(uint32_t features) { return (features & ~cal_cpu_features()) == 0; }

const cal_vector_ops *cal_choose_vectors(uint32_t features) {
    if (!available(features)) {
        return NULL;
    }
#if defined(CALIBER_X86)
    if (features & CAL_CPU_AVX2) {
        return &cal_vectors_avx2;
    }
#elif defined(CALIBER_ARM64)
    if (features & CAL_CPU_DOTPROD) {
        return &cal_vectors_dotprod;
    }
    if (features & CAL_CPU_NEON) {
        return &cal_vectors_neon;
    }
#endif
    return &cal_vectors_scalar;
}

const cal_sha256_ops *cal_choose_sha256(uint32_t features) {
    if (!available(features)) {
        return NULL;
    }
#if defined(CALIBER_X86)
    if (features & CAL_CPU_SHANI) {
        return &cal_sha256_shani;
    }
    if (features & CAL_CPU_AVX2) {
        return &cal_sha256_avx2;
    }
#elif defined(CALIBER_ARM64)
    if (features & CAL_CPU_SHA2) {
        return &cal_sha256_armv8;
    }
#endif
    return &cal_sha256_scalar;
}

cal_token_measure cal_choose_tokens(uint32_t features) {
    if (!available(features)) {
        return NULL;
    }
#if defined(CALIBER_X86)
    if (features & CAL_CPU_AVX2) {
        return cal_token_measure_avx2;
    }
#elif defined(CALIBER_ARM64)
    if (features & CAL_CPU_NEON) {
        return cal_token_measure_neon;
    }
#endif
    return cal_token_measure_scalar;
}
