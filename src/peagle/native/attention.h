// Which pages the rows of a chunk read, worked out once and used by every layer.
//
// A row's own page, the one that it stands on, is read in float32. Where the instruction set has
// tiles, whole pages behind it are read as bfloat16, SPAN of them together, whether they are
// committed or rows of this step: so a row sums the same numbers whatever of its past is committed.
// Without tiles every page is read like the own one.
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
  void make(const Shape& shape, const Kernels& kernels, const Step& step, std::size_t first,
            std::size_t last);

  // Attends in one layer with queries [rows, heads, head_dim], up to merging.
  void attend(Team& team, const Kernels& kernels, const Step& step, std::size_t layer,
              const float* pool, std::size_t pool_pages, const float* queries);

  // Merges what one row attended to, [heads, head_dim].
  void merge(const Kernels& kernels, std::size_t row, float* attended) const;

 private:
  // Some rows of one sequence.
  struct Rows {
    std::size_t part, page;                      // the page, or the first of some
    std::size_t slot;                            // of the partial results
    std::vector<std::size_t> rows;               // of the chunk
    std::vector<std::int32_t> first_seen;        // for each query row, as in the jobs
  };
  // Those that read one page in float32.
  struct PageRows : Rows {
    std::size_t committed;
    std::size_t own_first, own_last;
    std::vector<const std::int32_t*> own;        // for each query row, as in PageJob
    std::vector<std::int32_t> last_seen;
  };
  // Those that read the same pages in pairs.
  struct SpanRows : Rows {
    std::size_t pages;
    // Columns of the step's rows at the positions behind `tail`, where a page is not all committed.
    const std::int32_t* path;
  };
  // Query rows of one key head: what they ask with, and where the results go.
  struct QueryRows {
    std::vector<const float*> asked;
    std::vector<float*> sums, maxima, weights;
  };
  // Where the partial results of a row lie, and which pages it reads.
  struct Reach {
    std::size_t first_page, own_page, first_slot, own_slot;
  };
  // What the jobs of one layer share.
  struct Layer {
    const Kernels& kernels;
    const Step& step;
    std::size_t index;
    const float* pool;
    std::size_t pool_pages;
    const float* queries;
  };

  std::size_t rows_of_job() const;
  std::size_t low(std::size_t position) const;
  std::int32_t first_seen(std::size_t position, std::size_t at) const;
  std::size_t slot_of(std::size_t own_page) const;
  void plan_pages(const Step& step, std::size_t part, std::size_t begin, std::size_t end);
  void plan_spans(const Step& step, std::size_t part, std::size_t begin, std::size_t end);
  void attend_page(const Layer& layer, const PageRows& page, std::size_t head);
  void attend_span(const Layer& layer, const SpanRows& span, std::size_t head);
  const QueryRows& query_rows(const Layer& layer, const Rows& some, std::size_t head);
  const float* committed(const Layer& layer, const Part& part, std::size_t page,
                         std::size_t head) const;
  std::size_t layer_floats(const Layer& layer) const {
    return layer.pool_pages * shape_.kv_heads * shape_.page_floats();
  }
  void gather_keys(const Layer& layer, const float* stored, std::size_t done,
                   const std::int32_t* own, std::size_t head, float* to) const;
  void gather_values(const Layer& layer, const float* stored, std::size_t done,
                     const std::int32_t* own, std::size_t head, float* to) const;

  Shape shape_{};
  bool in_pairs_ = false;
  std::size_t first_ = 0, rows_ = 0;
  std::vector<PageRows> pages_;
  std::vector<SpanRows> spans_;
  std::vector<Reach> reach_;  // of each row of the chunk
  // Partial results: [slots, rows, heads(, head_dim)].
  Buffer<float> sums_, maxima_, weights_;
};

}  // namespace peagle
