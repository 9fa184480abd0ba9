// AVX-512 with products of bfloat16.
#include "product_kernels.h"

namespace peagle {

extern const Kernels avx512_kernels;
ProductKernel avx512_bf16_product;

void avx512_bf16_product(const Weight& weight, const Rows& rows, std::size_t first,
                         std::size_t last, float* out, std::size_t stride, bool add) {
  if (weight.format == Format::bfloat16)
    return blocks_of<BFloat16Tile>(weight, rows, first, last, out, stride, add);
  avx512_kernels.product(weight, rows, first, last, out, stride, add);
}

}  // namespace peagle
