// One probability from all sources (draft/mixture.py, which it equals to the last bit).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace peagle {

// As in draft/tree.py.
enum class Source : std::uint8_t { network = 0, lookup = 1, corpus = 2 };

// Sorts the most probable first and, of equals, the lowest token.
struct Child {
  double negative;  // probability given the parent
  std::int32_t token;
  Source source;

  bool operator<(const Child& other) const {
    return negative < other.negative || (negative == other.negative && token < other.token);
  }
};

// What is believed before the request has said anything.
struct MixturePrior {
  std::vector<double> lookup_evidence;  // by length of the match, the last for longer ones
  std::vector<double> corpus_evidence;  // by length of the known context
  std::vector<std::int32_t> match_bounds;
  std::vector<std::vector<std::vector<double>>> network_weights;  // depth, match range, context
  double trust_observations;

  double network_weight(std::size_t depth, std::int32_t match, std::size_t corpus_order) const;
  std::size_t longest_match() const { return lookup_evidence.size() - 1; }
};

// What the sources say about the tokens that may come next, in the order of their first mention.
class Mentions {
 public:
  struct Mention {
    std::int32_t token;
    double lookup, corpus, network;
    bool by_text, by_network;
    std::size_t slot;
  };

  Mentions() : slots_(64) {}

  void clear();
  // Evidence adds up, and so do probabilities of the corpus; lookup speaks first.
  void add_lookup(std::int32_t token, double evidence);
  void add_corpus(std::int32_t token, double probability);
  void set_network(std::int32_t token, double probability);

  const std::vector<Mention>& all() const { return all_; }

 private:
  Mention& of(std::int32_t token);
  std::size_t slot(std::int32_t token) const;

  std::vector<Mention> all_;
  std::vector<std::uint32_t> slots_;  // one more than the place in `all_`; a power of two of them
};

class Mixture {
 public:
  explicit Mixture(MixturePrior prior);

  double trust() const { return trust_; }
  // The children, in no order.
  std::vector<Child> children(const Mentions& said, std::size_t corpus_order,
                              double network_weight) const;
  // Compares what a tree promised with the path of nodes that the target wrote.
  void observe(const std::vector<std::int32_t>& parents, const std::vector<double>& probabilities,
               const std::vector<std::int32_t>& accepted);

  const MixturePrior prior;

 private:
  double hits_, expected_, trust_ = 1.0;
};

}  // namespace peagle
