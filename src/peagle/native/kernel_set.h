// Compiled once for each instruction set, with that set's flags: the table of its kernels.
#pragma once

#include "attention_kernels.h"
#include "kernels.h"
#include "product_kernels.h"
#include "row_kernels.h"

namespace {

void product(const peagle::Weight& weight, const peagle::Rows& rows, std::size_t first,
             std::size_t last, float* out, std::size_t stride, bool add) {
  switch (weight.format) {
    case peagle::Format::int8:
      return blocks_of<Int8Tile>(weight, rows, first, last, out, stride, add);
    case peagle::Format::int4:
      return blocks_of<Int4Tile>(weight, rows, first, last, out, stride, add);
    case peagle::Format::bfloat16:
      return blocks_of<BFloat16Tile>(weight, rows, first, last, out, stride, add);
  }
}

}  // namespace

#define PEAGLE_KERNEL_SET(variable, set_name)                                           \
  namespace peagle {                                                                    \
  extern const Kernels variable;                                                        \
  const Kernels variable = {set_name,          product,    norm,   quantise,    \
                            round_to_bfloat16, silu_times, rotate, attend_page, \
                            nullptr,           nullptr,    merge};                      \
  }
