// A product that all threads share out.
#pragma once

#include <cstddef>

#include "kernels.h"
#include "threads.h"

namespace peagle {

// Blocks of sixteen outputs that a thread takes at a time: a multiple of every tile of few rows.
// Every beginning costs a little, but a narrow weight's blocks must be shared out evenly.
constexpr std::size_t BLOCKS_AT_ONCE = 12, FEW_BLOCKS_AT_ONCE = 6, MANY_BLOCKS = 96;

// out[row * stride + o] = or += product, for all outputs. All threads must call it.
inline void multiply_rows(Team& team, const Kernels& kernels, const Weight& weight,
                          const Rows& rows, float* out, std::size_t stride, bool add) {
  const std::size_t at_once = weight.blocks < MANY_BLOCKS ? FEW_BLOCKS_AT_ONCE : BLOCKS_AT_ONCE;
  team.share(weight.blocks, at_once, [&](std::size_t first, std::size_t last) {
    kernels.product(weight, rows, first, last, out, stride, add);
  });
}

}  // namespace peagle
