// How many nodes of each tree a step verifies (engine/allocation.py, which it equals).
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "growing_tree.h"

namespace peagle {

// odds: what corrects the probabilities of each tree; seconds: of the step with 0, 1, … nodes.
// Gives the nodes of each tree, and the tokens that the step is expected to write.
std::pair<std::vector<std::size_t>, double> allocate(const std::vector<GrowingTree*>& trees,
                                                     const std::vector<double>& odds,
                                                     const std::vector<double>& seconds,
                                                     double certain, double rate);

}  // namespace peagle
