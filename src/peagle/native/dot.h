// Four neighbouring inputs times sixteen outputs: the one thing that instruction sets differ in.
//
// int8 rows come as value + 128 and weights lie in -127..127. VNNI multiplies unsigned by signed
// bytes, so it takes the rows as they are and starts from -128 times the weights' sum; the others
// take the 128 off first. All give the same whole numbers.
#pragma once

#include "vector.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace {

// Blocks of sixteen outputs that a tile takes: as many as registers hold beside eight rows.
#if defined(__AVX512F__)
constexpr std::size_t BLOCK_TILE = 3;
#else
constexpr std::size_t BLOCK_TILE = 1;
#endif

constexpr std::uint32_t SIGNS = 0x80808080u;

// Sums of sixteen outputs. Compilers keep vectors that are wider than the registers in memory, so
// where these hold half of one, the halves stand apart.
#if defined(__AVX2__) && !defined(__AVX512F__)

struct Sums {
  __m256i half[2];
};

struct FloatSums {
  __m256 half[2];
};

PEAGLE_INLINE FloatSums load_sums(const float* from) {
  return {{_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}};
}

PEAGLE_INLINE FloatSums all_sums(float value) {
  return {{_mm256_set1_ps(value), _mm256_set1_ps(value)}};
}

PEAGLE_INLINE FloatSums to_floats(Sums sums) {
  return {{_mm256_cvtepi32_ps(sums.half[0]), _mm256_cvtepi32_ps(sums.half[1])}};
}

PEAGLE_INLINE FloatSums operator*(FloatSums a, FloatSums b) {
  return {{_mm256_mul_ps(a.half[0], b.half[0]), _mm256_mul_ps(a.half[1], b.half[1])}};
}

PEAGLE_INLINE FloatSums fma(FloatSums a, FloatSums b, FloatSums c) {
  return {{_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]),
           _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])}};
}

PEAGLE_INLINE Floats whole(FloatSums sums) {
  Floats value;
  std::memcpy(&value, &sums, sizeof value);
  return value;
}

#else

typedef Ints Sums;
typedef Floats FloatSums;

PEAGLE_INLINE FloatSums load_sums(const float* from) { return load(from); }
PEAGLE_INLINE FloatSums all_sums(float value) { return all(value); }
PEAGLE_INLINE FloatSums to_floats(Sums sums) { return __builtin_convertvector(sums, Floats); }
PEAGLE_INLINE Floats whole(FloatSums sums) { return sums; }

#endif

// Sixty-four bytes of a weight.
#if defined(__AVX512VNNI__)

struct WeightVector {
  __m512i bits;
};

PEAGLE_INLINE WeightVector load_weight(const std::uint8_t* from) { return {_mm512_load_si512(from)}; }

PEAGLE_INLINE void load_nibbles(const std::uint8_t* from, WeightVector& low, WeightVector& high) {
  const __m512i both = _mm512_load_si512(from), mask = _mm512_set1_epi8(15);
  low.bits = _mm512_and_si512(both, mask);
  high.bits = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
}

PEAGLE_INLINE Ints dot_start(const std::int32_t* weight_sums) {
  Ints sums;
  std::memcpy(&sums, weight_sums, sizeof sums);
  return sums * -128;
}

PEAGLE_INLINE Ints dot_int8(Ints sum, WeightVector weight, std::uint32_t four) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(static_cast<int>(four)),
                                   weight.bits);
}

PEAGLE_INLINE Ints dot_nibbles(Ints sum, WeightVector weight, std::uint32_t four) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, weight.bits,
                                   _mm512_set1_epi32(static_cast<int>(four)));
}

#elif defined(__AVX2__)

struct WeightVector {
  __m256i half[2];
};

PEAGLE_INLINE WeightVector load_weight(const std::uint8_t* from) {
  return {{_mm256_load_si256(reinterpret_cast<const __m256i*>(from)),
           _mm256_load_si256(reinterpret_cast<const __m256i*>(from + 32))}};
}

PEAGLE_INLINE void load_nibbles(const std::uint8_t* from, WeightVector& low, WeightVector& high) {
  const WeightVector both = load_weight(from);
  const __m256i mask = _mm256_set1_epi8(15);
  for (int i = 0; i < 2; i++) {
    low.half[i] = _mm256_and_si256(both.half[i], mask);
    high.half[i] = _mm256_and_si256(_mm256_srli_epi16(both.half[i], 4), mask);
  }
}

PEAGLE_INLINE Sums dot_start(const std::int32_t*) { return {}; }

PEAGLE_INLINE Sums dot_halves(Sums sums, WeightVector weight, __m256i four) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (int i = 0; i < 2; i++) {
    // Sums of two products of at most 127 * 127 fit in sixteen bits: nothing saturates.
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weight.half[i]),
                                               _mm256_sign_epi8(four, weight.half[i]));
    sums.half[i] = _mm256_add_epi32(sums.half[i], _mm256_madd_epi16(pairs, ones));
  }
  return sums;
}

PEAGLE_INLINE Sums dot_int8(Sums sum, WeightVector weight, std::uint32_t four) {
  return dot_halves(sum, weight, _mm256_set1_epi32(static_cast<int>(four ^ SIGNS)));
}

// Nibbles have no sign to take off.
PEAGLE_INLINE Sums dot_nibbles(Sums sums, WeightVector weight, std::uint32_t four) {
  const __m256i values = _mm256_set1_epi32(static_cast<int>(four)), ones = _mm256_set1_epi16(1);
  for (int i = 0; i < 2; i++)
    sums.half[i] = _mm256_add_epi32(
        sums.half[i],
        _mm256_madd_epi16(_mm256_maddubs_epi16(weight.half[i], values), ones));
  return sums;
}

#else

struct WeightVector {
  alignas(64) std::int8_t bytes[64];
};

PEAGLE_INLINE WeightVector load_weight(const std::uint8_t* from) {
  WeightVector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

PEAGLE_INLINE void load_nibbles(const std::uint8_t* from, WeightVector& low, WeightVector& high) {
  for (std::size_t i = 0; i < 64; i++) {
    low.bytes[i] = static_cast<std::int8_t>(from[i] & 15);
    high.bytes[i] = static_cast<std::int8_t>(from[i] >> 4);
  }
}

PEAGLE_INLINE Ints dot_start(const std::int32_t*) { return Ints{}; }

PEAGLE_INLINE Ints dot_signed(Ints sum, const WeightVector& weight, std::uint32_t four) {
#if defined(__ARM_FEATURE_DOTPROD)
  const int8x16_t values = vreinterpretq_s8_u32(vdupq_n_u32(four));
  std::int32_t sums[LANES];
  std::memcpy(sums, &sum, sizeof sum);
  for (std::size_t i = 0; i < LANES; i += 4)
    vst1q_s32(sums + i,
              vdotq_s32(vld1q_s32(sums + i), vld1q_s8(weight.bytes + 4 * i), values));
  std::memcpy(&sum, sums, sizeof sum);
  return sum;
#else
  std::int8_t value[4];
  std::memcpy(value, &four, sizeof value);
  for (std::size_t i = 0; i < LANES; i++)
    for (std::size_t j = 0; j < 4; j++) sum[i] += weight.bytes[4 * i + j] * value[j];
  return sum;
#endif
}

PEAGLE_INLINE Ints dot_int8(Ints sum, const WeightVector& weight, std::uint32_t four) {
  return dot_signed(sum, weight, four ^ SIGNS);
}

PEAGLE_INLINE Ints dot_nibbles(Ints sum, const WeightVector& weight, std::uint32_t four) {
  return dot_signed(sum, weight, four);
}

#endif

// Two neighbouring inputs: the even one in the lower half of each lane.
PEAGLE_INLINE FloatSums dot_bfloat16(FloatSums sum, const WeightVector& weight,
                                     std::uint32_t two) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256 first = _mm256_set1_ps(from_bfloat16(static_cast<std::uint16_t>(two)));
  const __m256 second = _mm256_set1_ps(from_bfloat16(static_cast<std::uint16_t>(two >> 16)));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (int i = 0; i < 2; i++) {
    const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(weight.half[i], 16));
    const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(weight.half[i], upper));
    sum.half[i] = _mm256_fmadd_ps(even, first, sum.half[i]);
    sum.half[i] = _mm256_fmadd_ps(odd, second, sum.half[i]);
  }
  return sum;
#elif defined(__AVX512BF16__)
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weight.bits,
                                  (__m512bh)_mm512_set1_epi32(static_cast<int>(two)));
#else
  Ints bits;
  std::memcpy(&bits, &weight, sizeof bits);
  const Floats even = (Floats)(bits << 16);
  const Floats odd = (Floats)(bits & static_cast<std::int32_t>(0xffff0000u));
  sum = fma(even, all(from_bfloat16(static_cast<std::uint16_t>(two))), sum);
  return fma(odd, all(from_bfloat16(static_cast<std::uint16_t>(two >> 16))), sum);
#endif
}

}  // namespace
