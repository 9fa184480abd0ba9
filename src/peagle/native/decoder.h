// A decoder of the Llama family: a whole pass over some rows in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"
#include "kernels.h"
#include "packing.h"
#include "row_input.h"
#include "shape.h"
#include "step.h"
#include "threads.h"

namespace peagle {

struct LayerWeights {
  const float* attention_norm;
  const PackedWeight* query_key_value;
  const PackedWeight* attention_out;
  const float* mlp_norm;
  const PackedWeight* gate_up;
  const PackedWeight* down;
};

struct DecoderWeights {
  const std::uint16_t* embedding;  // bfloat16 [vocab, hidden]
  std::vector<LayerWeights> layers;
  const float* norm;
  const PackedWeight* head;
  const float* turns;              // [context, 2, head_dim]
};

// Where the seconds of a pass went.
struct Seconds {
  double products = 0, attention = 0, rest = 0;
};

class Decoder {
 public:
  Decoder(const Shape& shape, DecoderWeights weights, const Kernels& kernels,
          std::shared_ptr<ThreadPool> threads);

  // Computes the rows of a step. The pool is [layers, 2, pages, kv_heads, 64 * head_dim], keys
  // transposed within a page. `logits` is [rows asked for, vocab]; `features`
  // [rows, taps * hidden], what enters the tapped layers.
  void run(Step& step, const float* pool, std::size_t pool_pages,
           const std::vector<std::size_t>& taps, float* logits, float* features);

  // Writes the keys and values of rows into places of the pool.
  void commit(const Step& step, float* pool, std::size_t pool_pages, std::size_t count,
              const std::int32_t* rows, const std::int32_t* pages, const std::int32_t* places);

  const Shape shape;
  const Kernels& kernels;
  Seconds seconds;

 private:
  class Chunk;

  DecoderWeights weights_;
  std::shared_ptr<ThreadPool> threads_;
  // Scratch of one chunk of rows.
  Buffer<float> residual_, fused_, queries_, attended_, gate_up_, row_scratch_;
  RowInput input_;
  AttentionPlan plan_;
};

}  // namespace peagle
