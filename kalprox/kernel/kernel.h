/* What every file of the kernel needs: how functions are exported, inlined, and compiled for several processors. */
#ifndef KALPROX_KERNEL_H
#define KALPROX_KERNEL_H

#include <stdint.h>

/* Raised with every change of a function's arguments or of an array's layout; `library.py` has the same number. */
#define KALPROX_KERNEL_VERSION 5

#if defined(_WIN32)
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

#define INLINED static inline __attribute__((always_inline))

/* The loop that follows may be vectorised, although that changes the order in which its sums are formed. */
#define PRAGMA(text) _Pragma(#text)
#define VECTORISED(...) PRAGMA(omp simd __VA_ARGS__)

/* DISPATCHED(name, (int n, double *x), (n, x)) defines a function by that of the name with `_inlined` at its end, which
 * is INLINED: compiled for several instruction sets, of which the best one that the processor has is called. */
#if defined(__x86_64__) && !defined(KALPROX_PLAIN)
enum { PLAIN, AVX2, AVX512 };
int kalprox_instruction_set(void);
#define DISPATCHED(name, parameters, arguments)                                                                   \
    __attribute__((target("avx512f"))) static void name##_by_avx512 parameters { name##_inlined arguments; }      \
    __attribute__((target("avx2"))) static void name##_by_avx2 parameters { name##_inlined arguments; }           \
    static void name parameters {                                                                                 \
        if (kalprox_instruction_set() == AVX512) name##_by_avx512 arguments;                                      \
        else if (kalprox_instruction_set() == AVX2) name##_by_avx2 arguments;                                     \
        else name##_inlined arguments;                                                                            \
    }
#else
#define DISPATCHED(name, parameters, arguments) \
    static void name parameters { name##_inlined arguments; }
#endif

EXPORTED int64_t kalprox_kernel_version(void);

#endif
