#include "fusion.h"

#include <algorithm>

#include "row_product.h"

namespace peagle {

namespace {

// Rows whose rounded form fits in the cache beside a piece of the weight.
constexpr std::size_t CHUNK = 128;

}  // namespace

Fusion::Fusion(const PackedWeight& weight, const float* norms, std::size_t segments, float eps,
               const Kernels& kernels, std::shared_ptr<ThreadPool> threads)
    : weight_(weight),
      norms_(norms),
      segments_(segments),
      eps_(eps),
      kernels_(kernels),
      threads_(std::move(threads)) {}

void Fusion::run(const float* features, std::size_t rows, float* out) {
  const Weight view = weight_.view();
  const std::size_t width = weight_.in();
  input_.grow(std::min(rows, CHUNK), width);
  if (segments_ > 0) normed_.grow(std::min(rows, CHUNK) * width);
  for (std::size_t begin = 0; begin < rows; begin += CHUNK) {
    const std::size_t count = std::min(CHUNK, rows - begin);
    threads_->run([&](Team& team) {
      team.share(count, 1, [&](std::size_t first, std::size_t last) {
        for (std::size_t row = first; row < last; row++) {
          const float* from = features + (begin + row) * width;
          if (segments_ > 0) {
            float* to = normed_.data() + row * width;
            const std::size_t size = width / segments_;
            for (std::size_t at = 0; at < width; at += size)
              kernels_.norm(from + at, norms_ + at, size, eps_, to + at);
            from = to;
          }
          input_.set(kernels_, view, row, from, width);
        }
      });
      multiply_rows(team, kernels_, view, input_.rows(view, count), out + begin * view.out,
                    view.out, false);
    });
  }
}

}  // namespace peagle
