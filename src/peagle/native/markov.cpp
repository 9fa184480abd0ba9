#include "markov.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "prediction.h"
#include "row_input.h"
#include "vector.h"

namespace peagle {

namespace {

// A product on the calling thread: it is too small to share.
void multiply(const Kernels& kernels, const PackedWeight& weight, const float* rows,
              std::size_t count, float* out) {
  const Weight view = weight.view();
  RowInput input;
  input.grow(count, weight.in());
  for (std::size_t row = 0; row < count; row++)
    input.set(kernels, view, row, rows + row * weight.in(), weight.in());
  kernels.product(view, input.rows(view, count), 0, view.blocks, out, view.out, false);
}

// sums[i] += table[places[i]] . other, for rows of bfloat16.
PEAGLE_WIDE void add_products(const std::uint16_t* table, const std::int32_t* places,
                              std::size_t count, std::size_t size, const float* other,
                              float* sums) {
  typedef std::uint16_t Halves __attribute__((vector_size(2 * LANES)));
  typedef std::uint32_t Words __attribute__((vector_size(4 * LANES)));
  constexpr std::size_t AHEAD = 8;  // rows lie far apart, so those to come are fetched early
  for (std::size_t row = 0; row < count; row++) {
    if (row + AHEAD < count)
      for (std::size_t i = 0; i < size; i += 32)
        __builtin_prefetch(table + static_cast<std::size_t>(places[row + AHEAD]) * size + i);
    const std::uint16_t* from = table + static_cast<std::size_t>(places[row]) * size;
    Floats total{};
    for (std::size_t i = 0; i < size; i += LANES) {
      Halves half;
      Floats b;
      std::memcpy(&half, from + i, sizeof half);
      std::memcpy(&b, other + i, sizeof b);
      const Words wide = __builtin_convertvector(half, Words) << 16;
      total += (Floats)wide * b;
    }
    float parts[LANES];
    std::memcpy(parts, &total, sizeof parts);
    for (std::size_t width = LANES / 2; width > 0; width /= 2)
      for (std::size_t i = 0; i < width; i++) parts[i] += parts[i + width];
    sums[row] += parts[0];
  }
}

}  // namespace

PreviousTokens::PreviousTokens(const MarkovWeights& weights, const Kernels& kernels)
    : weights_(weights),
      kernels_(kernels),
      places_(weights.vocab, -1),
      known_(weights.draft_vocab * weights.rank) {
  constexpr std::size_t AT_ONCE = 64;
  for (std::size_t first = 0; first < weights.draft_vocab; first += AT_ONCE)
    project(weights.target_ids + first, std::min(AT_ONCE, weights.draft_vocab - first),
            known_.data() + first * weights.rank);
  for (std::size_t place = 0; place < weights.draft_vocab; place++)
    places_[static_cast<std::size_t>(weights.target_ids[place])] =
        static_cast<std::int32_t>(place);
}

const float* PreviousTokens::of(std::int32_t token, std::vector<float>& room) const {
  const std::int32_t place = places_[static_cast<std::size_t>(token)];
  if (place >= 0) return known_.data() + static_cast<std::size_t>(place) * weights_.rank;
  room.resize(weights_.rank);
  project(&token, 1, room.data());
  return room.data();
}

void PreviousTokens::project(const std::int32_t* tokens, std::size_t count, float* out) const {
  const std::size_t hidden = weights_.hidden;
  std::vector<float> embedded(hidden), unit(hidden, 1.0f), normed(count * hidden);
  for (std::size_t i = 0; i < count; i++) {
    const std::uint16_t* row = weights_.embedding + static_cast<std::size_t>(tokens[i]) * hidden;
    for (std::size_t j = 0; j < hidden; j++) embedded[j] = from_bfloat16(row[j]);
    kernels_.norm(embedded.data(), unit.data(), hidden, weights_.eps, normed.data() + i * hidden);
  }
  multiply(kernels_, *weights_.previous, normed.data(), count, out);
}

Branches::Branches(const MarkovWeights& weights, const PreviousTokens& previous,
                   const Kernels& kernels, const float* logits, const float* residual,
                   std::size_t levels, std::size_t scored, std::size_t top)
    : weights_(weights),
      previous_(previous),
      scored_(std::min(scored, weights.draft_vocab)),
      top_(std::min(top, scored_)),
      logits_(logits),
      gates_(levels * weights.rank),
      levels_(levels) {
  std::vector<float> normed(levels * weights.hidden);
  for (std::size_t level = 0; level < levels; level++)
    kernels.norm(residual + level * weights.hidden, weights.norm, weights.hidden, weights.eps,
                 normed.data() + level * weights.hidden);
  if (levels > 0) multiply(kernels, *weights.gate, normed.data(), levels, gates_.data());
  for (float& gate : gates_) gate += 1.0f;
}

const Children& Branches::after(std::size_t level, std::int32_t token) {
  const std::pair<std::size_t, std::int32_t> place(level, level == 0 ? -1 : token);
  const auto told = told_.find(place);
  if (told != told_.end()) return told->second;
  if (level > 0 && levels_[level].scored.empty()) score(level);
  return told_.emplace(place, level == 0 ? first() : following(levels_[level], level, token))
      .first->second;
}

void Branches::score(std::size_t index) {
  const float* logits = logits_ + index * weights_.draft_vocab;
  Level& level = levels_[index];
  level.scored = largest_places(logits, weights_.draft_vocab, scored_);
  level.highest = logits[level.scored[0]];
  level.logits.resize(scored_);
  for (std::size_t i = 0; i < scored_; i++) level.logits[i] = logits[level.scored[i]];
  // Rounding may bring the difference below zero.
  level.others = scored_ == weights_.draft_vocab
                     ? 0.0
                     : std::max(0.0, summed_exponentials(logits, weights_.draft_vocab,
                                                         level.highest) -
                                         summed_exponentials(level.logits.data(), scored_,
                                                             level.highest));
}

Children Branches::first() const {
  const float* logits = logits_;
  Children found;
  const std::vector<std::int32_t> best = largest_places(logits, weights_.draft_vocab, top_);
  const float highest = logits[best[0]];
  const double total = summed_exponentials(logits, weights_.draft_vocab, highest);
  for (const std::int32_t place : best) {
    found.ids.push_back(weights_.target_ids[place]);
    found.probabilities.push_back(
        static_cast<float>(std::exp(static_cast<double>(logits[place] - highest)) / total));
  }
  return found;
}

Children Branches::following(const Level& level, std::size_t index, std::int32_t token) {
  const std::size_t rank = weights_.rank;
  const float* previous = previous_.of(token, room_);
  std::vector<float> gated(rank), logits = level.logits;
  for (std::size_t i = 0; i < rank; i++) gated[i] = previous[i] * gates_[index * rank + i];
  add_products(weights_.out, level.scored.data(), scored_, rank, gated.data(), logits.data());
  const std::vector<std::int32_t> best = largest_places(logits.data(), scored_, top_);
  const float highest = std::max(logits[best[0]], level.highest);
  const double total =
      summed_exponentials(logits.data(), scored_, highest) +
      level.others * std::exp(static_cast<double>(level.highest - highest));
  Children found;
  for (const std::int32_t place : best) {
    found.ids.push_back(weights_.target_ids[level.scored[place]]);
    found.probabilities.push_back(
        static_cast<float>(std::exp(static_cast<double>(logits[place] - highest)) / total));
  }
  return found;
}

}  // namespace peagle
