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
// Below this the vectors of product_kernels.h are as fast, and leave the processor its higher clock.
constexpr std::size_t LEAST_AMX_ROWS = 6;

// What ldtilecfg reads (Intel's manual, volume 1, chapter 18).
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// Tiles 0 to 3 hold sums, the others rows and weights. A tile of rows may be cut short.
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

// Sums of up to sixteen rows and two blocks, each block's [rows, 16]. One call leaves the tiles of
// the call before alone, so that it can begin before those are stored; both together are as many
// chains as the multiplier needs to be kept busy.
template <bool INTEGERS, bool UPPER>
PEAGLE_INLINE void sum_one_by_two(const std::uint8_t* weights, std::size_t block_bytes,
                                  const std::uint8_t* rows, std::size_t stride,
                                  std::int32_t (*sums)[256]) {
  if constexpr (UPPER) {
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (std::size_t at = 0; at < stride; at += TILE_BYTES) {
    const std::uint8_t* from = weights + at * LANES;
    _tile_loadd(4, rows + at, stride);
    _tile_loadd(5, from, TILE_BYTES);
    _tile_loadd(6, from + block_bytes, TILE_BYTES);
    if constexpr (UPPER) {
      PEAGLE_MULTIPLY_TILES(2, 4, 5);
      PEAGLE_MULTIPLY_TILES(3, 4, 6);
    } else {
      PEAGLE_MULTIPLY_TILES(0, 4, 5);
      PEAGLE_MULTIPLY_TILES(1, 4, 6);
    }
  }
  if constexpr (UPPER) {
    _tile_stored(2, sums[0], TILE_BYTES);
    _tile_stored(3, sums[1], TILE_BYTES);
  } else {
    _tile_stored(0, sums[0], TILE_BYTES);
    _tile_stored(1, sums[1], TILE_BYTES);
  }
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

// What one pair of blocks summed is put away while the next one multiplies.
template <class Sum, class Put>
PEAGLE_INLINE void for_pairs(std::size_t pairs, const Sum& sum, const Put& put) {
  for (std::size_t pair = 0; pair < pairs; pair++) {
    sum(pair);
    if (pair > 0) put(pair - 1);
  }
  if (pairs > 0) put(pairs - 1);
}

// Outputs of up to sixteen rows.
template <bool INTEGERS>
void amx_few_rows(const Destination<INTEGERS>& to, std::size_t row, std::size_t count,
                  std::size_t first, std::size_t last) {
  alignas(64) std::int32_t sums[2][2][256];
  const std::size_t stride = to.rows.stride, block_bytes = stride * LANES;
  const std::uint8_t* rows = to.rows.data + row * stride;
  const auto sum_pair = [&](std::size_t pair) {
    const std::uint8_t* weights = to.weight.data + (first + 2 * pair) * block_bytes;
    if (pair % 2 == 0)
      sum_one_by_two<INTEGERS, false>(weights, block_bytes, rows, stride, sums[0]);
    else
      sum_one_by_two<INTEGERS, true>(weights, block_bytes, rows, stride, sums[1]);
  };
  const auto put_pair = [&](std::size_t pair) {
    for (std::size_t b = 0; b < 2; b++)
      to.put_sums(sums[pair % 2][b], row, count, first + 2 * pair + b);
  };
  configure({0, 1, 2, 3, 4}, count);
  for_pairs((last - first) / 2, sum_pair, put_pair);
  if ((last - first) % 2 != 0) {
    sum_one_by_one<INTEGERS>(to.weight.data + (last - 1) * block_bytes, rows, stride, sums[0][0]);
    to.put_sums(sums[0][0], row, count, last - 1);
  }
}

// Outputs of sixteen rows and `others` more, for an even number of blocks.
template <bool INTEGERS>
void amx_many_rows(const Destination<INTEGERS>& to, std::size_t row, std::size_t others,
                   std::size_t first, std::size_t last) {
  alignas(64) std::int32_t sums[2][4][256];
  const std::size_t stride = to.rows.stride, block_bytes = stride * LANES;
  const std::uint8_t* rows = to.rows.data + row * stride;
  const auto sum_pair = [&](std::size_t pair) {
    sum_two_by_two<INTEGERS>(to.weight.data + (first + 2 * pair) * block_bytes, block_bytes, rows,
                             stride, sums[pair % 2]);
  };
  const auto put_pair = [&](std::size_t pair) {
    for (std::size_t b = 0; b < 2; b++) {
      to.put_sums(sums[pair % 2][b], row, TILE_ROWS, first + 2 * pair + b);
      to.put_sums(sums[pair % 2][2 + b], row + TILE_ROWS, others, first + 2 * pair + b);
    }
  };
  configure({2, 3, 5}, others);
  for_pairs((last - first) / 2, sum_pair, put_pair);
}

template <bool INTEGERS>
void amx_blocks(const peagle::Weight& weight, const peagle::Rows& rows, std::size_t first,
                std::size_t last, float* out, std::size_t out_stride, bool add) {
  const Destination<INTEGERS> to{weight, rows, out, out_stride, add};
  for (std::size_t row = 0; row < rows.count; row += 2 * TILE_ROWS) {
    const std::size_t count = rows.count - row;
    if (count <= TILE_ROWS) {
      amx_few_rows(to, row, count, first, last);
      continue;
    }
    const std::size_t others = count - TILE_ROWS < TILE_ROWS ? count - TILE_ROWS : TILE_ROWS;
    const std::size_t even = last - (last - first) % 2;
    amx_many_rows(to, row, others, first, even);
    if (even < last) {
      amx_few_rows(to, row, TILE_ROWS, even, last);
      amx_few_rows(to, row + TILE_ROWS, others, even, last);
    }
  }
  // Tiles that hold something make every switch of threads slower.
  _tile_release();
}

}  // namespace
