// Rows of float32 in the form that a product reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "buffer.h"
#include "kernels.h"
#include "packing.h"

namespace peagle {

class RowInput {
 public:
  // Makes room for `rows` rows of at most `inner` inputs.
  void grow(std::size_t rows, std::size_t inner) {
    data_.grow(rows * padded(inner, INNER) * 2);
    scales_.grow(rows);
    group_sums_.grow(rows * padded(inner, INNER) / GROUP);
  }

  // Sets a row of what `weight` multiplies from `size` numbers, a multiple of sixteen; the rest is
  // padded with zeros. Threads may set different rows at once.
  void set(const Kernels& kernels, const Weight& weight, std::size_t row, const float* values,
           std::size_t size) {
    const std::size_t stride = stride_of(weight);
    std::uint8_t* to = data_.data() + row * stride;
    if (weight.format == Format::bfloat16) {
      kernels.to_bfloat16(values, size, reinterpret_cast<std::uint16_t*>(to));
      std::memset(to + 2 * size, 0, stride - 2 * size);
      return;
    }
    const bool grouped = weight.format == Format::int4;
    const std::size_t groups = weight.inner / GROUP;
    std::int32_t* sums = grouped ? group_sums_.data() + row * groups : nullptr;
    if (grouped) std::memset(sums, 0, groups * sizeof(std::int32_t));
    const std::uint8_t zero = grouped ? 0 : 128;
    kernels.quantise(values, size, zero, to, scales_.data() + row, sums);
    std::memset(to + size, zero, stride - size);
  }

  Rows rows(const Weight& weight, std::size_t count) const {
    return {count, stride_of(weight), data_.data(), scales_.data(), group_sums_.data()};
  }

 private:
  static std::size_t stride_of(const Weight& weight) {
    return weight.format == Format::bfloat16 ? 2 * weight.inner : weight.inner;
  }

  Buffer<std::uint8_t> data_;
  Buffer<float> scales_;
  Buffer<std::int32_t> group_sums_;
};

}  // namespace peagle
