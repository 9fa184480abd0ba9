// What makes a drafter's hidden states of the target's features: norms, then one product.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels.h"
#include "packing.h"
#include "row_input.h"
#include "threads.h"

namespace peagle {

class Fusion {
 public:
  // Each row is normed in `segments` equal pieces, of which `norms` holds the weights one behind
  // the other; not at all if there are none.
  Fusion(const PackedWeight& weight, const float* norms, std::size_t segments, float eps,
         const Kernels& kernels, std::shared_ptr<ThreadPool> threads);

  // features [rows, in] to out [rows, out].
  void run(const float* features, std::size_t rows, float* out);

 private:
  const PackedWeight& weight_;
  const float* norms_;
  const std::size_t segments_;
  const float eps_;
  const Kernels& kernels_;
  std::shared_ptr<ThreadPool> threads_;
  RowInput input_;
  Buffer<float> normed_;
};

}  // namespace peagle
