// Kernels on single rows, in float32: norm, rounding, SiLU, rotation.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace {

void norm(const float* row, const float* weight, std::size_t size, float eps, float* out) {
  Floats squares{};
  for (std::size_t i = 0; i < size; i += LANES) {
    const Floats value = load(row + i);
    squares = fma(value, value, squares);
  }
  const float mean = sum(squares) / static_cast<float>(size);
  const float scale = 1.0f / __builtin_sqrtf(mean + eps);
  for (std::size_t i = 0; i < size; i += LANES)
    store(out + i, load(row + i) * scale * load(weight + i));
}

void quantise(const float* row, std::size_t size, std::uint8_t shift, std::uint8_t* out,
              float* scale, std::int32_t* group_sums) {
  Floats most{};
  for (std::size_t i = 0; i < size; i += LANES) most = larger(most, magnitude(load(row + i)));
  const float top = largest(most);
  // Below this its inverse would overflow; such a row is zero for any purpose.
  const bool nothing = top < 1e-30f;
  *scale = nothing ? 0.0f : top / 127.0f;
  const float inverse = nothing ? 0.0f : 127.0f / top;
  for (std::size_t i = 0; i < size; i += LANES) {
    const Ints whole = nearest(load(row + i) * inverse);
    if (group_sums != nullptr) {
      std::int32_t total = 0;
      for (std::size_t j = 0; j < LANES; j++) total += whole[j];
      std::int32_t& group = group_sums[i / peagle::GROUP];
      group = i % peagle::GROUP == 0 ? total : group + total;
    }
    const Bytes bytes = __builtin_convertvector(whole + shift, Bytes);
    std::memcpy(out + i, &bytes, sizeof bytes);
  }
}

void round_to_bfloat16(const float* row, std::size_t size, std::uint16_t* out) {
  for (std::size_t i = 0; i < size; i++) out[i] = to_bfloat16(row[i]);
}

void silu_times(const float* gate, const float* up, std::size_t size, float* out) {
  for (std::size_t i = 0; i < size; i += LANES) {
    const Floats value = load(gate + i);
    store(out + i, value / (exponential(-value) + 1.0f) * load(up + i));
  }
}

void rotate(const float* head, const float* turn, std::size_t head_dim, float scale, float* out) {
  for (std::size_t i = 0; i < head_dim; i += LANES) {
    const Floats value = load(head + i);
    const Floats other = __builtin_shufflevector(value, value, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11,
                                                 10, 13, 12, 15, 14);
    const Floats turned = fma(value, load(turn + i), other * load(turn + head_dim + i));
    store(out + i, turned * scale);
  }
}

}  // namespace
