// What attention over whole pages of bfloat16 pairs needs, whatever multiplies the pairs.
//
// What one query row sums depends neither on its place in a job nor on the rows beside it.
#pragma once

#include <immintrin.h>

#include "kernels.h"
#include "vector.h"

namespace {

// Numbers from one row's scores to the next: a page of them for each page of a span, and a cache line
// more, since sixteen rows a power of two apart would fall into few sets of the cache.
constexpr std::size_t SCORES_STRIDE = peagle::SPAN * peagle::PAGE + LANES;

// Rows 2r and 2r + 1 become bfloat16 pairs side by side, as products of pairs read them: out
// [rows / 2, width, 2]. It may be where the rows are, since it stays behind them.
PEAGLE_INLINE void pair_rows(const float* rows, std::size_t count, std::size_t width,
                             std::uint16_t* out) {
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

// Query rows [first, first + count) of a job as bfloat16, [count, head_dim].
PEAGLE_INLINE void round_queries(const peagle::SpanJob& job, std::size_t first, std::size_t count,
                                 std::uint16_t* out) {
  for (std::size_t r = 0; r < count; r++)
    for (std::size_t d = 0; d < job.head_dim; d += 2 * LANES) {
      const float* from = job.queries[first + r] + d;
      _mm512_store_si512(out + r * job.head_dim + d,
                         (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + LANES),
                                                      _mm512_loadu_ps(from)));
    }
}

// Scores [count, SCORES_STRIDE] of a job's query rows become shares, with their maxima and weights.
PEAGLE_INLINE void weigh_rows(const peagle::SpanJob& job, std::size_t first, std::size_t count,
                              float* scores) {
  for (std::size_t r = 0; r < count; r++)
    weigh_scores(scores + r * SCORES_STRIDE, job.pages * peagle::PAGE,
                 static_cast<std::size_t>(job.first_seen[first + r]), job.maxima[first + r],
                 job.weights[first + r]);
}

}  // namespace
