// The most probable tokens of some logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace peagle {

// Places of the `count` largest of `values`, falling; of equals the first. NaN counts as smallest.
std::vector<std::int32_t> largest_places(const float* values, std::size_t size, std::size_t count);

// Sum of exp(value - highest).
double summed_exponentials(const float* values, std::size_t size, float highest);

}  // namespace peagle
