#include "growing_tree.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace peagle {

namespace {

// For the standard heaps, whose first element is the largest.
struct Later {
  template <class One>
  bool operator()(const One& one, const One& other) const {
    return other < one;
  }
};

}  // namespace

bool GrowingTree::Candidate::operator<(const Candidate& other) const {
  // Siblings have distinct tokens, so no two are equal.
  return std::tie(value, depth, token, parent) <
         std::tie(other.value, other.depth, other.token, other.parent);
}

GrowingTree::GrowingTree(std::shared_ptr<TextSources> sources,
                         std::unique_ptr<Predictions> network, TreeLimits limits)
    : sources_(std::move(sources)),
      network_(std::move(network)),
      limits_(limits),
      root_(sources_->root()) {
  if (limits.nodes > 0 && limits.depth > 0) unasked_ = Unasked{-1, 1.0, 0};
}

double GrowingTree::bound() const {
  if (unasked_) return unasked_->probability;
  return heap_.empty() ? 0.0 : -heap_.front().value;
}

void GrowingTree::settle() {
  if (!unasked_) return;
  const Unasked newest = *std::exchange(unasked_, std::nullopt);
  Family family{newest.node, newest.probability, {}, {}};
  family.branch =
      newest.node < 0
          ? std::move(root_)
          : sources_->follow(families_[newest.family].branch,
                             tree_.tokens[static_cast<std::size_t>(newest.node)]);
  family.children = sources_->children(family.branch, path_to(newest.node), network_.get());
  std::make_heap(family.children.begin(), family.children.end(), Later{});
  families_.push_back(std::move(family));
  offer(families_.size() - 1);
}

double GrowingTree::take() {
  settle();
  if (heap_.empty()) throw std::out_of_range("the tree has no further node");
  std::pop_heap(heap_.begin(), heap_.end(), Later{});
  const Candidate taken = heap_.back();
  heap_.pop_back();
  const std::int32_t node = static_cast<std::int32_t>(tree_.tokens.size());
  tree_.tokens.push_back(taken.token);
  tree_.parents.push_back(taken.parent);
  tree_.depths.push_back(taken.depth);
  tree_.probabilities.push_back(-taken.value);
  tree_.sources.push_back(static_cast<std::uint8_t>(taken.source));
  if (tree_.tokens.size() == limits_.nodes) {
    heap_.clear();
    return -taken.value;
  }
  if (taken.depth == 1) roots_++;
  if (taken.depth > 1 || roots_ < limits_.roots) offer(taken.family);
  if (static_cast<std::size_t>(taken.depth) < limits_.depth)
    unasked_ = Unasked{node, -taken.value, taken.family};
  return -taken.value;
}

void GrowingTree::grow() {
  settle();
  while (!heap_.empty()) {
    take();
    settle();
  }
}

// Puts the best child not yet offered on the heap, if there is one.
void GrowingTree::offer(std::size_t index) {
  Family& family = families_[index];
  if (family.children.empty()) return;
  std::pop_heap(family.children.begin(), family.children.end(), Later{});
  const Child child = family.children.back();
  family.children.pop_back();
  const double value = family.probability * child.negative;
  if (!(value < 0)) return;
  heap_.push_back(
      {value, depth_of(family.parent) + 1, child.token, family.parent, child.source, index});
  std::push_heap(heap_.begin(), heap_.end(), Later{});
}

std::vector<std::int32_t> GrowingTree::path_to(std::int32_t node) const {
  std::vector<std::int32_t> path(static_cast<std::size_t>(depth_of(node)));
  for (std::size_t i = path.size(); i-- > 0; node = tree_.parents[static_cast<std::size_t>(node)])
    path[i] = tree_.tokens[static_cast<std::size_t>(node)];
  return path;
}

}  // namespace peagle
