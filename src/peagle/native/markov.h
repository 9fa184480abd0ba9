// The Markov head of a P-EAGLE drafter: predictions that depend on the token drafted before.
//
// A level's logits get W2 ((W1 e) * (1 + Wg h)) added: e is the embedding of the token before, scaled
// to unit root mean square, h the normed output of the level's slot. Only the tokens that are most
// probable without it are scored anew; the others keep their share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels.h"
#include "packing.h"

namespace peagle {

struct MarkovWeights {
  const std::uint16_t* embedding;  // the target's, bfloat16 [vocab, hidden]
  std::size_t vocab, hidden;
  const PackedWeight* previous;    // W1 [rank, hidden]
  const PackedWeight* gate;        // Wg [rank, hidden]
  const std::uint16_t* out;        // W2, bfloat16 [draft vocab, rank]
  std::size_t draft_vocab, rank;
  const std::int32_t* target_ids;  // [draft vocab]
  const float* norm;               // the network's final norm [hidden]
  float eps;
};

// W1 e of every token before, [rank]: kept for tokens that the network can draft, for those are
// what nearly every branch follows, worked out for the others.
class PreviousTokens {
 public:
  PreviousTokens(const MarkovWeights& weights, const Kernels& kernels);

  // `room` holds what is worked out.
  const float* of(std::int32_t token, std::vector<float>& room) const;

 private:
  void project(const std::int32_t* tokens, std::size_t count, float* out) const;

  const MarkovWeights& weights_;
  const Kernels& kernels_;
  std::vector<std::int32_t> places_;  // in `known_`, by token; -1 for the others
  std::vector<float> known_;          // [draft vocab, rank]
};

struct Children {
  std::vector<std::int32_t> ids;      // in the target's vocabulary
  std::vector<float> probabilities;   // falling
};

// The predictions of one pass for one sequence, worked out as they are asked for.
class Branches {
 public:
  // logits [levels, draft vocab], which are read as long as this lives; residual [levels, hidden]
  Branches(const MarkovWeights& weights, const PreviousTokens& previous, const Kernels& kernels,
           const float* logits, const float* residual, std::size_t levels, std::size_t scored,
           std::size_t top);

  std::size_t levels() const { return levels_.size(); }
  // The level that follows a draft token; level 0 follows none.
  const Children& after(std::size_t level, std::int32_t token);

 private:
  struct Level {
    std::vector<std::int32_t> scored;  // places of the tokens that are scored anew
    std::vector<float> logits;         // theirs without the token before
    float highest;
    double others;                     // summed exponentials of all others, less `highest`
  };

  void score(std::size_t level);
  Children first() const;
  Children following(const Level& level, std::size_t index, std::int32_t token);

  const MarkovWeights& weights_;
  const PreviousTokens& previous_;
  const std::size_t scored_, top_;
  const float* const logits_;
  std::vector<float> gates_, room_;
  std::vector<Level> levels_;
  // Branches often meet in the same token, and a token often stands at several depths.
  std::map<std::pair<std::size_t, std::int32_t>, Children> told_;
};

}  // namespace peagle
