// Weights in the order in which products read them.
//
// Sixteen outputs go together. int8: for every four inputs 64 bytes, four for each output. bfloat16:
// for every two inputs 64 bytes, two values for each output. int4: for every eight inputs 64 bytes,
// four for each output, the first four inputs in the low nibbles and the others in the high ones.
// Inputs are padded to a multiple of 64 and outputs to one of sixteen, with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "buffer.h"
#include "kernels.h"

namespace peagle {

class PackedWeight {
 public:
  // values [out, in], scales [out]
  static PackedWeight int8(const std::int8_t* values, const float* scales, std::size_t out,
                           std::size_t in);
  // nibbles [out, in / 2], scales and offsets [out, in / 32]
  static PackedWeight int4(const std::uint8_t* nibbles, const float* scales, const float* offsets,
                           std::size_t out, std::size_t in);
  // values [out, in]
  static PackedWeight bfloat16(const std::uint16_t* values, std::size_t out, std::size_t in);

  Weight view() const;
  std::size_t bytes() const;
  std::size_t in() const { return in_; }

 private:
  PackedWeight(Format format, std::size_t out, std::size_t in, std::size_t bytes,
               std::size_t scales);

  Format format_;
  std::size_t out_, in_, blocks_, inner_;
  Buffer<std::uint8_t> data_;
  Buffer<float> scales_, offsets_;
  Buffer<std::int32_t> sums_;
};

inline std::size_t padded(std::size_t size, std::size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

}  // namespace peagle
