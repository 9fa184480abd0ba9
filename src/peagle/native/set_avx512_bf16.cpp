// AVX-512 with products and attention of bfloat16.
#include "bf16_attention.h"
#include "product_kernels.h"

namespace peagle {

extern const Kernels avx512_kernels;
ProductKernel avx512_bf16_product;
SpanKernel avx512_attend_span;
PairKernel avx512_pair_rows;

void avx512_attend_span(const SpanJob& job) { attend_span(job); }

void avx512_pair_rows(const float* rows, std::size_t count, std::size_t width,
                      std::uint16_t* out) {
  pair_rows(rows, count, width, out);
}

void avx512_bf16_product(const Weight& weight, const Rows& rows, std::size_t first,
                         std::size_t last, float* out, std::size_t stride, bool add) {
  if (weight.format == Format::bfloat16)
    return blocks_of<BFloat16Tile>(weight, rows, first, last, out, stride, add);
  avx512_kernels.product(weight, rows, first, last, out, stride, add);
}

}  // namespace peagle
