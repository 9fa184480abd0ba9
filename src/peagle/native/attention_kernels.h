// Attention of query rows over one page of 64 positions.
//
// Keys lie transposed, so one vector holds one value of sixteen keys: a score is a chain of
// multiply-adds over head_dim in its own lane, the same chain wherever the key lies. A page's
// scores stand in order of position, committed keys first and the row's own ancestors behind them,
// so the sums over a page depend on nothing but the row's own text.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace {

constexpr std::size_t QUERY_TILE = 6;

// scores[q * 64 + 16 v + lane] of VECTORS vectors of keys.
template <std::size_t QUERIES, std::size_t VECTORS>
PEAGLE_INLINE void score_tile(const float* const* queries, const float* keys, std::size_t stride,
                              std::size_t head_dim, float* scores) {
  Floats sums[QUERIES][VECTORS] = {};
  for (std::size_t d = 0; d < head_dim; d++) {
    Floats key[VECTORS];
    for (std::size_t v = 0; v < VECTORS; v++) key[v] = load(keys + d * stride + v * LANES);
    for (std::size_t q = 0; q < QUERIES; q++) {
      const Floats query = all(queries[q][d]);
      for (std::size_t v = 0; v < VECTORS; v++) sums[q][v] = fma(query, key[v], sums[q][v]);
    }
  }
  for (std::size_t q = 0; q < QUERIES; q++)
    for (std::size_t v = 0; v < VECTORS; v++)
      store(scores + q * peagle::PAGE + v * LANES, sums[q][v]);
}

template <std::size_t QUERIES>
PEAGLE_INLINE void score(const float* const* queries, const float* keys, std::size_t stride,
                         std::size_t head_dim, std::size_t vectors, float* scores) {
  switch (vectors) {
    case 1: return score_tile<QUERIES, 1>(queries, keys, stride, head_dim, scores);
    case 2: return score_tile<QUERIES, 2>(queries, keys, stride, head_dim, scores);
    case 3: return score_tile<QUERIES, 3>(queries, keys, stride, head_dim, scores);
    default: return score_tile<QUERIES, 4>(queries, keys, stride, head_dim, scores);
  }
}

// Weighted sums of the committed values, VECTORS vectors of each, in order of position.
template <std::size_t QUERIES, std::size_t VECTORS>
PEAGLE_INLINE void weigh_tile(const float* shares, const float* values, std::size_t count,
                              std::size_t head_dim, float* const* sums, std::size_t at) {
  Floats total[QUERIES][VECTORS] = {};
  for (std::size_t key = 0; key < count; key++) {
    Floats value[VECTORS];
    for (std::size_t v = 0; v < VECTORS; v++)
      value[v] = load(values + key * head_dim + at + v * LANES);
    for (std::size_t q = 0; q < QUERIES; q++) {
      const Floats share = all(shares[q * peagle::PAGE + key]);
      for (std::size_t v = 0; v < VECTORS; v++) total[q][v] = fma(share, value[v], total[q][v]);
    }
  }
  for (std::size_t q = 0; q < QUERIES; q++)
    for (std::size_t v = 0; v < VECTORS; v++) store(sums[q] + at + v * LANES, total[q][v]);
}

template <std::size_t QUERIES>
void attend_tile(const peagle::PageJob& job, std::size_t first) {
  const std::size_t head_dim = job.head_dim;
  alignas(64) float scores[QUERIES * peagle::PAGE];
  for (float& one : scores) one = peagle::MASKED;
  const float* const* queries = job.queries + first;
  if (job.committed > 0)
    score<QUERIES>(queries, job.keys, peagle::PAGE, head_dim,
                   (job.committed + LANES - 1) / LANES, scores);
  for (std::size_t from = job.own_first; from < job.own_last; from += peagle::PAGE) {
    const std::size_t count =
        job.own_last - from < peagle::PAGE ? job.own_last - from : peagle::PAGE;
    alignas(64) float own[QUERIES * peagle::PAGE];
    score<QUERIES>(queries, job.own_keys + from, job.own_stride, head_dim, count / LANES, own);
    for (std::size_t q = 0; q < QUERIES; q++) {
      const std::int32_t* rows = job.own[first + q];
      const std::int32_t last = job.last_seen[first + q];
      for (std::int32_t place = static_cast<std::int32_t>(job.committed); place < last; place++) {
        const std::size_t row = static_cast<std::size_t>(rows[place]) - from;
        if (row < count) scores[q * peagle::PAGE + place] = own[q * peagle::PAGE + row];
      }
    }
  }
  for (std::size_t q = 0; q < QUERIES; q++) {
    float* score = scores + q * peagle::PAGE;
    const std::int32_t begin = job.first_seen[first + q], end = job.last_seen[first + q];
    Floats part[peagle::PAGE / LANES], most = all(peagle::MASKED);
    Ints seen[peagle::PAGE / LANES];
    for (std::size_t v = 0; v < peagle::PAGE / LANES; v++) {
      const Ints place = Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} +
                         static_cast<std::int32_t>(v * LANES);
      seen[v] = (place >= begin) & (place < end);
      part[v] = seen[v] ? load(score + v * LANES) : all(peagle::MASKED);
      most = larger(most, part[v]);
    }
    const float top = largest(most);
    Floats total{};
    for (std::size_t v = 0; v < peagle::PAGE / LANES; v++) {
      const Floats share = (Floats)((Ints)exponential(part[v] - top) & seen[v]);
      total += share;
      store(score + v * LANES, share);
    }
    *job.maxima[first + q] = top;
    *job.weights[first + q] = sum(total);
  }
  std::size_t at = 0;
  float* const* sums = job.sums + first;
  for (; at + 4 * LANES <= head_dim; at += 4 * LANES)
    weigh_tile<QUERIES, 4>(scores, job.values, job.committed, head_dim, sums, at);
  for (; at < head_dim; at += LANES)
    weigh_tile<QUERIES, 1>(scores, job.values, job.committed, head_dim, sums, at);
  for (std::size_t q = 0; q < QUERIES; q++) {
    const std::int32_t* rows = job.own[first + q];
    const std::int32_t end = job.last_seen[first + q];
    for (std::int32_t place = static_cast<std::int32_t>(job.committed); place < end; place++) {
      const Floats share = all(scores[q * peagle::PAGE + place]);
      const float* value = job.own_values + static_cast<std::size_t>(rows[place]) * head_dim;
      for (std::size_t d = 0; d < head_dim; d += LANES)
        store(sums[q] + d, fma(share, load(value + d), load(sums[q] + d)));
    }
  }
}

void attend_page(const peagle::PageJob& job) {
  std::size_t first = 0;
  for (; first + QUERY_TILE <= job.count; first += QUERY_TILE) attend_tile<QUERY_TILE>(job, first);
  switch (job.count - first) {
    case 5: return attend_tile<5>(job, first);
    case 4: return attend_tile<4>(job, first);
    case 3: return attend_tile<3>(job, first);
    case 2: return attend_tile<2>(job, first);
    case 1: return attend_tile<1>(job, first);
    default: return;
  }
}

void merge(const float* sums, const float* maxima, const float* weights, std::size_t first,
           std::size_t last, std::size_t sums_stride, std::size_t stride, std::size_t head_dim,
           float* out) {
  float top = peagle::MASKED;
  for (std::size_t page = first; page < last; page++)
    top = maxima[page * stride] > top ? maxima[page * stride] : top;
  for (std::size_t d = 0; d < head_dim; d += LANES) store(out + d, Floats{});
  float weight = 0.0f;
  for (std::size_t page = first; page < last; page++) {
    const float share = exponential(all(maxima[page * stride] - top))[0];
    weight += share * weights[page * stride];
    for (std::size_t d = 0; d < head_dim; d += LANES)
      store(out + d, fma(all(share), load(sums + page * sums_stride + d), load(out + d)));
  }
  for (std::size_t d = 0; d < head_dim; d += LANES) store(out + d, load(out + d) / weight);
}

}  // namespace
