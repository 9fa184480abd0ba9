// The Python module: arrays in, checked; passes without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bound_markov.h"
#include "decoder.h"
#include "drafting_module.h"
#include "fusion.h"
#include "prediction.h"
#include "row_product.h"

namespace {

using namespace peagle;

using Pool = nb::ndarray<float, nb::ndim<6>, nb::c_contig, nb::device::cpu>;

std::shared_ptr<PackedWeight> pack_int8(Matrix<const std::int8_t> values,
                                        Vector<const float> scales) {
  require(scales.shape(0) == values.shape(0), "one scale for each output");
  return std::make_shared<PackedWeight>(
      PackedWeight::int8(values.data(), scales.data(), values.shape(0), values.shape(1)));
}

std::shared_ptr<PackedWeight> pack_int4(Matrix<const std::uint8_t> nibbles,
                                        Matrix<const float> scales, Matrix<const float> offsets) {
  const std::size_t out = nibbles.shape(0), in = 2 * nibbles.shape(1);
  for (const auto& one : {scales, offsets})
    require(one.shape(0) == out && one.shape(1) * GROUP == in, "a scale for each 32 inputs");
  return std::make_shared<PackedWeight>(
      PackedWeight::int4(nibbles.data(), scales.data(), offsets.data(), out, in));
}

std::shared_ptr<PackedWeight> pack_bfloat16(Matrix<const std::uint16_t> values) {
  return std::make_shared<PackedWeight>(
      PackedWeight::bfloat16(values.data(), values.shape(0), values.shape(1)));
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Kernels* const* sets = available_kernels(); *sets != nullptr; sets++)
    names.emplace_back((*sets)->name);
  return names;
}

// A decoder with everything its pointers point to.
class BoundDecoder {
 public:
  using LayerTuple =
      std::tuple<Vector<const float>, std::shared_ptr<PackedWeight>, std::shared_ptr<PackedWeight>,
                 Vector<const float>, std::shared_ptr<PackedWeight>,
                 std::shared_ptr<PackedWeight>>;

  BoundDecoder(std::size_t intermediate, std::size_t heads, std::size_t kv_heads,
               std::size_t head_dim, float eps, std::size_t window,
               Matrix<const std::uint16_t> embedding, std::vector<LayerTuple> layers,
               Vector<const float> norm, std::shared_ptr<PackedWeight> head,
               Array<const float, nb::ndim<3>> turns, std::shared_ptr<ThreadPool> threads,
               const std::string& instructions, std::optional<Vector<const float>> hidden_norm,
               std::optional<Vector<const std::uint16_t>> mask_embedding,
               bool norm_before_residual)
      : embedding_(std::move(embedding)),
        layers_(std::move(layers)),
        norm_(std::move(norm)),
        head_(std::move(head)),
        turns_(std::move(turns)),
        hidden_norm_(std::move(hidden_norm)),
        mask_embedding_(std::move(mask_embedding)) {
    const Shape shape{embedding_.shape(0), embedding_.shape(1), intermediate, layers_.size(),
                      heads,               kv_heads,            head_dim,     eps,
                      window};
    require(head_dim % BLOCK == 0 && shape.hidden % BLOCK == 0 && intermediate % BLOCK == 0,
            "widths must be multiples of sixteen");
    require(turns_.shape(1) == 2 && turns_.shape(2) == head_dim, "turns [context, 2, head_dim]");
    const std::size_t width = heads * head_dim, kv_width = kv_heads * head_dim;
    peagle::DecoderWeights weights{};
    weights.embedding = embedding_.data();
    weights.norm = norm_.data();
    weights.head = head_.get();
    weights.turns = turns_.data();
    weights.norm_before_residual = norm_before_residual;
    if (hidden_norm_) {
      require(hidden_norm_->shape(0) == shape.hidden, "a norm has another width");
      weights.hidden_norm = hidden_norm_->data();
    }
    if (mask_embedding_) {
      require(mask_embedding_->shape(0) == shape.hidden, "the mask embedding has another width");
      weights.mask_embedding = mask_embedding_->data();
    }
    const auto fits = [](const PackedWeight& weight, std::size_t out, std::size_t in) {
      require(weight.view().out == out && weight.in() == in, "a weight has another shape");
    };
    for (const auto& [attention_norm, query_key_value, attention_out, mlp_norm, gate_up, down] :
         layers_) {
      require(attention_norm.shape(0) == shape.hidden && mlp_norm.shape(0) == shape.hidden,
              "a norm has another width");
      const bool joined = hidden_norm_ && weights.layers.empty();
      fits(*query_key_value, width + 2 * kv_width, joined ? 2 * shape.hidden : shape.hidden);
      fits(*attention_out, shape.hidden, width);
      fits(*gate_up, 2 * intermediate, shape.hidden);
      fits(*down, shape.hidden, intermediate);
      weights.layers.push_back({attention_norm.data(), query_key_value.get(), attention_out.get(),
                                mlp_norm.data(), gate_up.get(), down.get()});
    }
    require(norm_.shape(0) == shape.hidden && head_->in() == shape.hidden,
            "a weight has another shape");
    decoder_ = std::make_unique<Decoder>(shape, std::move(weights), kernels_named(instructions),
                                         std::move(threads));
  }

  std::shared_ptr<Step> run(Pool pool, Vector<const std::int32_t> tokens,
                            Vector<const std::int32_t> parents, Matrix<const std::int32_t> parts,
                            Vector<const std::int32_t> pages, Vector<const std::int32_t> taps,
                            Matrix<float> logits, Matrix<float> features,
                            std::optional<Matrix<const float>> entering,
                            std::optional<Matrix<float>> residual) {
    check_pool(pool);
    require(parts.shape(0) == 5 && parents.shape(0) == tokens.shape(0), "the request's arrays");
    const std::size_t count = parts.shape(1);
    const auto part = [&](std::size_t index) { return parts.data() + index * count; };
    for (std::size_t i = 0; i < 5 * count; i++)
      require(parts.data()[i] >= 0, "a count of the request is negative");
    std::size_t asked = 0, named = 0;
    for (std::size_t i = 0; i < count; i++) {
      asked += static_cast<std::size_t>(std::min(part(4)[i], part(0)[i]));
      named += static_cast<std::size_t>(part(3)[i]);
    }
    const Shape& shape = decoder_->shape;
    require(named == pages.shape(0), "the pages of all sequences");
    require(logits.shape(0) == asked && logits.shape(1) == head_->view().out, "room for the logits");
    const std::size_t known = shape.vocab + (mask_embedding_ ? 1 : 0);
    for (std::size_t i = 0; i < tokens.shape(0); i++)
      require(tokens.data()[i] >= 0 && static_cast<std::size_t>(tokens.data()[i]) < known,
              "a token is not in the vocabulary");
    for (std::size_t i = 0; i < named; i++) check_page(pool, pages.data()[i]);
    const std::size_t tapped = taps.shape(0);
    require(tapped == 0 || (features.shape(0) == tokens.shape(0) &&
                            features.shape(1) == tapped * shape.hidden),
            "room for the features");
    for (std::size_t i = 0; i < tapped; i++)
      require(taps.data()[i] >= 0 && static_cast<std::size_t>(taps.data()[i]) < shape.layers,
              "no such layer to tap");
    require(entering.has_value() == hidden_norm_.has_value(), "hidden states are a drafter's");
    PassArrays arrays;
    arrays.logits = logits.data();
    arrays.features = features.data();
    if (entering) {
      require(entering->shape(0) == tokens.shape(0) && entering->shape(1) == shape.hidden,
              "a hidden state for each row");
      arrays.entering = entering->data();
    }
    if (residual) {
      require(residual->shape(0) == asked && residual->shape(1) == shape.hidden,
              "room for the residual streams");
      arrays.residual = residual->data();
    }
    const std::vector<std::size_t> layers(taps.data(), taps.data() + tapped);
    nb::gil_scoped_release without;
    std::lock_guard<std::mutex> alone(scratch_);
    auto step = std::make_shared<Step>(StepRequest{tokens.shape(0), count, tokens.data(),
                                                   parents.data(), part(0), part(1), part(2),
                                                   part(3), pages.data(), part(4)});
    for (const std::size_t position : step->positions)
      require(position < turns_.shape(0), "a row stands behind the context");
    std::swap(step->keys, spare_keys_);
    std::swap(step->values, spare_values_);
    decoder_->run(*step, pool.data(), pool.shape(2), layers, arrays);
    return step;
  }

  // Stores rows; with that the step ends, and its memory serves the next one.
  void commit(Step& step, Pool pool, Vector<const std::int32_t> rows,
              Vector<const std::int32_t> pages, Vector<const std::int32_t> places) {
    check_pool(pool);
    const Shape& shape = decoder_->shape;
    require(step.keys.size() > 0, "a step is committed once");
    require(step.keys.size() >= shape.layers * shape.kv_heads * shape.head_dim * step.width,
            "the step belongs to another model");
    require(rows.shape(0) == pages.shape(0) && rows.shape(0) == places.shape(0), "kept rows");
    for (std::size_t i = 0; i < rows.shape(0); i++) {
      require(rows.data()[i] >= 0 && static_cast<std::size_t>(rows.data()[i]) < step.tokens.size(),
              "no such row");
      require(places.data()[i] >= 0 && static_cast<std::size_t>(places.data()[i]) < PAGE,
              "no such place");
      check_page(pool, pages.data()[i]);
    }
    nb::gil_scoped_release without;
    std::lock_guard<std::mutex> alone(scratch_);
    if (rows.shape(0) > 0)
      decoder_->commit(step, pool.data(), pool.shape(2), rows.shape(0), rows.data(), pages.data(),
                       places.data());
    spare_keys_ = std::move(step.keys);
    spare_values_ = std::move(step.values);
    step.keys = {};
    step.values = {};
  }

  std::string instructions() const { return decoder_->kernels.name; }

  // Seconds of all passes since the last call: products, attention, everything else.
  std::tuple<double, double, double> take_seconds() {
    const Seconds spent = decoder_->seconds;
    decoder_->seconds = {};
    return {spent.products, spent.attention, spent.rest};
  }

 private:
  void check_pool(const Pool& pool) const {
    const Shape& shape = decoder_->shape;
    require(pool.shape(0) == shape.layers && pool.shape(1) == 2 &&
                pool.shape(3) == shape.kv_heads && pool.shape(4) * pool.shape(5) ==
                                                       shape.page_floats(),
            "the pool belongs to another model");
  }

  static void check_page(const Pool& pool, std::int32_t page) {
    require(page >= 0 && static_cast<std::size_t>(page) < pool.shape(2), "no such page");
  }

  Matrix<const std::uint16_t> embedding_;
  std::vector<LayerTuple> layers_;
  Vector<const float> norm_;
  std::shared_ptr<PackedWeight> head_;
  Array<const float, nb::ndim<3>> turns_;
  std::optional<Vector<const float>> hidden_norm_;
  std::optional<Vector<const std::uint16_t>> mask_embedding_;
  std::unique_ptr<Decoder> decoder_;
  std::mutex scratch_;
  Buffer<float> spare_keys_, spare_values_;
};

// A fusion with everything its pointers point to.
class BoundFusion {
 public:
  BoundFusion(std::shared_ptr<PackedWeight> weight, Matrix<const float> norms, float eps,
              std::shared_ptr<ThreadPool> threads, const std::string& instructions)
      : weight_(std::move(weight)), norms_(std::move(norms)) {
    require(weight_->in() % BLOCK == 0 && norms_.shape(1) % BLOCK == 0,
            "widths must be multiples of sixteen");
    require(norms_.shape(0) == 0 || norms_.shape(0) * norms_.shape(1) == weight_->in(),
            "a norm has another width");
    fusion_ = std::make_unique<Fusion>(*weight_, norms_.data(), norms_.shape(0), eps,
                                       kernels_named(instructions), std::move(threads));
  }

  void run(Matrix<const float> features, Matrix<float> out) {
    require(features.shape(1) == weight_->in() && out.shape(1) == weight_->view().out &&
                out.shape(0) == features.shape(0),
            "features [rows, in] and room for [rows, out]");
    nb::gil_scoped_release without;
    std::lock_guard<std::mutex> alone(scratch_);
    fusion_->run(features.data(), features.shape(0), out.data());
  }

 private:
  std::shared_ptr<PackedWeight> weight_;
  Matrix<const float> norms_;
  std::unique_ptr<Fusion> fusion_;
  std::mutex scratch_;
};

using Ranked = std::tuple<std::vector<std::int32_t>, std::vector<float>>;

// The most probable tokens of each row of logits, by target id.
std::vector<Ranked> most_probable(Matrix<const float> logits, Vector<const std::int32_t> target_ids,
                                  std::size_t count) {
  require(target_ids.shape(0) == logits.shape(1), "an id for each logit");
  std::vector<Ranked> found;
  for (std::size_t row = 0; row < logits.shape(0); row++) {
    const float* own = logits.data() + row * logits.shape(1);
    auto& [ids, probabilities] = found.emplace_back();
    const std::vector<std::int32_t> best = largest_places(own, logits.shape(1), count);
    if (best.empty()) continue;
    const float highest = own[best[0]];
    const double total = summed_exponentials(own, logits.shape(1), highest);
    for (const std::int32_t place : best) {
      ids.push_back(target_ids.data()[place]);
      probabilities.push_back(
          static_cast<float>(std::exp(static_cast<double>(own[place] - highest)) / total));
    }
  }
  return found;
}

// One product alone, for tests and measurements.
void multiply(const PackedWeight& weight, Matrix<const float> rows, Matrix<float> out,
              ThreadPool& threads, const std::string& instructions) {
  const Weight view = weight.view();
  require(rows.shape(1) == weight.in() && rows.shape(1) % BLOCK == 0, "the width of the rows");
  require(out.shape(0) == rows.shape(0) && out.shape(1) == view.out, "room for the product");
  const Kernels& kernels = kernels_named(instructions);
  nb::gil_scoped_release without;
  RowInput input;
  input.grow(rows.shape(0), weight.in());
  for (std::size_t row = 0; row < rows.shape(0); row++)
    input.set(kernels, view, row, rows.data() + row * weight.in(), weight.in());
  const Rows prepared = input.rows(view, rows.shape(0));
  threads.run([&](Team& team) {
    multiply_rows(team, kernels, view, prepared, out.data(), view.out, false);
  });
}

// exp of every number, sixteen at a time, by way of SiLU's kernel: gate / (1 + exp(-gate)) * up.
void silu_times(Vector<const float> gate, Vector<const float> up, Vector<float> out,
                const std::string& instructions) {
  require(gate.shape(0) % BLOCK == 0 && up.shape(0) == gate.shape(0) &&
              out.shape(0) == gate.shape(0),
          "three vectors of a multiple of sixteen");
  kernels_named(instructions).silu_times(gate.data(), up.data(), gate.shape(0), out.data());
}

// Reads memory with all threads, as a pass reads weights; gives a sum so that nothing is left out.
std::uint64_t read_through(Vector<const std::uint64_t> words, ThreadPool& threads) {
  nb::gil_scoped_release without;
  std::atomic<std::uint64_t> total{0};
  threads.run([&](Team& team) {
    std::uint64_t own = 0;
    team.share(words.shape(0), 1 << 14, [&](std::size_t first, std::size_t last) {
      std::uint64_t part[8] = {};
      for (std::size_t i = first; i + 8 <= last; i += 8)
        for (std::size_t j = 0; j < 8; j++) part[j] ^= words.data()[i + j];
      for (const std::uint64_t one : part) own ^= one;
    });
    total ^= own;
  });
  return total;
}

}  // namespace

NB_MODULE(_native, module) {
  module.def("instruction_sets", instruction_sets);
  module.def("pack_int8", pack_int8);
  module.def("pack_int4", pack_int4);
  module.def("pack_bfloat16", pack_bfloat16);
  module.def("multiply", multiply);
  module.def("silu_times", silu_times);
  module.def("read_through", read_through);
  nb::class_<PackedWeight>(module, "PackedWeight").def_prop_ro("bytes", &PackedWeight::bytes);
  nb::class_<ThreadPool>(module, "ThreadPool")
      .def(nb::init<std::size_t>())
      .def_prop_ro("size", &ThreadPool::size);
  nb::class_<Step>(module, "Step");
  nb::class_<BoundDecoder>(module, "Decoder")
      .def(nb::init<std::size_t, std::size_t, std::size_t, std::size_t, float, std::size_t,
                    Matrix<const std::uint16_t>, std::vector<BoundDecoder::LayerTuple>,
                    Vector<const float>, std::shared_ptr<PackedWeight>,
                    Array<const float, nb::ndim<3>>, std::shared_ptr<ThreadPool>,
                    const std::string&, std::optional<Vector<const float>>,
                    std::optional<Vector<const std::uint16_t>>, bool>(),
           nb::kw_only(), nb::arg("intermediate"), nb::arg("heads"), nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("eps"), nb::arg("window"), nb::arg("embedding"),
           nb::arg("layers"), nb::arg("norm"), nb::arg("head"), nb::arg("turns"),
           nb::arg("threads"), nb::arg("instructions"), nb::arg("hidden_norm") = nb::none(),
           nb::arg("mask_embedding") = nb::none(), nb::arg("norm_before_residual") = false)
      .def("run", &BoundDecoder::run, nb::arg("pool"), nb::arg("tokens"), nb::arg("parents"),
           nb::arg("parts"), nb::arg("pages"), nb::arg("taps"), nb::arg("logits"),
           nb::arg("features"), nb::arg("entering") = nb::none(),
           nb::arg("residual") = nb::none())
      .def("commit", &BoundDecoder::commit)
      .def("take_seconds", &BoundDecoder::take_seconds)
      .def_prop_ro("instructions", &BoundDecoder::instructions);
  nb::class_<BoundFusion>(module, "Fusion")
      .def(nb::init<std::shared_ptr<PackedWeight>, Matrix<const float>, float,
                    std::shared_ptr<ThreadPool>, const std::string&>(),
           nb::kw_only(), nb::arg("weight"), nb::arg("norms"), nb::arg("eps"), nb::arg("threads"),
           nb::arg("instructions"))
      .def("run", &BoundFusion::run);
  module.def("most_probable", most_probable);
  nb::class_<BoundMarkovHead>(module, "MarkovHead")
      .def(nb::init<Matrix<const std::uint16_t>, std::shared_ptr<PackedWeight>,
                    std::shared_ptr<PackedWeight>, Matrix<const std::uint16_t>,
                    Vector<const std::int32_t>, Vector<const float>, float, std::size_t,
                    std::size_t, const std::string&>(),
           nb::kw_only(), nb::arg("embedding"), nb::arg("previous"), nb::arg("gate"),
           nb::arg("out"), nb::arg("target_ids"), nb::arg("norm"), nb::arg("eps"),
           nb::arg("scored"), nb::arg("top"), nb::arg("instructions"));
  nb::class_<BoundBranches>(module, "Branches")
      .def(nb::init<std::shared_ptr<BoundMarkovHead>, Matrix<const float>, Matrix<const float>>())
      .def_prop_ro("levels", &BoundBranches::levels)
      .def("after", [](BoundBranches& branches, std::size_t level, std::int32_t token) -> Ranked {
        const Children& found = branches.after(level, token);
        return {found.ids, found.probabilities};
      });
  bind_drafting(module);
}
