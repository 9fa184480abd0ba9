// Attention over whole pages of bfloat16 pairs in vector registers, with sums in float32.
#pragma once

#include "pair_attention.h"

namespace {

// Query rows whose sums, beside four vectors of a page, fit into registers.
constexpr std::size_t PAIR_QUERIES = 6;

PEAGLE_INLINE __m512bh pair_of(const std::uint16_t* from) {
  std::int32_t two;
  std::memcpy(&two, from, sizeof two);
  return (__m512bh)_mm512_set1_epi32(two);
}

// out[q][i] += the pairs of query q, `stride` apart, times 16 * VECTORS columns of `pairs`
// [count / 2, width, 2].
template <std::size_t QUERIES, std::size_t VECTORS>
PEAGLE_INLINE void multiply_pairs(const std::uint16_t* queries, std::size_t stride,
                                  const std::uint16_t* pairs, std::size_t count, std::size_t width,
                                  __m512 (&sums)[QUERIES][VECTORS]) {
  for (std::size_t at = 0; at < count; at += 2) {
    __m512bh column[VECTORS];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < VECTORS; v++)
      column[v] = (__m512bh)_mm512_loadu_si512(pairs + at * width + 2 * v * LANES);
#pragma GCC unroll 6
    for (std::size_t q = 0; q < QUERIES; q++) {
      const __m512bh two = pair_of(queries + q * stride + at);
#pragma GCC unroll 4
      for (std::size_t v = 0; v < VECTORS; v++)
        sums[q][v] = _mm512_dpbf16_ps(sums[q][v], column[v], two);
    }
  }
}

template <std::size_t QUERIES>
PEAGLE_INLINE void score_pairs(const std::uint16_t* queries, const std::uint16_t* keys,
                               std::size_t head_dim, float* scores) {
  __m512 sums[QUERIES][4] = {};
  multiply_pairs<QUERIES, 4>(queries, head_dim, keys, head_dim, peagle::PAGE, sums);
  for (std::size_t q = 0; q < QUERIES; q++)
    for (std::size_t v = 0; v < 4; v++)
      _mm512_store_ps(scores + q * SCORES_STRIDE + v * LANES, sums[q][v]);
}

// Sums of the values by their shares, 16 * VECTORS of them from `at` on.
template <std::size_t QUERIES, std::size_t VECTORS>
PEAGLE_INLINE void weigh_pairs(const peagle::SpanJob& job, const float* shares, std::size_t first,
                               std::size_t at) {
  __m512 sums[QUERIES][VECTORS] = {};
  const std::uint16_t* pairs = reinterpret_cast<const std::uint16_t*>(shares);
  for (std::size_t page = 0; page < job.pages; page++)
    multiply_pairs<QUERIES, VECTORS>(pairs + page * peagle::PAGE, 2 * SCORES_STRIDE,
                                     job.values[page] + 2 * at, peagle::PAGE, job.head_dim, sums);
  for (std::size_t q = 0; q < QUERIES; q++)
    for (std::size_t v = 0; v < VECTORS; v++)
      _mm512_storeu_ps(job.sums[first + q] + at + v * LANES, sums[q][v]);
}

template <std::size_t QUERIES>
void attend_pairs(const peagle::SpanJob& job, std::size_t first) {
  alignas(64) std::uint16_t queries[QUERIES * peagle::WIDEST_PAIRED];
  alignas(64) float scores[QUERIES * SCORES_STRIDE];
  const std::size_t head_dim = job.head_dim;
  round_queries(job, first, QUERIES, queries);
  for (std::size_t page = 0; page < job.pages; page++)
    score_pairs<QUERIES>(queries, job.keys[page], head_dim, scores + page * peagle::PAGE);
  weigh_rows(job, first, QUERIES, scores);
  std::size_t at = 0;
  for (; at + 4 * LANES <= head_dim; at += 4 * LANES) weigh_pairs<QUERIES, 4>(job, scores, first, at);
  if (at < head_dim) weigh_pairs<QUERIES, 2>(job, scores, first, at);
}

void attend_span(const peagle::SpanJob& job) {
  std::size_t first = 0;
  for (; first + PAIR_QUERIES <= job.count; first += PAIR_QUERIES)
    attend_pairs<PAIR_QUERIES>(job, first);
  switch (job.count - first) {
    case 5: return attend_pairs<5>(job, first);
    case 4: return attend_pairs<4>(job, first);
    case 3: return attend_pairs<3>(job, first);
    case 2: return attend_pairs<2>(job, first);
    case 1: return attend_pairs<1>(job, first);
    default: return;
  }
}

}  // namespace
