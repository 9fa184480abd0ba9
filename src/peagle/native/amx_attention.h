// Attention over whole pages on tiles of bfloat16, with sums in float32.
//
// What one query row sums depends neither on its place in a tile nor on the rows beside it.
#pragma once

#include "amx_kernels.h"

namespace {

// Bytes from one row's scores to the next: a page of them for each page of a span, and a cache line
// more, since sixteen rows a power of two apart would fall into few sets of the cache.
constexpr std::size_t SCORES_STRIDE = peagle::SPAN * peagle::PAGE + LANES;

// Tells the compiler that tiles are about to be loaded from what `memory` points to: their loads are
// assembly to it, and say nothing of what they read.
PEAGLE_INLINE void written(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

// Rows 2r and 2r + 1 become bfloat16 pairs side by side, as the second factor of a product on tiles
// lies: out [rows / 2, width, 2]. It may be where the rows are, since it stays behind them.
void pair_rows(const float* rows, std::size_t count, std::size_t width, std::uint16_t* out) {
  alignas(64) std::uint16_t interleaved[2 * LANES];
  for (std::size_t i = 0; i < LANES; i++) {
    interleaved[2 * i] = static_cast<std::uint16_t>(i);
    interleaved[2 * i + 1] = static_cast<std::uint16_t>(LANES + i);
  }
  const __m512i order = _mm512_load_si512(interleaved);
  for (std::size_t row = 0; row < count; row += 2)
    for (std::size_t at = 0; at < width; at += LANES) {
      const __m512 even = _mm512_loadu_ps(rows + row * width + at);
      const __m512 odd = _mm512_loadu_ps(rows + (row + 1) * width + at);
      const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
      _mm512_storeu_si512(out + row * width + 2 * at, _mm512_permutexvar_epi16(order, both));
    }
}

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

// 2^a for a <= 0, to 4e-6 of it, which bfloat16 does not notice; zero far below.
PEAGLE_INLINE __m512 power_of_two(__m512 a) {
  const __m512 whole = _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 part = _mm512_sub_ps(a, whole);
  __m512 p = _mm512_set1_ps(0.00960090244f);
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.0559163770f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.240237087f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.693122112f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, whole);
}

// Turns one row's scores into shares, bfloat16 in the same place, and adds the shares up.
PEAGLE_INLINE void weigh_scores(float* scores, std::size_t count, std::size_t first_seen,
                                float* maximum, float* weight) {
  for (std::size_t place = 0; place < first_seen; place++) scores[place] = peagle::MASKED;
  __m512 most = _mm512_load_ps(scores);
  for (std::size_t at = LANES; at < count; at += LANES)
    most = _mm512_max_ps(most, _mm512_load_ps(scores + at));
  const float top = _mm512_reduce_max_ps(most);
  const __m512 tops = _mm512_set1_ps(top), log2_e = _mm512_set1_ps(1.44269504f);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  __m512 even = _mm512_setzero_ps(), odd = even;
  for (std::size_t at = 0; at < count; at += 2 * LANES) {
    __m512 share[2];
    for (std::size_t i = 0; i < 2; i++) {
      const __m512 score = _mm512_load_ps(scores + at + i * LANES);
      share[i] = power_of_two(_mm512_mul_ps(_mm512_sub_ps(score, tops), log2_e));
    }
    const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(share[1], share[0]);
    even = _mm512_add_ps(even, _mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16)));
    odd = _mm512_add_ps(odd, _mm512_castsi512_ps(_mm512_and_si512(rounded, upper)));
    _mm512_store_si512(scores + at / 2, rounded);
  }
  *maximum = top;
  *weight = _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
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
  alignas(64) std::uint16_t queries[TILE_ROWS * peagle::WIDEST_TILED];
  alignas(64) float scores[TILE_ROWS * SCORES_STRIDE];
  const std::size_t head_dim = job.head_dim;
  for (std::size_t first = 0; first < job.count; first += TILE_ROWS) {
    const std::size_t count = job.count - first < TILE_ROWS ? job.count - first : TILE_ROWS;
    for (std::size_t r = 0; r < count; r++)
      for (std::size_t d = 0; d < head_dim; d += 2 * LANES) {
        const float* from = job.queries[first + r] + d;
        _mm512_store_si512(queries + r * head_dim + d,
                           (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + LANES),
                                                        _mm512_loadu_ps(from)));
      }
    written(queries);
    if (first == 0 || count < TILE_ROWS) configure({0, 1, 2, 3, 4}, count);
    for (std::size_t page = 0; page < job.pages; page++)
      score_page(queries, job.keys[page], head_dim, scores + page * peagle::PAGE);
    for (std::size_t r = 0; r < count; r++)
      weigh_scores(scores + r * SCORES_STRIDE, job.pages * peagle::PAGE,
                   static_cast<std::size_t>(job.first_seen[first + r]), job.maxima[first + r],
                   job.weights[first + r]);
    written(scores);
    std::size_t at = 0;
    for (; at + 4 * LANES <= head_dim; at += 4 * LANES) put_values<4>(job, scores, first, count, at);
    if (at < head_dim) put_values<2>(job, scores, first, count, at);
  }
  _tile_release();
}

}  // namespace
