#include "kernels.h"

#include <cstddef>
#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace peagle {

#if defined(__x86_64__)
extern const Kernels avx512_bf16_kernels, avx512_kernels, avx2_kernels;
#elif defined(__aarch64__)
extern const Kernels neon_kernels;
#endif
extern const Kernels portable_kernels;

#if defined(__aarch64__)
static bool neon_dot_products() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // every Apple processor with this architecture has them
#endif
}
#endif

const Kernels* const* available_kernels() {
  static const Kernels* sets[5] = {};
  static const bool filled = [] {
    std::size_t count = 0;
#if defined(__x86_64__)
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) sets[count++] = &avx512_bf16_kernels;
    if (avx512) sets[count++] = &avx512_kernels;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      sets[count++] = &avx2_kernels;
#elif defined(__aarch64__)
    if (neon_dot_products()) sets[count++] = &neon_kernels;
#endif
    sets[count] = &portable_kernels;
    return true;
  }();
  (void)filled;
  return sets;
}

const Kernels* choose_kernels(const char* name) {
  const Kernels* const* sets = available_kernels();
  if (name == nullptr || *name == 0) return *sets;
  for (; *sets != nullptr; sets++)
    if (std::strcmp((*sets)->name, name) == 0) return *sets;
  return nullptr;
}

}  // namespace peagle
