// Products on AMX, where a tile of sixteen rows by sixteen outputs takes 64 bytes of inputs at once.
//
// A packed weight (packing.h) already lies as a tile wants it: 64 bytes of one block's inputs for
// all sixteen outputs stand together. int8 sums are whole numbers, the same as with any other
// instruction; bfloat16 sums always run on tiles, one order for every number of rows.
#pragma once

#include <immintrin.h>

#include <initializer_list>

#include "product_kernels.h"

namespace {

constexpr std::size_t TILE_ROWS = 16;
constexpr std::size_t TILE_BYTES = 64;
// Below this the vectors of product_kernels.h wait for memory just as long.
constexpr std::size_t LEAST_AMX_ROWS = 3;

// What ldtilecfg reads (Intel's manual, volume 1, chapter 18).
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// Tiles 0 to 3 hold sums, which is as many chains as the multiplier needs to be kept busy; the
// others hold rows and weights. A tile of rows may be cut short.
PEAGLE_INLINE void configure(std::initializer_list<int> cut, std::size_t rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; tile++) {
    config.bytes[tile] = TILE_BYTES;
    config.rows[tile] = TILE_ROWS;
  }
  for (const int tile : cut) config.rows[tile] = static_cast<std::uint8_t>(rows);
  _tile_loadconfig(&config);
}

// The compiler writes tile names into its assembly as they stand here: they cannot be parameters.
#define PEAGLE_MULTIPLY_TILES(sum, rows, weights) \
  if constexpr (INTEGERS)                         \
    _tile_dpbusd(sum, rows, weights);             \
  else                                            \
    _tile_dpbf16ps(sum, rows, weights)

PEAGLE_INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

PEAGLE_INLINE void store_sums(std::int32_t (*sums)[256]) {
  _tile_stored(0, sums[0], TILE_BYTES);
  _tile_stored(1, sums[1], TILE_BYTES);
  _tile_stored(2, sums[2], TILE_BYTES);
  _tile_stored(3, sums[3], TILE_BYTES);
}

// Sums of up to sixteen rows and four blocks, each block's [rows, 16].
template <bool INTEGERS>
PEAGLE_INLINE void sum_one_by_four(const std::uint8_t* weights, std::size_t block_bytes,
                                   const std::uint8_t* rows, std::size_t stride,
                                   std::int32_t (*sums)[256]) {
  zero_sums();
  for (std::size_t at = 0; at < stride; at += TILE_BYTES) {
    const std::uint8_t* from = weights + at * LANES;
    _tile_loadd(4, rows + at, stride);
    _tile_loadd(5, from, TILE_BYTES);
    PEAGLE_MULTIPLY_TILES(0, 4, 5);
    _tile_loadd(6, from + block_bytes, TILE_BYTES);
    PEAGLE_MULTIPLY_TILES(1, 4, 6);
    _tile_loadd(7, from + 2 * block_bytes, TILE_BYTES);
    PEAGLE_MULTIPLY_TILES(2, 4, 7);
    _tile_loadd(5, from + 3 * block_bytes, TILE_BYTES);
    PEAGLE_MULTIPLY_TILES(3, 4, 5);
  }
  store_sums(sums);
}

// The same of one block.
template <bool INTEGERS>
PEAGLE_INLINE void sum_one_by_one(const std::uint8_t* weights, const std::uint8_t* rows,
                                  std::size_t stride, std::int32_t* sums) {
  _tile_zero(0);
  for (std::size_t at = 0; at < stride; at += TILE_BYTES) {
    _tile_loadd(4, rows + at, stride);
    _tile_loadd(5, weights + at * LANES, TILE_BYTES);
    PEAGLE_MULTIPLY_TILES(0, 4, 5);
  }
  _tile_stored(0, sums, TILE_BYTES);
}

// Sums of seventeen to 32 rows and two blocks: `sums[block]` the first sixteen rows' and
// `sums[2 + block]` the others'.
template <bool INTEGERS>
PEAGLE_INLINE void sum_two_by_two(const std::uint8_t* weights, std::size_t block_bytes,
                                  const std::uint8_t* rows, std::size_t stride,
                                  std::int32_t (*sums)[256]) {
  zero_sums();
  for (std::size_t at = 0; at < stride; at += TILE_BYTES) {
    _tile_loadd(4, rows + at, stride);
    _tile_loadd(6, weights + at * LANES, TILE_BYTES);
    PEAGLE_MULTIPLY_TILES(0, 4, 6);
    _tile_loadd(7, weights + block_bytes + at * LANES, TILE_BYTES);
    PEAGLE_MULTIPLY_TILES(1, 4, 7);
    _tile_loadd(5, rows + TILE_ROWS * stride + at, stride);
    PEAGLE_MULTIPLY_TILES(2, 5, 6);
    PEAGLE_MULTIPLY_TILES(3, 5, 7);
  }
  store_sums(sums);
}

// Where the sums of a block go.
template <bool INTEGERS>
struct Destination {
  const peagle::Weight& weight;
  const peagle::Rows& rows;
  float* out;
  std::size_t stride;
  bool add;

  // Writes the numbers that the sums of one block stand for, for some rows.
  PEAGLE_INLINE void put_sums(const std::int32_t* sums, std::size_t row, std::size_t count,
                              std::size_t block) const {
    const std::size_t at = block * LANES;
    const std::size_t outputs = weight.out - at < LANES ? weight.out - at : LANES;
    Floats scale{};
    Ints start{};
    if constexpr (INTEGERS) {
      scale = load(weight.scales + at);
      start = dot_start(weight.sums + at);
    }
    for (std::size_t r = 0; r < count; r++) {
      Ints sum;
      std::memcpy(&sum, sums + r * LANES, sizeof sum);
      Floats value;
      if constexpr (INTEGERS)
        value = __builtin_convertvector(sum + start, Floats) * scale * rows.scales[row + r];
      else
        value = (Floats)sum;
      put(out + (row + r) * stride + at, outputs, value, add);
    }
  }
};

template <bool INTEGERS>
void amx_blocks(const peagle::Weight& weight, const peagle::Rows& rows, std::size_t first,
                std::size_t last, float* out, std::size_t out_stride, bool add) {
  alignas(64) std::int32_t sums[4][256];
  const Destination<INTEGERS> to{weight, rows, out, out_stride, add};
  const std::size_t stride = rows.stride, block_bytes = stride * LANES;
  for (std::size_t row = 0; row < rows.count; row += 2 * TILE_ROWS) {
    const std::size_t count = rows.count - row;
    const std::uint8_t* values = rows.data + row * stride;
    std::size_t block = first;
    if (count > TILE_ROWS) {
      const std::size_t others = count - TILE_ROWS < TILE_ROWS ? count - TILE_ROWS : TILE_ROWS;
      configure({2, 3, 5}, others);
      for (; block + 2 <= last; block += 2) {
        sum_two_by_two<INTEGERS>(weight.data + block * block_bytes, block_bytes, values, stride,
                                 sums);
        for (std::size_t b = 0; b < 2; b++) {
          to.put_sums(sums[b], row, TILE_ROWS, block + b);
          to.put_sums(sums[2 + b], row + TILE_ROWS, others, block + b);
        }
      }
    }
    for (std::size_t upper = row; upper < rows.count && upper < row + 2 * TILE_ROWS && block < last;
         upper += TILE_ROWS) {
      const std::size_t some = rows.count - upper < TILE_ROWS ? rows.count - upper : TILE_ROWS;
      const std::uint8_t* from = rows.data + upper * stride;
      configure({0, 1, 2, 3, 4}, some);
      std::size_t one = block;
      for (; one + 4 <= last; one += 4) {
        sum_one_by_four<INTEGERS>(weight.data + one * block_bytes, block_bytes, from, stride, sums);
        for (std::size_t b = 0; b < 4; b++) to.put_sums(sums[b], upper, some, one + b);
      }
      for (; one < last; one++) {
        sum_one_by_one<INTEGERS>(weight.data + one * block_bytes, from, stride, sums[0]);
        to.put_sums(sums[0], upper, some, one);
      }
    }
  }
  // Tiles that hold something make every switch of threads slower.
  _tile_release();
}

}  // namespace
