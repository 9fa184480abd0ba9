#include "prediction.h"

#include <algorithm>
#include <limits>

#include "vector.h"

namespace peagle {

namespace {

struct Place {
  float value;
  std::int32_t index;
  bool operator<(const Place& other) const {
    return value > other.value || (value == other.value && index < other.index);
  }
};

constexpr float SMALLEST = -std::numeric_limits<float>::infinity();
constexpr std::size_t BLOCK_VECTORS = 4;

float known(float value) { return value == value ? value : SMALLEST; }

// The largest value of every set, where place i belongs to set i modulo their number; places behind
// the last whole round of sets are left out.
PEAGLE_WIDE void largest_of_sets(const float* values, std::size_t size, std::size_t sets,
                                 float* tops) {
  for (std::size_t set = 0; set < sets; set += LANES) {
    Floats top = all(SMALLEST);
    for (std::size_t i = set; i + LANES <= size; i += sets) {
      const Floats some = load(values + i);
      top = some > top ? some : top;
    }
    store(tops + set, top);
  }
}

// A number that at least `count` values reach: so many sets of values have a largest one that does.
float reached(const float* values, std::size_t size, std::size_t count) {
  const std::size_t sets = (count + count / 2 + LANES - 1) / LANES * LANES;
  if (size < 2 * sets) return SMALLEST;
  std::vector<float> tops(sets);
  largest_of_sets(values, size, sets, tops.data());
  const auto last = tops.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(tops.begin(), last, tops.end(), [](float a, float b) { return a > b; });
  return *last;
}

// Every place whose value reaches `least`, most of which are not looked at singly.
PEAGLE_WIDE void add_reaching(const float* values, std::size_t size, float least,
                              std::vector<Place>& places) {
  constexpr std::size_t step = BLOCK_VECTORS * LANES;
  for (std::size_t first = 0; first < size; first += step) {
    if (first + step <= size && least > SMALLEST) {
      Ints reaching{};
      for (std::size_t i = 0; i < step; i += LANES)
        reaching |= load(values + first + i) >= all(least);
      std::int32_t any = 0;
      for (std::size_t lane = 0; lane < LANES; lane++) any |= reaching[lane];
      if (any == 0) continue;
    }
    for (std::size_t i = first; i < std::min(first + step, size); i++) {
      const float value = known(values[i]);
      if (value >= least) places.push_back({value, static_cast<std::int32_t>(i)});
    }
  }
}

}  // namespace

std::vector<std::int32_t> largest_places(const float* values, std::size_t size,
                                         std::size_t count) {
  count = std::min(count, size);
  const float least = count > 0 ? reached(values, size, count) : SMALLEST;
  std::vector<Place> places;
  add_reaching(values, size, least, places);
  const auto end = places.begin() + static_cast<std::ptrdiff_t>(count);
  if (end != places.end()) std::nth_element(places.begin(), end, places.end());
  std::sort(places.begin(), end);
  std::vector<std::int32_t> found(count);
  for (std::size_t i = 0; i < count; i++) found[i] = places[i].index;
  return found;
}

PEAGLE_WIDE double summed_exponentials(const float* values, std::size_t size, float highest) {
  Floats sums{};
  std::size_t i = 0;
  for (; i + LANES <= size; i += LANES) sums += exponential(load(values + i) - highest);
  float rest[LANES];
  for (std::size_t j = 0; j < LANES; j++) rest[j] = i + j < size ? values[i + j] : SMALLEST;
  if (i < size) sums += exponential(load(rest) - highest);
  double total = 0;
  for (std::size_t j = 0; j < LANES; j++) total += static_cast<double>(sums[j]);
  return total;
}

}  // namespace peagle
