// AVX-512 with products and attention on tiles.
#include "amx_attention.h"
#include "amx_kernels.h"

namespace peagle {

extern const Kernels avx512_kernels;
ProductKernel amx_product;
extern decltype(Kernels::attend_span) const amx_attend_span;
extern decltype(Kernels::pair_rows) const amx_pair_rows;

decltype(Kernels::attend_span) const amx_attend_span = attend_span;
decltype(Kernels::pair_rows) const amx_pair_rows = pair_rows;

void amx_product(const Weight& weight, const Rows& rows, std::size_t first, std::size_t last,
                 float* out, std::size_t stride, bool add) {
  if (weight.format == Format::bfloat16)
    return amx_blocks<false>(weight, rows, first, last, out, stride, add);
  if (weight.format == Format::int8 && rows.count >= LEAST_AMX_ROWS)
    return amx_blocks<true>(weight, rows, first, last, out, stride, add);
  avx512_kernels.product(weight, rows, first, last, out, stride, add);
}

}  // namespace peagle
