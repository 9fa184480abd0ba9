// What an instruction set has to offer: one table of functions for each.
#pragma once

#include <cstddef>
#include <cstdint>

namespace peagle {

constexpr std::size_t BLOCK = 16;        // outputs that are packed together
constexpr std::size_t INNER = 64;        // inputs are padded to a multiple of this
constexpr std::size_t GROUP = 32;        // inputs that share an int4 scale and offset
constexpr std::size_t PAGE = 64;         // positions of a page of keys and values
constexpr std::size_t SPAN = 4;          // pages of bfloat16 pairs that are read together
constexpr std::size_t WIDEST_PAIRED = 256;  // largest head_dim that is attended with in pairs

constexpr float MASKED = -1e30f;         // score of a key that a row does not see

enum class Format { int8, int4, bfloat16 };

// One weight [out, in], packed in blocks of sixteen outputs (packing.h).
struct Weight {
  Format format;
  std::size_t out;            // outputs asked for
  std::size_t blocks;         // of sixteen, the last one padded with zeros
  std::size_t inner;          // inputs, padded
  const std::uint8_t* data;
  const float* scales;        // int8 [blocks, 16]; int4 [blocks, inner / 32, 16]
  const float* offsets;       // int4 [blocks, inner / 32, 16]
  const std::int32_t* sums;   // int8 [blocks, 16]: the weights of an output added up
};

// Rows as a product reads them: signed or offset bytes with a scale, or bfloat16.
struct Rows {
  std::size_t count;
  std::size_t stride;             // bytes from row to row
  const std::uint8_t* data;       // int8: value + 128; int4: value; bfloat16: two bytes each
  const float* scales;            // [count]
  const std::int32_t* group_sums; // int4 [count, inner / 32]
};

// Some query rows of one key head against one page. A query row is a head of a row.
struct PageJob {
  std::size_t head_dim;
  std::size_t count;               // query rows
  const float* const* queries;     // each [head_dim], rotated and scaled
  const float* keys;               // committed, [head_dim, 64]
  const float* values;             // committed, [64, head_dim]
  std::size_t committed;           // places of the page that hold committed keys
  const float* own_keys;           // of the step's rows, [head_dim, own_stride]
  const float* own_values;         // [own_stride, head_dim]
  std::size_t own_stride;
  std::size_t own_first, own_last; // rows of the step that stand on this page, multiples of 16
  const std::int32_t* const* own;  // for each query row the step's row at each place of the page
  const std::int32_t* first_seen;  // for each query row the first place it sees
  const std::int32_t* last_seen;   // and the one behind the last
  float* const* sums;              // each [head_dim]: weighted sum of values
  float* const* maxima;            // each one number: largest score
  float* const* weights;           // each one number: sum of exponentials
};

// Some query rows of one key head against up to SPAN whole pages, which lie as `pair_rows` leaves
// them.
struct SpanJob {
  std::size_t head_dim;            // a multiple of 32, at most WIDEST_PAIRED
  std::size_t count;               // query rows
  const float* const* queries;     // each [head_dim], rotated and scaled
  std::size_t pages;
  const std::uint16_t* const* keys;    // of each page [head_dim / 2, 64, 2]
  const std::uint16_t* const* values;  // of each page [32, head_dim, 2]
  const std::int32_t* first_seen;  // for each query row the first place of the span it sees
  float* const* sums;              // as in PageJob
  float* const* maxima;
  float* const* weights;
};

// out[row * out_stride + o] = or += product, for outputs of the blocks [first, last).
using ProductKernel = void(const Weight&, const Rows&, std::size_t first, std::size_t last,
                           float* out, std::size_t out_stride, bool add);

// Attention of a span's query rows.
using SpanKernel = void(const SpanJob&);

// Round rows [count, width] to bfloat16, each two side by side: [count / 2, width, 2], which may
// begin where the rows do.
using PairKernel = void(const float* rows, std::size_t count, std::size_t width,
                        std::uint16_t* out);

struct Kernels {
  const char* name;
  ProductKernel* product;
  // Scale to unit root mean square, then by `weight`; `size` a multiple of sixteen.
  void (*norm)(const float* row, const float* weight, std::size_t size, float eps, float* out);
  // Round a row to bytes: value * 127 / largest magnitude, plus `shift`.
  void (*quantise)(const float* row, std::size_t size, std::uint8_t shift, std::uint8_t* out,
                   float* scale, std::int32_t* group_sums);
  void (*to_bfloat16)(const float* row, std::size_t size, std::uint16_t* out);
  // out = gate / (1 + exp(-gate)) * up
  void (*silu_times)(const float* gate, const float* up, std::size_t size, float* out);
  // Turn neighbouring pairs by `turn` [2, head_dim]: cosines, then sines with the sign of each.
  void (*rotate)(const float* head, const float* turn, std::size_t head_dim, float scale,
                 float* out);
  void (*attend_page)(const PageJob&);
  // Attention in bfloat16 pairs, null in sets without: whole pages behind a row's own one.
  SpanKernel* attend_span;
  PairKernel* pair_rows;
  // Merge the partial results [first, last) of one query row, `stride` numbers apart.
  void (*merge)(const float* sums, const float* maxima, const float* weights, std::size_t first,
                std::size_t last, std::size_t sums_stride, std::size_t stride,
                std::size_t head_dim, float* out);
};

// Whether a set attends in pairs in a model of this head_dim: how whole pages then lie.
inline bool attends_in_pairs(const Kernels& kernels, std::size_t head_dim) {
  return kernels.attend_span != nullptr && head_dim % 32 == 0 && head_dim <= WIDEST_PAIRED;
}

// The best set this processor runs, or the one named; null if it cannot run that one.
const Kernels* choose_kernels(const char* name);
// The sets this processor runs, best first, null behind the last.
const Kernels* const* available_kernels();

}  // namespace peagle
