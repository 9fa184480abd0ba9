#include "corpus.h"

#include <algorithm>
#include <cstring>

namespace peagle {

std::uint64_t Column::operator[](std::size_t index) const {
  const unsigned char* at = data + index * width;
  const auto as = [at](auto value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<std::uint64_t>(value);
  };
  return width == 2 ? as(std::uint16_t{}) : width == 4 ? as(std::uint32_t{}) : as(std::uint64_t{});
}

namespace {

// The first number from `low` to `high` for which `before` does not hold.
template <class Before>
std::size_t first_not(std::size_t low, std::size_t high, const Before& before) {
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (before(middle))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

}  // namespace

Corpus::Corpus(const CorpusTables& tables, std::vector<double> shares)
    : tables_(tables), shares_(std::move(shares)) {}

Ranges Corpus::follow(const Ranges& ranges, std::int32_t token) const {
  Ranges found;
  // One bound more than there are tokens.
  if (token < 0 || static_cast<std::size_t>(token) + 1 >= tables_.first_token_bounds.size)
    return found;
  const std::size_t wanted = static_cast<std::size_t>(token);
  found.low[0] = tables_.first_token_bounds[wanted];
  found.high[0] = tables_.first_token_bounds[wanted + 1];
  if (found.low[0] >= found.high[0]) return found;
  found.count = 1;
  for (std::size_t offset = 1; offset <= std::min(ranges.count, CORPUS_ORDER - 1); offset++) {
    const std::size_t low = ranges.low[offset - 1];
    std::size_t high = ranges.high[offset - 1];
    const std::size_t begin = first_not(
        low, high, [&](std::size_t place) { return token_at(place, offset) < wanted; });
    if (begin == high || token_at(begin, offset) != wanted) break;
    // Mostly all or few of the positions are left.
    if (token_at(high - 1, offset) != wanted)
      high = first_not(begin, high,
                       [&](std::size_t place) { return token_at(place, offset) <= wanted; });
    found.low[found.count] = begin;
    found.high[found.count] = high;
    found.count++;
  }
  return found;
}

Ranges Corpus::follow_all(const Ranges& ranges, const std::vector<std::int32_t>& tokens) const {
  Ranges found;
  std::size_t first = 0;
  if (tokens.size() >= CORPUS_ORDER)
    first = tokens.size() - CORPUS_ORDER;
  else
    found = ranges;
  for (std::size_t i = first; i < tokens.size(); i++) found = follow(found, tokens[i]);
  return found;
}

std::pair<std::size_t, std::size_t> Corpus::ready_made(std::size_t order, std::size_t low) const {
  const std::size_t index =
      first_not(tables_.frequent_order_bounds[order - 1], tables_.frequent_order_bounds[order],
                [&](std::size_t place) { return tables_.frequent_ranges[place] < low; });
  // Behind the last one in a damaged file.
  if (index + 1 >= tables_.successor_bounds.size) return {0, 0};
  return {tables_.successor_bounds[index], tables_.successor_bounds[index + 1]};
}

}  // namespace peagle
