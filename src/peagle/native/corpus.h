// What followed the last tokens in text that the target wrote before (draft/corpus.py, which it
// equals and which describes the tables). The tables are read where they are mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace peagle {

// Unsigned integers of 2, 4 or 8 bytes each.
struct Column {
  const unsigned char* data;
  std::size_t size, width;

  std::uint64_t operator[](std::size_t index) const;
};

struct CorpusTables {
  Column tokens, positions, first_token_bounds, frequent_ranges, frequent_order_bounds,
      successor_bounds, successors, successor_probabilities;
};

constexpr std::size_t CORPUS_ORDER = 5;     // longest context that is looked up
constexpr std::size_t CORPUS_FREQUENT = 8;  // contexts that occur more often have a ready answer

// Ranges of sorted positions for the contexts of the last 1, 2, … tokens that occur at all.
struct Ranges {
  std::size_t low[CORPUS_ORDER], high[CORPUS_ORDER];
  std::size_t count = 0;
};

class Corpus {
 public:
  // shares: weight of the shorter context by distinct successors, [CORPUS_FREQUENT + 1]
  Corpus(const CorpusTables& tables, std::vector<double> shares);

  // Narrows the ranges of a branch by one token more.
  Ranges follow(const Ranges& ranges, std::int32_t token) const;
  Ranges follow_all(const Ranges& ranges, const std::vector<std::int32_t>& tokens) const;

  // Tells `add(token, probability)` what follows a context. A token may come once for each length
  // of the context; its probabilities add up.
  template <class Add>
  void successors(const Ranges& ranges, const Add& add) const;

 private:
  std::size_t token_at(std::size_t place, std::size_t offset) const {
    return tables_.tokens[tables_.positions[place] + offset];
  }
  // Where the ready-made successors of a frequent context begin and end.
  std::pair<std::size_t, std::size_t> ready_made(std::size_t order, std::size_t low) const;

  const CorpusTables tables_;
  const std::vector<double> shares_;
};

template <class Add>
void Corpus::successors(const Ranges& ranges, const Add& add) const {
  constexpr double SCALE = 65535.0, NEGLIGIBLE = 0.02;
  double share = 1.0;
  for (std::size_t order = ranges.count; order > 0; order--) {
    const std::size_t low = ranges.low[order - 1], high = ranges.high[order - 1];
    const std::size_t total = high - low;
    if (total > CORPUS_FREQUENT) {
      share /= SCALE;
      const auto [begin, end] = ready_made(order, low);
      for (std::size_t i = begin; i < end; i++)
        add(static_cast<std::int32_t>(tables_.successors[i]),
            share * static_cast<double>(tables_.successor_probabilities[i]));
      return;
    }
    std::int32_t tokens[CORPUS_FREQUENT];
    int counts[CORPUS_FREQUENT];
    std::size_t distinct = 0;
    for (std::size_t place = low; place < high; place++) {
      const std::int32_t token = static_cast<std::int32_t>(token_at(place, order));
      std::size_t i = 0;
      while (i < distinct && tokens[i] != token) i++;
      if (i == distinct) {
        tokens[i] = token;
        counts[i] = 0;
        distinct++;
      }
      counts[i]++;
    }
    const double weight_of_shorter = order > 1 ? shares_[distinct] : 0.0;
    const double per_count = share / (static_cast<double>(total) + weight_of_shorter);
    for (std::size_t i = 0; i < distinct; i++) add(tokens[i], counts[i] * per_count);
    share = per_count * weight_of_shorter;
    if (share < NEGLIGIBLE) return;
  }
}

}  // namespace peagle
