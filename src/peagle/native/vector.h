// Sixteen floats at a time, written once and compiled for every instruction set.
//
// Every function works on whole vectors, element by element or in a fixed tree, so that a value
// gets the same bits wherever it lies. Contraction is off (CMakeLists.txt): only `fma` below
// fuses, and it always does where the instruction set can.
//
// Everything here has internal linkage: files compiled with other flags include it too, and the
// linker must not pick one of them for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr std::size_t LANES = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef std::int32_t Ints __attribute__((vector_size(64)));
typedef std::uint8_t Bytes __attribute__((vector_size(16)));

#define PEAGLE_INLINE inline __attribute__((always_inline))

// For functions outside the kernel sets: compiled for several widths, chosen when they are loaded.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define PEAGLE_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PEAGLE_WIDE
#endif

PEAGLE_INLINE Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

PEAGLE_INLINE void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

PEAGLE_INLINE Floats all(float value) { return Floats{} + value; }

PEAGLE_INLINE Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  __m256 x[2], y[2], z[2];
  std::memcpy(x, &a, sizeof a);
  std::memcpy(y, &b, sizeof b);
  std::memcpy(z, &c, sizeof c);
  for (int i = 0; i < 2; i++) z[i] = _mm256_fmadd_ps(x[i], y[i], z[i]);
  std::memcpy(&c, z, sizeof c);
  return c;
#else
  return a * b + c;
#endif
}

PEAGLE_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
PEAGLE_INLINE Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
PEAGLE_INLINE Floats magnitude(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }

PEAGLE_INLINE float largest(Floats a) {
  float result = a[0];
  for (std::size_t i = 1; i < LANES; i++) result = a[i] > result ? a[i] : result;
  return result;
}

// Adds halves onto each other: lane i meets i + 8, then i + 4, i + 2, i + 1.
PEAGLE_INLINE float sum(Floats a) {
  float part[8];
  for (int i = 0; i < 8; i++) part[i] = a[i] + a[i + 8];
  for (int i = 0; i < 4; i++) part[i] += part[i + 4];
  return (part[0] + part[2]) + (part[1] + part[3]);
}

// To the nearest whole number, ties to even, for magnitudes below 2^22: adding 1.5 * 2^23 leaves
// no room for a fraction.
PEAGLE_INLINE Ints nearest(Floats a) {
  return (Ints)(a + 12582912.0f) - 0x4b400000;
}

// exp within two units in the last place for -87 <= a <= 88, clamped there: a = n ln 2 + r,
// |r| <= ln 2 / 2, and a polynomial in r (the coefficients of Cephes' expf).
PEAGLE_INLINE Floats exponential(Floats a) {
  a = smaller(larger(a, all(-87.0f)), all(88.0f));
  const Floats shifted = a * 1.44269504f + 12582912.0f;
  const Floats whole = shifted - 12582912.0f;
  Floats r = fma(whole, all(-0.693359375f), a);
  r = fma(whole, all(2.12194440e-4f), r);
  Floats p = all(1.9875691500e-4f);
  p = fma(p, r, all(1.3981999507e-3f));
  p = fma(p, r, all(8.3334519073e-3f));
  p = fma(p, r, all(4.1665795894e-2f));
  p = fma(p, r, all(1.6666665459e-1f));
  p = fma(p, r, all(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  const Ints power = ((Ints)shifted - 0x4b400000 + 127) << 23;
  return p * (Floats)power;
}

// bfloat16 rounded to nearest even, as its upper sixteen bits of a float32.
PEAGLE_INLINE std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

PEAGLE_INLINE float from_bfloat16(std::uint16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

}  // namespace
