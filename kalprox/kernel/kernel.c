/* The version of the kernel, and what the processor can do. */
#include "kernel.h"

int64_t kalprox_kernel_version(void) { return KALPROX_KERNEL_VERSION; }

#if defined(__x86_64__) && !defined(KALPROX_PLAIN)
#include <cpuid.h>

static int instruction_set = PLAIN;

int kalprox_instruction_set(void) { return instruction_set; }

/* Ask the processor which instructions it has, and which registers the operating system saves, when the library is
 * loaded. `__builtin_cpu_supports` would need parts of a compiler's own library that not all have. */
__attribute__((constructor)) static void look_at_processor(void) {
    const unsigned avx_and_saving = 1u << 28 | 1u << 27, avx2 = 1u << 5, avx512f = 1u << 16;
    const unsigned wide = 0x6, widest = 0xe6; /* of the registers of 256 and of 512 bits, what must be saved */
    unsigned a, b, c, d, features, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & avx_and_saving) != avx_and_saving) return;
    if (!__get_cpuid_count(7, 0, &a, &features, &c, &d)) return;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((features & avx2) && (saved & wide) == wide) instruction_set = AVX2;
    if ((features & avx512f) && (saved & widest) == widest) instruction_set = AVX512;
}
#endif
