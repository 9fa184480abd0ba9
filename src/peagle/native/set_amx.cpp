// AVX-512 with products and attention on tiles.
#include "amx_attention.h"
#include "amx_kernels.h"

namespace peagle {

extern const Kernels avx512_kernels;
ProductKernel amx_product;
SpanKernel amx_attend_span;

void amx_attend_span(const SpanJob& job) { attend_span(job); }

void amx_product(const Weight& weight, const Rows& rows, std::size_t first, std::size_t last,
                 float* out, std::size_t stride, bool add) {
  if (weight.format == Format::bfloat16)
    return amx_blocks<false>(weight, rows, first, last, out, stride, add);
  if (weight.format == Format::int8 && rows.count >= LEAST_AMX_ROWS)
    return amx_blocks<true>(weight, rows, first, last, out, stride, add);
  avx512_kernels.product(weight, rows, first, last, out, stride, add);
}

}  // namespace peagle
