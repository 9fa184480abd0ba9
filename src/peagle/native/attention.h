// Which pages the rows of a chunk read, worked out once and used by every layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "buffer.h"
#include "kernels.h"
#include "shape.h"
#include "step.h"
#include "threads.h"

namespace peagle {

class AttentionPlan {
 public:
  // Plans the rows [first, last) of a step.
  void make(const Shape& shape, const Step& step, std::size_t first, std::size_t last);

  // Attends in one layer: queries [rows, heads, head_dim] to attended of the same shape.
  void attend(Team& team, const Kernels& kernels, const Step& step, std::size_t layer,
              const float* pool, std::size_t pool_pages, const float* queries, float* attended);

 private:
  // The rows of one sequence that read one page.
  struct PageRows {
    std::size_t part, page;
    std::size_t committed;
    std::size_t own_first, own_last;
    std::vector<std::size_t> rows;               // of the chunk
    std::vector<const std::int32_t*> own;        // for each query row, as in PageJob
    std::vector<std::int32_t> first_seen, last_seen;
  };

  void attend_page(const Kernels& kernels, const Step& step, const PageRows& page,
                   std::size_t head, std::size_t layer, const float* pool, std::size_t pool_pages,
                   const float* queries);

  Shape shape_{};
  std::size_t rows_ = 0;
  std::vector<PageRows> pages_;
  std::vector<std::size_t> first_page_, last_page_;  // of each row of the chunk
  // Partial results: [pages, rows, heads(, head_dim)].
  Buffer<float> sums_, maxima_, weights_;
};

}  // namespace peagle
