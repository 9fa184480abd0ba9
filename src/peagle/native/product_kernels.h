// Products of a few rows with a packed weight, in register tiles.
//
// A tile takes up to eight rows, four where registers are few, and a few blocks of sixteen outputs,
// and walks once along the inputs: every weight vector is read from memory once and used for all
// rows of the tile; the tiles of further rows find it in the cache. Integer sums are exact and float sums always run
// along the inputs in the same order, so a row's result does not depend on the tile it is in.
#pragma once

#include "dot.h"
#include "kernels.h"
#include "vector.h"

namespace {

// As many rows as registers hold sums of.
#if defined(__AVX512F__)
constexpr std::size_t ROW_TILE = 8;
#else
constexpr std::size_t ROW_TILE = 4;
#endif

PEAGLE_INLINE std::uint32_t word(const std::uint8_t* from) {
  std::uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Bytes that a tile fetches ahead of what it multiplies.
constexpr std::size_t FAR = 2048;

PEAGLE_INLINE void prefetch(const void* from) { __builtin_prefetch(from, 0, 2); }

PEAGLE_INLINE void put(float* out, std::size_t count, Floats value, bool add) {
  if (count == LANES) {
    store(out, add ? load(out) + value : value);
    return;
  }
  for (std::size_t i = 0; i < count; i++) out[i] = add ? out[i] + value[i] : value[i];
}

struct Int8Tile {
  // What is fetched meanwhile: with AHEAD the blocks behind these, for the tile that follows.
  template <std::size_t ROWS, std::size_t BLOCKS, bool AHEAD>
  static PEAGLE_INLINE void run(const peagle::Weight& weight, const peagle::Rows& rows,
                                std::size_t row, std::size_t block, FloatSums (&out)[ROWS][BLOCKS]) {
    Sums sums[ROWS][BLOCKS];
    for (std::size_t b = 0; b < BLOCKS; b++) {
      const Sums start = dot_start(weight.sums + (block + b) * LANES);
      for (std::size_t r = 0; r < ROWS; r++) sums[r][b] = start;
    }
    const std::size_t block_bytes = weight.inner * LANES;
    const std::uint8_t* from = weight.data + block * block_bytes;
    const std::uint8_t* values = rows.data + row * rows.stride;
    for (std::size_t k = 0; k < weight.inner; k += 4) {
      WeightVector vector[BLOCKS];
#pragma GCC unroll 8
      for (std::size_t b = 0; b < BLOCKS; b++) {
        vector[b] = load_weight(from + b * block_bytes + k * LANES);
        prefetch(from + (AHEAD ? (BLOCKS + b) * block_bytes : b * block_bytes + FAR) + k * LANES);
      }
#pragma GCC unroll 8
      for (std::size_t r = 0; r < ROWS; r++) {
        const std::uint32_t four = word(values + r * rows.stride + k);
#pragma GCC unroll 8
        for (std::size_t b = 0; b < BLOCKS; b++)
          sums[r][b] = dot_int8(sums[r][b], vector[b], four);
      }
    }
    for (std::size_t b = 0; b < BLOCKS; b++) {
      const FloatSums scale = load_sums(weight.scales + (block + b) * LANES);
      for (std::size_t r = 0; r < ROWS; r++)
        out[r][b] = to_floats(sums[r][b]) * scale * all_sums(rows.scales[row + r]);
    }
  }
};

// A vector of a group holds eight inputs: the four in its low nibbles, then those in its high ones.
struct Int4Tile {
  template <std::size_t ROWS, std::size_t BLOCKS, bool>
  static PEAGLE_INLINE void run(const peagle::Weight& weight, const peagle::Rows& rows,
                                std::size_t row, std::size_t block, FloatSums (&out)[ROWS][BLOCKS]) {
    const std::size_t groups = weight.inner / peagle::GROUP;
    for (std::size_t r = 0; r < ROWS; r++)
      for (std::size_t b = 0; b < BLOCKS; b++) out[r][b] = FloatSums{};
    const std::size_t block_bytes = weight.inner * LANES / 2;
    const std::uint8_t* from = weight.data + block * block_bytes;
    const std::uint8_t* values = rows.data + row * rows.stride;
    for (std::size_t group = 0; group < groups; group++) {
      Sums sums[ROWS][BLOCKS] = {};
#pragma GCC unroll 4
      for (std::size_t k = 0; k < peagle::GROUP; k += 8) {
        WeightVector low[BLOCKS], high[BLOCKS];
        const std::size_t input = group * peagle::GROUP + k;
#pragma GCC unroll 8
        for (std::size_t b = 0; b < BLOCKS; b++)
          load_nibbles(from + b * block_bytes + input * (LANES / 2), low[b], high[b]);
#pragma GCC unroll 8
        for (std::size_t r = 0; r < ROWS; r++) {
          const std::uint8_t* eight = values + r * rows.stride + input;
#pragma GCC unroll 8
          for (std::size_t b = 0; b < BLOCKS; b++) {
            sums[r][b] = dot_nibbles(sums[r][b], low[b], word(eight));
            sums[r][b] = dot_nibbles(sums[r][b], high[b], word(eight + 4));
          }
        }
      }
      for (std::size_t b = 0; b < BLOCKS; b++) {
        const std::size_t at = ((block + b) * groups + group) * LANES;
        const FloatSums scale = load_sums(weight.scales + at);
        const FloatSums offset = load_sums(weight.offsets + at);
        for (std::size_t r = 0; r < ROWS; r++) {
          const float total = static_cast<float>(rows.group_sums[(row + r) * groups + group]);
          out[r][b] = fma(to_floats(sums[r][b]), scale, out[r][b]);
          out[r][b] = fma(all_sums(total), offset, out[r][b]);
        }
      }
    }
    for (std::size_t r = 0; r < ROWS; r++)
      for (std::size_t b = 0; b < BLOCKS; b++) out[r][b] = out[r][b] * all_sums(rows.scales[row + r]);
  }
};

struct BFloat16Tile {
  template <std::size_t ROWS, std::size_t BLOCKS, bool>
  static PEAGLE_INLINE void run(const peagle::Weight& weight, const peagle::Rows& rows,
                                std::size_t row, std::size_t block, FloatSums (&out)[ROWS][BLOCKS]) {
    for (std::size_t r = 0; r < ROWS; r++)
      for (std::size_t b = 0; b < BLOCKS; b++) out[r][b] = FloatSums{};
    const std::size_t block_bytes = weight.inner * LANES * 2;
    const std::uint8_t* from = weight.data + block * block_bytes;
    const std::uint8_t* values = rows.data + row * rows.stride;
    for (std::size_t k = 0; k < weight.inner; k += 2) {
      WeightVector vector[BLOCKS];
#pragma GCC unroll 8
      for (std::size_t b = 0; b < BLOCKS; b++)
        vector[b] = load_weight(from + b * block_bytes + k * LANES * 2);
#pragma GCC unroll 8
      for (std::size_t r = 0; r < ROWS; r++) {
        const std::uint32_t two = word(values + r * rows.stride + 2 * k);
#pragma GCC unroll 8
        for (std::size_t b = 0; b < BLOCKS; b++)
          out[r][b] = dot_bfloat16(out[r][b], vector[b], two);
      }
    }
  }
};

template <class Tile, std::size_t ROWS, std::size_t BLOCKS, bool AHEAD = false>
void tile(const peagle::Weight& weight, const peagle::Rows& rows, std::size_t row,
          std::size_t block, float* out, std::size_t out_stride, bool add) {
  FloatSums values[ROWS][BLOCKS];
  Tile::template run<ROWS, BLOCKS, AHEAD>(weight, rows, row, block, values);
  for (std::size_t b = 0; b < BLOCKS; b++) {
    const std::size_t at = (block + b) * LANES;
    const std::size_t count = weight.out - at < LANES ? weight.out - at : LANES;
    for (std::size_t r = 0; r < ROWS; r++)
      put(out + (row + r) * out_stride + at, count, whole(values[r][b]), add);
  }
}

// The last whole tile of several fetches the blocks behind: what it multiplies lies in the cache, so
// that memory would rest until the next blocks' first tile.
template <class Tile, std::size_t BLOCKS>
void all_rows(const peagle::Weight& weight, const peagle::Rows& rows, std::size_t block,
              std::size_t behind, float* out, std::size_t stride, bool add) {
  std::size_t row = 0;
  const bool fetch = rows.count >= 2 * ROW_TILE && behind >= BLOCKS;
  for (; row + ROW_TILE <= rows.count; row += ROW_TILE)
    if (fetch && row + 2 * ROW_TILE > rows.count)
      tile<Tile, ROW_TILE, BLOCKS, true>(weight, rows, row, block, out, stride, add);
    else
      tile<Tile, ROW_TILE, BLOCKS>(weight, rows, row, block, out, stride, add);
  const std::size_t left = rows.count - row;
  if constexpr (ROW_TILE > 4) {
    switch (left) {
      case 7: return tile<Tile, 7, BLOCKS>(weight, rows, row, block, out, stride, add);
      case 6: return tile<Tile, 6, BLOCKS>(weight, rows, row, block, out, stride, add);
      case 5: return tile<Tile, 5, BLOCKS>(weight, rows, row, block, out, stride, add);
      case 4: return tile<Tile, 4, BLOCKS>(weight, rows, row, block, out, stride, add);
      default: break;
    }
  }
  switch (left) {
    case 3: return tile<Tile, 3, BLOCKS>(weight, rows, row, block, out, stride, add);
    case 2: return tile<Tile, 2, BLOCKS>(weight, rows, row, block, out, stride, add);
    case 1: return tile<Tile, 1, BLOCKS>(weight, rows, row, block, out, stride, add);
    default: return;
  }
}

template <class Tile>
void blocks_of(const peagle::Weight& weight, const peagle::Rows& rows, std::size_t first,
               std::size_t last, float* out, std::size_t stride, bool add) {
  std::size_t block = first;
  for (; block + BLOCK_TILE <= last; block += BLOCK_TILE)
    all_rows<Tile, BLOCK_TILE>(weight, rows, block, last - block - BLOCK_TILE, out, stride, add);
  for (; block < last; block++) all_rows<Tile, 1>(weight, rows, block, 0, out, stride, add);
}

}  // namespace
