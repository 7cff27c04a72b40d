/* What every file of the kernel needs: how functions are exported, inlined, and compiled for several processors. */
#ifndef KALPROX_KERNEL_H
#define KALPROX_KERNEL_H

#include <stdint.h>

/* Raised with every change of a function's arguments or of an array's layout; `library.py` has the same number. */
#define KALPROX_KERNEL_VERSION 1

#if defined(_WIN32)
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

#define INLINED static inline __attribute__((always_inline))

/* A function with long loops is compiled for several instruction sets, and the loader of programs takes the best one
 * that the processor knows. That needs the loader of glibc. */
#if defined(__has_attribute)
#if __has_attribute(target_clones) && defined(__x86_64__) && defined(__GLIBC__) && !defined(KALPROX_PLAIN)
#define DISPATCHED __attribute__((target_clones("default", "avx2", "avx512f")))
#endif
#endif
#ifndef DISPATCHED
#define DISPATCHED
#endif

/* The loop that follows may be vectorised, although that changes the order in which its sums are formed. */
#define PRAGMA(text) _Pragma(#text)
#define VECTORISED(...) PRAGMA(omp simd __VA_ARGS__)

EXPORTED int64_t kalprox_kernel_version(void);

#endif
