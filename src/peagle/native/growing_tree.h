// A candidate tree that grows by its most probable node (draft/tree.py, which it equals).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "text_sources.h"

namespace peagle {

// As CandidateTree of draft/tree.py.
struct CandidateTree {
  std::vector<std::int32_t> tokens, parents, depths;
  std::vector<double> probabilities;
  std::vector<std::uint8_t> sources;
};

struct TreeLimits {
  std::size_t nodes, roots, depth;
};

class GrowingTree {
 public:
  GrowingTree(std::shared_ptr<TextSources> sources, std::unique_ptr<Predictions> network,
              TreeLimits limits);

  // A probability that the next node cannot exceed; 0 where there is none.
  double bound() const;
  // Whether `bound` is the very probability of the next node.
  bool settled() const { return !unasked_; }
  // Asks the sources what may follow the newest node.
  void settle();
  // Takes the next node, which must be there, and gives its probability.
  double take();
  // Takes all nodes that the limits allow.
  void grow();

  const CandidateTree& tree() const { return tree_; }

 private:
  // The newest node, whose children are not known yet; -1 for none at all.
  struct Unasked {
    std::int32_t node;
    double probability;
    std::size_t family;  // that it is of
  };
  // The children of a node: those that were not offered yet, as a heap.
  struct Family {
    std::int32_t parent;
    double probability;
    Branch branch;
    std::vector<Child> children;
  };
  struct Candidate {
    double value;  // negative probability
    std::int32_t depth, token, parent;
    Source source;
    std::size_t family;

    // The most probable first, then the shallower, then the lower token.
    bool operator<(const Candidate& other) const;
  };

  std::vector<std::int32_t> path_to(std::int32_t node) const;
  std::int32_t depth_of(std::int32_t node) const {
    return node < 0 ? 0 : tree_.depths[static_cast<std::size_t>(node)];
  }
  void offer(std::size_t family);

  const std::shared_ptr<TextSources> sources_;
  const std::unique_ptr<Predictions> network_;
  const TreeLimits limits_;
  CandidateTree tree_;
  Branch root_;
  std::vector<Family> families_;
  std::vector<Candidate> heap_;
  std::size_t roots_ = 0;
  std::optional<Unasked> unasked_;
};

}  // namespace peagle
