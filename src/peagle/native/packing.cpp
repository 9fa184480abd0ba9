#include "packing.h"

#include <cstring>

namespace peagle {

namespace {

template <class Element>
void clear(Buffer<Element>& buffer) {
  if (buffer.size() > 0) std::memset(buffer.data(), 0, buffer.size() * sizeof(Element));
}

}  // namespace

PackedWeight::PackedWeight(Format format, std::size_t out, std::size_t in, std::size_t bytes,
                           std::size_t scales)
    : format_(format),
      out_(out),
      in_(in),
      blocks_(padded(out, BLOCK) / BLOCK),
      inner_(padded(in, INNER)),
      data_(bytes),
      scales_(scales) {
  clear(data_);
  clear(scales_);
}

PackedWeight PackedWeight::int8(const std::int8_t* values, const float* scales, std::size_t out,
                                std::size_t in) {
  const std::size_t inner = padded(in, INNER), wide = padded(out, BLOCK);
  PackedWeight packed(Format::int8, out, in, wide * inner, wide);
  packed.sums_.grow(wide);
  clear(packed.sums_);
  for (std::size_t o = 0; o < out; o++) {
    std::uint8_t* to = packed.data_.data() + o / BLOCK * inner * BLOCK + o % BLOCK * 4;
    const std::int8_t* from = values + o * in;
    std::int32_t sum = 0;
    for (std::size_t k = 0; k < in; k++) {
      to[k / 4 * 64 + k % 4] = static_cast<std::uint8_t>(from[k]);
      sum += from[k];
    }
    packed.sums_[o] = sum;
    packed.scales_[o] = scales[o];
  }
  return packed;
}

PackedWeight PackedWeight::int4(const std::uint8_t* nibbles, const float* scales,
                                const float* offsets, std::size_t out, std::size_t in) {
  const std::size_t inner = padded(in, INNER), wide = padded(out, BLOCK);
  const std::size_t groups = inner / GROUP, given = in / GROUP;
  PackedWeight packed(Format::int4, out, in, wide * inner / 2, wide * groups);
  packed.offsets_.grow(wide * groups);
  clear(packed.offsets_);
  for (std::size_t o = 0; o < out; o++) {
    std::uint8_t* to = packed.data_.data() + o / BLOCK * inner * BLOCK / 2 + o % BLOCK * 4;
    for (std::size_t k = 0; k < in; k++) {
      const std::uint8_t two = nibbles[(o * in + k) / 2];
      const int nibble = k % 2 == 0 ? two & 15 : two >> 4;
      std::uint8_t& place = to[k / 8 * 64 + k % 4];
      place = static_cast<std::uint8_t>(place | (k % 8 < 4 ? nibble : nibble << 4));
    }
    for (std::size_t g = 0; g < given; g++) {
      const std::size_t at = (o / BLOCK * groups + g) * BLOCK + o % BLOCK;
      packed.scales_[at] = scales[o * given + g];
      packed.offsets_[at] = offsets[o * given + g];
    }
  }
  return packed;
}

PackedWeight PackedWeight::bfloat16(const std::uint16_t* values, std::size_t out, std::size_t in) {
  const std::size_t inner = padded(in, INNER), wide = padded(out, BLOCK);
  PackedWeight packed(Format::bfloat16, out, in, wide * inner * 2, 0);
  auto* data = reinterpret_cast<std::uint16_t*>(packed.data_.data());
  for (std::size_t o = 0; o < out; o++) {
    std::uint16_t* to = data + o / BLOCK * inner * BLOCK + o % BLOCK * 2;
    for (std::size_t k = 0; k < in; k++) to[k / 2 * 32 + k % 2] = values[o * in + k];
  }
  return packed;
}

Weight PackedWeight::view() const {
  return {format_,        out_,           blocks_,         inner_,
          data_.data(),   scales_.data(), offsets_.data(), sums_.data()};
}

std::size_t PackedWeight::bytes() const {
  return data_.size() + 4 * (scales_.size() + offsets_.size() + sums_.size());
}

}  // namespace peagle
