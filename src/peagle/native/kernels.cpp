#include "kernels.h"

#include <cstddef>
#include <cstring>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace peagle {

#if defined(__x86_64__)
extern const Kernels avx512_kernels, avx2_kernels;
ProductKernel amx_product, avx512_bf16_product;
SpanKernel amx_attend_span, avx512_attend_span;
PairKernel avx512_pair_rows;
#elif defined(__aarch64__)
extern const Kernels neon_kernels;
#endif
extern const Kernels portable_kernels;

#if defined(__x86_64__)
// Whether the processor multiplies tiles of bytes and of bfloat16 and the system lets us: tiles are
// large, so Linux saves them only for processes that ask (its documentation, x86/xstate).
static bool amx() {
#if defined(__linux__)
  constexpr unsigned BFLOAT16 = 1u << 22, TILES = 1u << 24, INT8 = 1u << 25;
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned all = BFLOAT16 | TILES | INT8;
  return (d & all) == all && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return false;
#endif
}
#endif

#if defined(__x86_64__)
// Two sets are AVX-512's but for their products and attention in bfloat16.
static Kernels with_bfloat16(const Kernels& set, const char* name, ProductKernel* product,
                             SpanKernel* attend_span) {
  Kernels other = set;
  other.name = name;
  other.product = product;
  other.attend_span = attend_span;
  other.pair_rows = avx512_pair_rows;
  return other;
}
#endif

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
  static const Kernels* sets[6] = {};
  static const bool filled = [] {
    std::size_t count = 0;
#if defined(__x86_64__)
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni");
    const bool bfloat16 = avx512 && __builtin_cpu_supports("avx512bf16");
    static const Kernels tiles = with_bfloat16(avx512_kernels, "amx", amx_product, amx_attend_span);
    static const Kernels pairs = with_bfloat16(avx512_kernels, "avx512-bf16", avx512_bf16_product,
                                              avx512_attend_span);
    if (bfloat16 && amx()) sets[count++] = &tiles;
    if (bfloat16) sets[count++] = &pairs;
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
