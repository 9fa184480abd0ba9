// The Markov head with the arrays that its pointers point to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "arrays.h"
#include "kernels.h"
#include "markov.h"

namespace peagle {

inline const Kernels& kernels_named(const std::string& name) {
  const Kernels* kernels = choose_kernels(name.c_str());
  if (kernels == nullptr)
    throw std::invalid_argument("this processor has no instruction set " + name);
  return *kernels;
}

// A Markov head with everything its pointers point to.
class BoundMarkovHead {
 public:
  BoundMarkovHead(Matrix<const std::uint16_t> embedding, std::shared_ptr<PackedWeight> previous,
                  std::shared_ptr<PackedWeight> gate, Matrix<const std::uint16_t> out,
                  Vector<const std::int32_t> target_ids, Vector<const float> norm, float eps,
                  std::size_t scored, std::size_t top, const std::string& instructions)
      : embedding_(std::move(embedding)),
        previous_(std::move(previous)),
        gate_(std::move(gate)),
        out_(std::move(out)),
        target_ids_(std::move(target_ids)),
        norm_(std::move(norm)),
        kernels_(kernels_named(instructions)),
        scored_(scored),
        top_(top),
        weights_{embedding_.data(), embedding_.shape(0), embedding_.shape(1), previous_.get(),
                 gate_.get(), out_.data(), out_.shape(0), out_.shape(1), target_ids_.data(),
                 norm_.data(), eps} {
    require(weights_.rank % BLOCK == 0 && weights_.hidden % BLOCK == 0,
            "widths must be multiples of sixteen");
    for (const PackedWeight* one : {previous_.get(), gate_.get()})
      require(one->in() == weights_.hidden && one->view().out == weights_.rank,
              "a weight has another shape");
    require(target_ids_.shape(0) == weights_.draft_vocab && norm_.shape(0) == weights_.hidden,
            "a weight has another shape");
    require(scored_ >= 1 && top_ >= 1, "at least one token");
    for (std::size_t place = 0; place < weights_.draft_vocab; place++)
      require(static_cast<std::size_t>(target_ids_.data()[place]) < weights_.vocab,
              "a draft token is not in the vocabulary");
    known_.emplace(weights_, kernels_);
  }

  std::unique_ptr<Branches> branches(Matrix<const float> logits,
                                     Matrix<const float> residual) const {
    require(logits.shape(1) == weights_.draft_vocab && residual.shape(1) == weights_.hidden &&
                logits.shape(0) == residual.shape(0),
            "logits and residual streams of the same levels");
    return std::make_unique<Branches>(weights_, *known_, kernels_, logits.data(), residual.data(),
                                      logits.shape(0), scored_, top_);
  }

  std::size_t vocab() const { return weights_.vocab; }

 private:
  Matrix<const std::uint16_t> embedding_;
  std::shared_ptr<PackedWeight> previous_, gate_;
  Matrix<const std::uint16_t> out_;
  Vector<const std::int32_t> target_ids_;
  Vector<const float> norm_;
  const Kernels& kernels_;
  const std::size_t scored_, top_;
  const MarkovWeights weights_;
  std::optional<PreviousTokens> known_;  // made once the weights are known to fit
};

// The predictions of one pass, with the head that they were made by and the logits.
class BoundBranches {
 public:
  BoundBranches(std::shared_ptr<BoundMarkovHead> head, Matrix<const float> logits,
                Matrix<const float> residual)
      : head_(std::move(head)), logits_(logits), branches_(head_->branches(logits, residual)) {}

  std::size_t levels() const { return branches_->levels(); }

  const Children& after(std::size_t level, std::int32_t token) {
    require(level < levels(), "no such level");
    require(level == 0 || (token >= 0 && static_cast<std::size_t>(token) < head_->vocab()),
            "a token is not in the vocabulary");
    return branches_->after(level, token);
  }

 private:
  std::shared_ptr<BoundMarkovHead> head_;
  Matrix<const float> logits_;
  std::unique_ptr<Branches> branches_;
};

}  // namespace peagle
