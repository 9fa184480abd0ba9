// The rows of a step: where they stand, what they see, and their keys and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "buffer.h"

namespace peagle {

// The rows of one sequence.
struct Part {
  std::size_t first, count;        // its rows among those of the step
  std::size_t column;              // where its rows begin among the step's own keys
  std::size_t length;              // committed positions
  std::size_t tail;                // first position of the first page that is not all committed
  std::vector<std::int32_t> pages; // of the pool
  // For each row, where its path begins in `paths`: the column of the row's ancestor, or itself,
  // at position `tail + i`. Rows of a chain share one path.
  std::vector<std::size_t> path_of;
  std::vector<std::int32_t> paths;
};

// What a step asks for, as flat arrays.
struct StepRequest {
  std::size_t rows, parts;
  const std::int32_t* tokens;       // [rows]
  const std::int32_t* parents;      // [rows] within the part, -1 for the committed end
  const std::int32_t* counts;       // [parts] rows
  const std::int32_t* chains;       // [parts] one if every row follows the one before
  const std::int32_t* lengths;      // [parts] committed positions
  const std::int32_t* page_counts;  // [parts]
  const std::int32_t* pages;        // of all parts, one behind the other
  const std::int32_t* asked;        // [parts] rows at the end of the part whose logits are wanted
};

class Step {
 public:
  explicit Step(const StepRequest& request);

  std::vector<Part> parts;
  std::vector<std::int32_t> tokens;     // [rows]
  std::vector<std::size_t> positions;   // [rows]
  std::vector<std::size_t> columns;     // [rows]
  std::vector<std::uint8_t> asked;      // [rows]
  std::size_t width = 0;                // columns in all, each part padded to sixteen
  // Of the step's rows: [layers, kv_heads, head_dim, width] and [layers, kv_heads, width, head_dim].
  Buffer<float> keys, values;
};

}  // namespace peagle
