// A decoder of the Llama family, a target or a drafter network: a whole pass over some rows in one
// call.
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
  // Of a drafter network, null in a target. Its rows enter with a hidden state: layer 0 reads the
  // normed embedding and the normed hidden state side by side, and adds to the hidden state.
  const float* hidden_norm = nullptr;
  bool norm_before_residual = false;           // or adds to the normed one
  const std::uint16_t* mask_embedding = nullptr;  // of the token behind the vocabulary, if any
};

// What a pass reads and writes beside the pool; null where it is not wanted.
struct PassArrays {
  const float* entering = nullptr;  // [rows, hidden], hidden states of a drafter's rows
  float* logits = nullptr;          // [rows asked for, outputs of the head]
  float* residual = nullptr;        // [rows asked for, hidden], what leaves the last layer
  float* features = nullptr;        // [rows, taps * hidden], what enters the tapped layers
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
  // transposed within a page: [head_dim, 64], values [64, head_dim], in float32. Where the set
  // attends in pairs, a page whose 64 positions are committed lies as `pair_rows` leaves it, in
  // bfloat16, and takes the first half of its room.
  void run(Step& step, const float* pool, std::size_t pool_pages,
           const std::vector<std::size_t>& taps, PassArrays arrays);

  // Writes the keys and values of rows into places of the pool, in order of position.
  void commit(const Step& step, float* pool, std::size_t pool_pages, std::size_t count,
              const std::int32_t* rows, const std::int32_t* pages, const std::int32_t* places);

  const Shape shape;
  const Kernels& kernels;
  Seconds seconds;

 private:
  class Chunk;

  std::size_t scratch_floats() const;

  DecoderWeights weights_;
  std::shared_ptr<ThreadPool> threads_;
  // Scratch of one chunk of rows.
  Buffer<float> residual_, fused_, queries_, gate_up_, row_scratch_;
  RowInput input_;
  AttentionPlan plan_;
};

}  // namespace peagle
