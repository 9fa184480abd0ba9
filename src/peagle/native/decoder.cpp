#include "decoder.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "row_product.h"

namespace peagle {

namespace {

// Rows that go through the layers together: more would push each other out of the cache.
constexpr std::size_t CHUNK = 128;
// Keys that are stored by all threads together.
constexpr std::size_t LEAST_SHARED_FLOATS = std::size_t{1} << 17;

class Clock {
 public:
  void lap(double& total) {
    const auto now = std::chrono::steady_clock::now();
    total += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void widen(const std::uint16_t* from, std::size_t size, float* to) {
  for (std::size_t i = 0; i < size; i++) {
    const std::uint32_t bits = static_cast<std::uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

}  // namespace

// Of each row; a drafter's first layer needs an embedding and what it makes of it side by side.
std::size_t Decoder::scratch_floats() const {
  const std::size_t entering = weights_.hidden_norm == nullptr ? shape.hidden : 3 * shape.hidden;
  return std::max({entering, shape.intermediate, shape.heads * shape.head_dim});
}

// The rows [first, last) of a step on their way through the layers.
class Decoder::Chunk {
 public:
  Chunk(Decoder& decoder, Step& step, std::size_t first, std::size_t last, const float* pool,
        std::size_t pool_pages)
      : decoder_(decoder),
        shape_(decoder.shape),
        kernels_(decoder.kernels),
        weights_(decoder.weights_),
        step_(step),
        first_(first),
        count_(last - first),
        scratch_floats_(decoder.scratch_floats()),
        pool_(pool),
        pool_pages_(pool_pages) {}

  void run(Team& team, const std::vector<std::size_t>& taps, const PassArrays& arrays,
           Seconds& seconds) {
    Clock clock;
    const bool drafter = weights_.hidden_norm != nullptr;
    if (!drafter) rows(team, [&](std::size_t row) { look_up(row, residual(row)); });
    for (std::size_t index = 0; index < shape_.layers; index++) {
      const LayerWeights& layer = weights_.layers[index];
      take_features(team, taps, index, arrays.features);
      if (drafter && index == 0)
        prepare(team, *layer.query_key_value,
                [&](std::size_t row) { return joined(row, arrays.entering); }, 2 * shape_.hidden);
      else
        enter(team, layer.attention_norm, *layer.query_key_value);
      clock.lap(seconds.rest);
      product(team, *layer.query_key_value, count_, decoder_.fused_.data(), fused_width(), false);
      clock.lap(seconds.products);
      rows(team, [&](std::size_t row) { turn_and_note(row, index); });
      clock.lap(seconds.rest);
      decoder_.plan_.attend(team, kernels_, step_, index, pool_, pool_pages_,
                            decoder_.queries_.data());
      clock.lap(seconds.attention);
      prepare(team, *layer.attention_out, [&](std::size_t row) { return attended(row); }, width());
      clock.lap(seconds.rest);
      product(team, *layer.attention_out, count_, residual(0), shape_.hidden, true);
      clock.lap(seconds.products);
      enter(team, layer.mlp_norm, *layer.gate_up);
      clock.lap(seconds.rest);
      product(team, *layer.gate_up, count_, decoder_.gate_up_.data(), 2 * shape_.intermediate, false);
      clock.lap(seconds.products);
      prepare(team, *layer.down, [&](std::size_t row) { return activate(row); },
              shape_.intermediate);
      clock.lap(seconds.rest);
      product(team, *layer.down, count_, residual(0), shape_.hidden, true);
      clock.lap(seconds.products);
    }
    head(team, arrays);
    clock.lap(seconds.products);
  }

  std::size_t asked() const {
    return static_cast<std::size_t>(
        std::count(step_.asked.begin() + static_cast<std::ptrdiff_t>(first_),
                   step_.asked.begin() + static_cast<std::ptrdiff_t>(first_ + count_), 1));
  }

 private:
  template <class Work>
  void rows(Team& team, const Work& work) {
    team.share(count_, 1, [&](std::size_t first, std::size_t last) {
      for (std::size_t row = first; row < last; row++) work(row);
    });
  }

  // Round rows to what a weight multiplies.
  template <class RowOf>
  void prepare(Team& team, const PackedWeight& weight, const RowOf& row_of, std::size_t size) {
    const Weight view = weight.view();
    rows(team, [&](std::size_t row) {
      decoder_.input_.set(kernels_, view, row, row_of(row), size);
    });
  }

  void enter(Team& team, const float* norm, const PackedWeight& weight) {
    prepare(team, weight, [&](std::size_t row) { return normed(row, row, norm); }, shape_.hidden);
  }

  void product(Team& team, const PackedWeight& weight, std::size_t count, float* out,
               std::size_t stride, bool add) {
    const Weight view = weight.view();
    multiply_rows(team, kernels_, view, decoder_.input_.rows(view, count), out, stride, add);
  }

  void look_up(std::size_t row, float* to) {
    const auto token = static_cast<std::size_t>(step_.tokens[first_ + row]);
    widen(token == shape_.vocab ? weights_.mask_embedding
                                : weights_.embedding + token * shape_.hidden,
          shape_.hidden, to);
  }

  // What layer 0 of a drafter reads: the normed embedding, then the normed hidden state.
  const float* joined(std::size_t row, const float* entering) {
    const float* hidden = entering + (first_ + row) * shape_.hidden;
    float* to = scratch_of(row);
    float* normed_hidden = to + shape_.hidden;
    float* embedded = normed_hidden + shape_.hidden;
    look_up(row, embedded);
    kernels_.norm(embedded, weights_.layers[0].attention_norm, shape_.hidden, shape_.eps, to);
    kernels_.norm(hidden, weights_.hidden_norm, shape_.hidden, shape_.eps, normed_hidden);
    std::memcpy(residual(row), weights_.norm_before_residual ? normed_hidden : hidden,
                shape_.hidden * sizeof(float));
    return to;
  }

  void take_features(Team& team, const std::vector<std::size_t>& taps, std::size_t layer,
                     float* features) {
    for (std::size_t tap = 0; tap < taps.size(); tap++)
      if (taps[tap] == layer)
        rows(team, [&](std::size_t row) {
          std::memcpy(features + ((first_ + row) * taps.size() + tap) * shape_.hidden,
                      residual(row), shape_.hidden * sizeof(float));
        });
  }

  // Rotate a row's queries and keys, and store its keys and values.
  void turn_and_note(std::size_t row, std::size_t layer) {
    const std::size_t head_dim = shape_.head_dim, kv_heads = shape_.kv_heads;
    const float* fused = decoder_.fused_.data() + row * fused_width();
    const float* turn = weights_.turns + step_.positions[first_ + row] * 2 * head_dim;
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(head_dim));
    for (std::size_t head = 0; head < shape_.heads; head++)
      kernels_.rotate(fused + head * head_dim, turn, head_dim, scale,
                      decoder_.queries_.data() + row * width() + head * head_dim);
    const std::size_t column = step_.columns[first_ + row];
    float* scratch = scratch_of(row);
    for (std::size_t head = 0; head < kv_heads; head++) {
      kernels_.rotate(fused + width() + head * head_dim, turn, head_dim, 1.0f, scratch);
      const std::size_t at = (layer * kv_heads + head) * head_dim * step_.width;
      for (std::size_t d = 0; d < head_dim; d++)
        step_.keys[at + d * step_.width + column] = scratch[d];
      std::memcpy(step_.values.data() + at + column * head_dim,
                  fused + width() + (kv_heads + head) * head_dim, head_dim * sizeof(float));
    }
  }

  const float* normed(std::size_t row, std::size_t scratch, const float* norm) {
    float* to = scratch_of(scratch);
    kernels_.norm(residual(row), norm, shape_.hidden, shape_.eps, to);
    return to;
  }

  const float* attended(std::size_t row) {
    float* to = scratch_of(row);
    decoder_.plan_.merge(kernels_, row, to);
    return to;
  }

  const float* activate(std::size_t row) {
    const float* gate = decoder_.gate_up_.data() + row * 2 * shape_.intermediate;
    float* to = scratch_of(row);
    kernels_.silu_times(gate, gate + shape_.intermediate, shape_.intermediate, to);
    return to;
  }

  void head(Team& team, const PassArrays& arrays) {
    std::vector<std::size_t> wanted;
    for (std::size_t row = 0; row < count_; row++)
      if (step_.asked[first_ + row]) wanted.push_back(row);
    if (wanted.empty()) return;
    const Weight view = weights_.head->view();
    team.share(wanted.size(), 1, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; i++) {
        decoder_.input_.set(kernels_, view, i, normed(wanted[i], i, weights_.norm),
                            shape_.hidden);
        if (arrays.residual != nullptr)
          std::memcpy(arrays.residual + i * shape_.hidden, residual(wanted[i]),
                      shape_.hidden * sizeof(float));
      }
    });
    product(team, *weights_.head, wanted.size(), arrays.logits, view.out, false);
  }

  float* residual(std::size_t row) { return decoder_.residual_.data() + row * shape_.hidden; }
  float* scratch_of(std::size_t row) {
    return decoder_.row_scratch_.data() + row * scratch_floats_;
  }
  std::size_t width() const { return shape_.heads * shape_.head_dim; }
  std::size_t fused_width() const {
    return (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
  }

  Decoder& decoder_;
  const Shape& shape_;
  const Kernels& kernels_;
  const DecoderWeights& weights_;
  Step& step_;
  const std::size_t first_, count_, scratch_floats_;
  const float* pool_;
  const std::size_t pool_pages_;
};

Decoder::Decoder(const Shape& shape, DecoderWeights weights, const Kernels& kernels,
                 std::shared_ptr<ThreadPool> threads)
    : shape(shape),
      kernels(kernels),
      weights_(std::move(weights)),
      threads_(std::move(threads)) {}

void Decoder::run(Step& step, const float* pool, std::size_t pool_pages,
                  const std::vector<std::size_t>& taps, PassArrays arrays) {
  const std::size_t rows = step.tokens.size(), most = std::min(rows, CHUNK);
  const std::size_t width = shape.heads * shape.head_dim;
  const std::size_t own = shape.layers * shape.kv_heads * shape.head_dim * step.width;
  step.keys.grow(own);
  step.values.grow(own);
  residual_.grow(most * shape.hidden);
  fused_.grow(most * (width + 2 * shape.kv_heads * shape.head_dim));
  queries_.grow(most * width);
  gate_up_.grow(most * 2 * shape.intermediate);
  row_scratch_.grow(most * scratch_floats());
  const std::size_t entering = weights_.hidden_norm == nullptr ? shape.hidden : 2 * shape.hidden;
  input_.grow(most, std::max({entering, shape.intermediate, width}));
  for (std::size_t first = 0; first < rows; first += CHUNK) {
    const std::size_t last = std::min(first + CHUNK, rows);
    plan_.make(shape, kernels, step, first, last);
    Chunk chunk(*this, step, first, last, pool, pool_pages);
    Seconds spent;
    threads_->run([&](Team& team) {
      Seconds others;
      chunk.run(team, taps, arrays, team.index == 0 ? spent : others);
    });
    seconds.products += spent.products;
    seconds.attention += spent.attention;
    seconds.rest += spent.rest;
    arrays.logits += chunk.asked() * weights_.head->view().out;
    if (arrays.residual != nullptr) arrays.residual += chunk.asked() * shape.hidden;
  }
}

void Decoder::commit(const Step& step, float* pool, std::size_t pool_pages, std::size_t count,
                     const std::int32_t* rows, const std::int32_t* pages,
                     const std::int32_t* places) {
  const std::size_t head_dim = shape.head_dim, kv_heads = shape.kv_heads;
  const std::size_t layer_floats = pool_pages * kv_heads * shape.page_floats();
  std::vector<std::size_t> columns(count), filled;
  for (std::size_t i = 0; i < count; i++) {
    columns[i] = step.columns[static_cast<std::size_t>(rows[i])];
    if (places[i] + 1 == static_cast<std::int32_t>(PAGE)) filled.push_back(i);
  }
  if (!attends_in_pairs(kernels, head_dim)) filled.clear();
  // Rows from now on stand behind such a page, and read it in pairs.
  const auto pair = [&](float* from, std::size_t height, std::size_t across) {
    kernels.pair_rows(from, height, across, reinterpret_cast<std::uint16_t*>(from));
  };
  const auto copy = [&](std::size_t first, std::size_t last) {
    for (std::size_t at = first; at < last; at++) {
      const std::size_t layer = at / kv_heads, head = at % kv_heads;
      const float* keys = step.keys.data() + at * head_dim * step.width;
      const float* values = step.values.data() + at * head_dim * step.width;
      const auto page_of = [&](std::size_t i) {
        return pool + 2 * layer * layer_floats +
               (static_cast<std::size_t>(pages[i]) * kv_heads + head) * shape.page_floats();
      };
      // Neighbouring rows lie beside each other in a key's column on both sides.
      for (std::size_t d = 0; d < head_dim; d++)
        for (std::size_t i = 0; i < count; i++)
          page_of(i)[d * PAGE + static_cast<std::size_t>(places[i])] =
              keys[d * step.width + columns[i]];
      for (std::size_t i = 0; i < count; i++)
        std::memcpy(page_of(i) + layer_floats + static_cast<std::size_t>(places[i]) * head_dim,
                    values + columns[i] * head_dim, head_dim * sizeof(float));
      for (const std::size_t i : filled) {
        float* page = page_of(i);
        pair(page, head_dim, PAGE);
        pair(page + layer_floats, PAGE, head_dim);
      }
    }
  };
  const std::size_t heads = shape.layers * kv_heads;
  // Waking threads takes longer than copying a few rows.
  if ((count + filled.size() * PAGE) * heads * head_dim < LEAST_SHARED_FLOATS) return copy(0, heads);
  threads_->run([&](Team& team) { team.share(heads, 1, copy); });
}

}  // namespace peagle
