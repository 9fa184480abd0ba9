// Attention over whole pages on tiles of bfloat16, with sums in float32.
//
// What one query row sums depends neither on its place in a tile nor on the rows beside it.
#pragma once

#include "amx_kernels.h"
#include "pair_attention.h"

namespace {

// Tells the compiler that tiles are about to be loaded from what `memory` points to: their loads are
// assembly to it, and say nothing of what they read.
PEAGLE_INLINE void written(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

// Scores of up to sixteen query rows for the 64 keys of a page.
PEAGLE_INLINE void score_page(const std::uint16_t* queries, const std::uint16_t* keys,
                              std::size_t head_dim, float* scores) {
  constexpr std::size_t stride = 2 * sizeof(std::uint16_t) * peagle::PAGE;
  zero_sums();
  for (std::size_t d = 0; d < head_dim; d += 2 * TILE_ROWS) {
    const std::uint16_t* from = keys + d * peagle::PAGE;
    _tile_loadd(4, queries + d, head_dim * sizeof *queries);
    _tile_loadd(5, from, stride);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, from + 2 * LANES, stride);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, from + 4 * LANES, stride);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, from + 6 * LANES, stride);
    _tile_dpbf16ps(3, 4, 5);
  }
  constexpr std::size_t row = SCORES_STRIDE * sizeof *scores;
  _tile_stored(0, scores, row);
  _tile_stored(1, scores + LANES, row);
  _tile_stored(2, scores + 2 * LANES, row);
  _tile_stored(3, scores + 3 * LANES, row);
}

// Sums of the values by their shares, TILES times sixteen of them from `at` on.
template <std::size_t TILES>
PEAGLE_INLINE void weigh_values(const peagle::SpanJob& job, const float* shares, std::size_t at,
                                float* sums) {
  const std::size_t stride = 2 * sizeof(std::uint16_t) * job.head_dim;
  zero_sums();
  for (std::size_t page = 0; page < job.pages; page++)
    for (std::size_t key = 0; key < peagle::PAGE; key += 2 * TILE_ROWS) {
      const std::uint16_t* from = job.values[page] + key * job.head_dim + 2 * at;
      _tile_loadd(4, shares + (page * peagle::PAGE + key) / 2, SCORES_STRIDE * sizeof *shares);
      _tile_loadd(5, from, stride);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, from + 2 * LANES, stride);
      _tile_dpbf16ps(1, 4, 6);
      if constexpr (TILES == 4) {
        _tile_loadd(7, from + 4 * LANES, stride);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, from + 6 * LANES, stride);
        _tile_dpbf16ps(3, 4, 5);
      }
    }
  constexpr std::size_t row = TILES * TILE_BYTES;
  _tile_stored(0, sums, row);
  _tile_stored(1, sums + LANES, row);
  if constexpr (TILES == 4) {
    _tile_stored(2, sums + 2 * LANES, row);
    _tile_stored(3, sums + 3 * LANES, row);
  }
}

template <std::size_t TILES>
PEAGLE_INLINE void put_values(const peagle::SpanJob& job, const float* shares, std::size_t first,
                              std::size_t count, std::size_t at) {
  alignas(64) float sums[TILE_ROWS * TILES * LANES];
  weigh_values<TILES>(job, shares, at, sums);
  for (std::size_t r = 0; r < count; r++)
    for (std::size_t tile = 0; tile < TILES; tile++)
      store(job.sums[first + r] + at + tile * LANES, load(sums + (r * TILES + tile) * LANES));
}

void attend_span(const peagle::SpanJob& job) {
  alignas(64) std::uint16_t queries[TILE_ROWS * peagle::WIDEST_PAIRED];
  alignas(64) float scores[TILE_ROWS * SCORES_STRIDE];
  const std::size_t head_dim = job.head_dim;
  for (std::size_t first = 0; first < job.count; first += TILE_ROWS) {
    const std::size_t count = job.count - first < TILE_ROWS ? job.count - first : TILE_ROWS;
    round_queries(job, first, count, queries);
    written(queries);
    if (first == 0 || count < TILE_ROWS) configure({0, 1, 2, 3, 4}, count);
    for (std::size_t page = 0; page < job.pages; page++)
      score_page(queries, job.keys[page], head_dim, scores + page * peagle::PAGE);
    weigh_rows(job, first, count, scores);
    written(scores);
    std::size_t at = 0;
    for (; at + 4 * LANES <= head_dim; at += 4 * LANES) put_values<4>(job, scores, first, count, at);
    if (at < head_dim) put_values<2>(job, scores, first, count, at);
  }
  _tile_release();
}

}  // namespace
