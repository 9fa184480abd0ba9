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

float known(float value) { return value == value ? value : SMALLEST; }

// A number that at least `count` values reach: so many runs of values have a largest one that does.
float reached(const float* values, std::size_t size, std::size_t count) {
  const std::size_t run = size / (count + count / 2);
  if (run < 2) return SMALLEST;
  std::vector<float> tops;
  tops.reserve(size / run);
  for (std::size_t first = 0; first + run <= size; first += run) {
    float top = SMALLEST;
    for (std::size_t i = first; i < first + run; i++) top = values[i] > top ? values[i] : top;
    tops.push_back(top);
  }
  const auto last = tops.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(tops.begin(), last, tops.end(), [](float a, float b) { return a > b; });
  return *last;
}

}  // namespace

std::vector<std::int32_t> largest_places(const float* values, std::size_t size,
                                         std::size_t count) {
  count = std::min(count, size);
  const float least = count > 0 ? reached(values, size, count) : SMALLEST;
  std::vector<Place> places;
  for (std::size_t i = 0; i < size; i++) {
    const float value = known(values[i]);
    if (value >= least) places.push_back({value, static_cast<std::int32_t>(i)});
  }
  const auto end = places.begin() + static_cast<std::ptrdiff_t>(count);
  if (end != places.end()) std::nth_element(places.begin(), end, places.end());
  std::sort(places.begin(), end);
  std::vector<std::int32_t> found(count);
  for (std::size_t i = 0; i < count; i++) found[i] = places[i].index;
  return found;
}

double summed_exponentials(const float* values, std::size_t size, float highest) {
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
