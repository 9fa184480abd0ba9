// The sizes of a decoder.
#pragma once

#include <cstddef>

namespace peagle {

struct Shape {
  std::size_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim;
  float eps;
  std::size_t window;  // positions a row sees, itself included; zero sees all

  std::size_t shared() const { return heads / kv_heads; }
  std::size_t page_floats() const { return 64 * head_dim; }
};

}  // namespace peagle
