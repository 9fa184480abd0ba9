// The C++ parts without Python, for sanitizers and other processors (scripts/check_native.sh):
// products, threads, the plan of a step, candidate trees and a small decoder, whose rows must be
// independent.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "allocation.h"
#include "decoder.h"

namespace {

using namespace peagle;

int checks = 0;

void expect(bool condition, const char* what) {
  checks++;
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

class Chance {
 public:
  std::uint32_t below(std::uint32_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 33) % limit;
  }
  float number() { return static_cast<float>(below(2001)) / 1000.0f - 1.0f; }

 private:
  std::uint64_t state_ = 1;
};

std::vector<float> numbers(Chance& chance, std::size_t count, float size) {
  std::vector<float> values(count);
  for (float& value : values) value = chance.number() * size;
  return values;
}

std::uint16_t upper_half(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

// A random weight, and the numbers that it stands for.
struct Sample {
  PackedWeight packed;
  std::vector<double> exact;  // [out, in]
};

Sample sample(Chance& chance, Format format, std::size_t out, std::size_t in) {
  std::vector<double> exact(out * in);
  if (format == Format::bfloat16) {
    std::vector<std::uint16_t> values(out * in);
    for (std::size_t i = 0; i < values.size(); i++) {
      values[i] = upper_half(chance.number() * 0.2f);
      const std::uint32_t bits = static_cast<std::uint32_t>(values[i]) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      exact[i] = value;
    }
    return {PackedWeight::bfloat16(values.data(), out, in), exact};
  }
  if (format == Format::int8) {
    std::vector<std::int8_t> values(out * in);
    const std::vector<float> scales(out, 0.2f / 127.0f);
    for (std::size_t i = 0; i < values.size(); i++) {
      values[i] = static_cast<std::int8_t>(static_cast<int>(chance.below(255)) - 127);
      exact[i] = values[i] * static_cast<double>(scales[0]);
    }
    return {PackedWeight::int8(values.data(), scales.data(), out, in), exact};
  }
  std::vector<std::uint8_t> nibbles(out * in / 2);
  const std::vector<float> scales(out * in / GROUP, 0.025f), offsets(out * in / GROUP, -0.19f);
  for (std::size_t i = 0; i < nibbles.size(); i++) {
    nibbles[i] = static_cast<std::uint8_t>(chance.below(256));
    exact[2 * i] = (nibbles[i] & 15) * 0.025 - 0.19;
    exact[2 * i + 1] = (nibbles[i] >> 4) * 0.025 - 0.19;
  }
  return {PackedWeight::int4(nibbles.data(), scales.data(), offsets.data(), out, in), exact};
}

std::vector<float> multiply(const Kernels& kernels, const PackedWeight& weight, const float* rows,
                            std::size_t count, ThreadPool& threads) {
  const Weight view = weight.view();
  RowInput input;
  input.grow(count, weight.in());
  for (std::size_t row = 0; row < count; row++)
    input.set(kernels, view, row, rows + row * weight.in(), weight.in());
  const Rows prepared = input.rows(view, count);
  std::vector<float> out(count * view.out);
  threads.run([&](Team& team) {
    team.share(view.blocks, 4, [&](std::size_t first, std::size_t last) {
      kernels.product(view, prepared, first, last, out.data(), view.out, false);
    });
  });
  return out;
}

void check_products(const Kernels& kernels) {
  Chance chance;
  ThreadPool one(1), three(3);
  constexpr std::size_t most = 35;
  for (const Format format : {Format::int8, Format::int4, Format::bfloat16})
    for (const std::size_t out : {1u, 47u, 130u}) {
      const std::size_t in = 96;
      const Sample weight = sample(chance, format, out, in);
      const std::vector<float> rows = numbers(chance, most * in, 1.0f);
      std::vector<float> alone;
      for (std::size_t row = 0; row < most; row++) {
        const auto result = multiply(kernels, weight.packed, rows.data() + row * in, 1, one);
        alone.insert(alone.end(), result.begin(), result.end());
        for (std::size_t o = 0; o < out; o++) {
          double sum = 0;
          for (std::size_t k = 0; k < in; k++) sum += weight.exact[o * in + k] * rows[row * in + k];
          // Rows are rounded to int8 or bfloat16.
          expect(std::fabs(result[o] - sum) < 0.05, "a product is near the exact one");
        }
      }
      for (std::size_t count = 1; count <= most; count++)
        for (ThreadPool* threads : {&one, &three}) {
          const auto batch = multiply(kernels, weight.packed, rows.data(), count, *threads);
          expect(std::memcmp(batch.data(), alone.data(), batch.size() * sizeof(float)) == 0,
                 "a row has the same bits in any batch");
        }
    }
}

void check_row_kernels(const Kernels& kernels) {
  float gate[32], up[32], out[32], weight[32], turn[64];
  for (int i = 0; i < 32; i++) {
    gate[i] = static_cast<float>(i) * 0.7f - 11.0f;
    up[i] = 2.0f;
    weight[i] = 0.5f;
    turn[i] = std::cos(static_cast<float>(i / 2));
    turn[32 + i] = std::sin(static_cast<float>(i / 2)) * (i % 2 == 0 ? -1.0f : 1.0f);
  }
  kernels.silu_times(gate, up, 32, out);
  double squares = 0;
  for (int i = 0; i < 32; i++) {
    const double exact = 2.0 * gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i])));
    expect(std::fabs(out[i] - exact) <= 1e-6 * std::fabs(exact), "SiLU");
    squares += static_cast<double>(gate[i]) * gate[i];
  }
  kernels.norm(gate, weight, 32, 1e-5f, out);
  for (int i = 0; i < 32; i++)
    expect(std::fabs(out[i] - 0.5 * gate[i] / std::sqrt(squares / 32 + 1e-5)) < 1e-6, "norm");
  kernels.rotate(gate, turn, 32, 3.0f, out);
  for (int i = 0; i < 32; i += 2) {
    const double c = turn[i], s = turn[33 + i];
    expect(std::fabs(out[i] - 3.0 * (gate[i] * c - gate[i + 1] * s)) < 1e-5, "rotation");
    expect(std::fabs(out[i + 1] - 3.0 * (gate[i + 1] * c + gate[i] * s)) < 1e-5, "rotation");
  }
}

// One query row's attention over a span as tiles compute it: sums, then maximum and weight.
struct SpanInput {
  std::size_t head_dim, pages;
  std::vector<float> queries;                        // [rows, head_dim]
  std::vector<std::vector<std::uint16_t>> keys, values;
  std::vector<std::int32_t> first_seen;
};

std::vector<float> attend(const Kernels& kernels, const SpanInput& input,
                          const std::vector<std::size_t>& rows) {
  const std::size_t size = input.head_dim + 2;
  std::vector<float> out(rows.size() * size);
  std::vector<const float*> queries;
  std::vector<float*> sums, maxima, weights;
  std::vector<std::int32_t> first_seen;
  for (std::size_t i = 0; i < rows.size(); i++) {
    queries.push_back(input.queries.data() + rows[i] * input.head_dim);
    first_seen.push_back(input.first_seen[rows[i]]);
    sums.push_back(out.data() + i * size);
    maxima.push_back(sums.back() + input.head_dim);
    weights.push_back(maxima.back() + 1);
  }
  const std::uint16_t *keys[SPAN], *values[SPAN];
  for (std::size_t page = 0; page < input.pages; page++) {
    keys[page] = input.keys[page].data();
    values[page] = input.values[page].data();
  }
  kernels.attend_span({input.head_dim, rows.size(), queries.data(), input.pages, keys, values,
                       first_seen.data(), sums.data(), maxima.data(), weights.data()});
  return out;
}

void check_spans(const Kernels& kernels) {
  constexpr std::size_t most = 35;
  Chance chance;
  for (const std::size_t head_dim : {32u, 64u, 96u, 256u})
    for (std::size_t pages = 1; pages <= SPAN; pages++) {
      SpanInput input{head_dim, pages, numbers(chance, most * head_dim, 0.5f), {}, {}, {}};
      std::vector<float> keys, values;  // of all pages, as rows of head_dim
      for (std::size_t page = 0; page < pages; page++) {
        const std::vector<float> key = numbers(chance, PAGE * head_dim, 1.0f);
        const std::vector<float> value = numbers(chance, PAGE * head_dim, 1.0f);
        std::vector<float> turned(key.size());
        for (std::size_t place = 0; place < PAGE; place++)
          for (std::size_t d = 0; d < head_dim; d++)
            turned[d * PAGE + place] = key[place * head_dim + d];
        std::vector<std::uint16_t> paired(key.size());
        kernels.pair_rows(turned.data(), head_dim, PAGE, paired.data());
        input.keys.push_back(paired);
        std::vector<float> in_place = value;
        kernels.pair_rows(value.data(), PAGE, head_dim, paired.data());
        kernels.pair_rows(in_place.data(), PAGE, head_dim,
                          reinterpret_cast<std::uint16_t*>(in_place.data()));
        expect(std::memcmp(in_place.data(), paired.data(), 2 * paired.size()) == 0,
               "rows are paired in place");
        input.values.push_back(paired);
        keys.insert(keys.end(), key.begin(), key.end());
        values.insert(values.end(), value.begin(), value.end());
      }
      for (std::size_t row = 0; row < most; row++)
        input.first_seen.push_back(
            row % 3 == 0 ? static_cast<std::int32_t>(chance.below(pages * PAGE)) : 0);
      std::vector<float> alone;
      for (std::size_t row = 0; row < most; row++) {
        const auto result = attend(kernels, input, {row});
        alone.insert(alone.end(), result.begin(), result.end());
        std::vector<double> exact(head_dim);
        double weight = 0;
        for (auto place = static_cast<std::size_t>(input.first_seen[row]); place < pages * PAGE;
             place++) {
          double score = 0;
          for (std::size_t d = 0; d < head_dim; d++)
            score += static_cast<double>(input.queries[row * head_dim + d]) *
                     keys[place * head_dim + d];
          const double share = std::exp(score - result[head_dim]);
          weight += share;
          for (std::size_t d = 0; d < head_dim; d++)
            exact[d] += share * values[place * head_dim + d];
        }
        expect(std::fabs(result[head_dim + 1] / weight - 1) < 0.02, "weights are near the exact");
        for (std::size_t d = 0; d < head_dim; d++)
          expect(std::fabs(result[d] / result[head_dim + 1] - exact[d] / weight) < 0.02,
                 "a span's result is near the exact one");
      }
      const std::size_t size = head_dim + 2;
      for (const std::size_t count : {2u, 15u, 16u, 17u, 35u}) {
        std::vector<std::size_t> rows;
        for (std::size_t i = 0; i < count; i++) rows.push_back((i * 11 + count) % most);
        const auto batch = attend(kernels, input, rows);
        for (std::size_t i = 0; i < count; i++)
          expect(std::memcmp(batch.data() + i * size, alone.data() + rows[i] * size,
                             size * sizeof(float)) == 0,
                 "a row has the same bits among others, in any order");
      }
      // Pages that only other rows see.
      if (pages == 1) continue;
      const auto hidden = static_cast<std::int32_t>(PAGE + 3);
      input.first_seen.assign(most, hidden);
      const auto all = attend(kernels, input, {0, 1, 2});
      input.keys.erase(input.keys.begin());
      input.values.erase(input.values.begin());
      input.pages--;
      input.first_seen.assign(most, hidden - static_cast<std::int32_t>(PAGE));
      const auto without = attend(kernels, input, {0, 1, 2});
      expect(std::memcmp(all.data(), without.data(), all.size() * sizeof(float)) == 0,
             "a page out of the window changes no bit");
    }
}

void check_threads() {
  for (const std::size_t size : {1u, 2u, 4u}) {
    ThreadPool threads(size);
    std::vector<int> taken(100);
    for (int pass = 0; pass < 200; pass++) {
      std::atomic<int> total{0};
      threads.run([&](Team& team) {
        for (int phase = 0; phase < 5; phase++)
          team.share(taken.size(), 7, [&](std::size_t first, std::size_t last) {
            for (std::size_t i = first; i < last; i++) taken[i]++;
            total += static_cast<int>(last - first);
          });
      });
      expect(total == 500, "every piece is taken once");
    }
    for (const int count : taken) expect(count == 1000, "no piece is taken twice");
    for (int pass = 0; pass < 50; pass++) {
      bool thrown = false;
      try {
        threads.run([&](Team& team) {
          for (std::size_t phase = 0; phase < 4; phase++)
            team.share(64, 1, [&](std::size_t first, std::size_t) {
              if (phase == 2 && first == static_cast<std::size_t>(pass))
                throw std::runtime_error("a piece fails");
            });
        });
      } catch (const std::runtime_error&) {
        thrown = true;
      }
      expect(thrown, "what a piece throws reaches the caller");
    }
    int after = 0;
    threads.run([&](Team& team) { team.share(1, 1, [&](std::size_t, std::size_t) { after++; }); });
    expect(after == 1, "the pool works on after a failure");
  }
}

void check_that_late_threads_are_left_out() {
  ThreadPool threads(2);
  const auto taking_part = [&](std::chrono::milliseconds lateness) {
    std::atomic<int> count{0};
    threads.run([&](Team& team) {
      count++;
      if (team.index == 1) std::this_thread::sleep_for(lateness);
      team.share(2, 1, [](std::size_t, std::size_t) {});
    });
    return count.load();
  };
  using std::chrono::milliseconds;
  expect(taking_part(milliseconds(60)) == 2, "all threads take part");
  expect(taking_part(milliseconds(0)) == 1, "the caller goes on alone after a long wait");
  std::this_thread::sleep_for(milliseconds(700));
  expect(taking_part(milliseconds(0)) == 2, "later it tries again");
}

// A small decoder with its pool of pages.
class Model {
 public:
  static constexpr std::size_t VOCAB = 83, HIDDEN = 96, INNER_WIDTH = 160, LAYERS = 2, HEADS = 4,
                               KV_HEADS = 2, HEAD_DIM = 32, CONTEXT = 360, PAGES = 24;

  Model(Format format, const Kernels& kernels, std::size_t threads, std::size_t window)
      : pool_(LAYERS * 2 * PAGES * KV_HEADS * PAGE * HEAD_DIM) {
    Chance chance;
    const std::size_t width = HEADS * HEAD_DIM, kv_width = KV_HEADS * HEAD_DIM;
    for (const float value : numbers(chance, VOCAB * HIDDEN, 1.0f))
      embedding_.push_back(upper_half(value));
    norm_.assign(HIDDEN, 1.0f);
    for (std::size_t position = 0; position < CONTEXT; position++)
      for (std::size_t sine = 0; sine < 2; sine++)
        for (std::size_t i = 0; i < HEAD_DIM; i++) {
          const float angle = static_cast<float>(position) / static_cast<float>(1 + i / 2);
          turns_.push_back(sine == 0 ? std::cos(angle)
                                     : std::sin(angle) * (i % 2 == 0 ? -1.0f : 1.0f));
        }
    const auto weight = [&](std::size_t out, std::size_t in) {
      weights_.push_back(
          std::make_unique<PackedWeight>(std::move(sample(chance, format, out, in).packed)));
      return weights_.back().get();
    };
    DecoderWeights all{};
    for (std::size_t layer = 0; layer < LAYERS; layer++) {
      LayerWeights one{};
      one.attention_norm = one.mlp_norm = norm_.data();
      one.query_key_value = weight(width + 2 * kv_width, HIDDEN);
      one.attention_out = weight(HIDDEN, width);
      one.gate_up = weight(2 * INNER_WIDTH, HIDDEN);
      one.down = weight(HIDDEN, INNER_WIDTH);
      all.layers.push_back(one);
    }
    all.embedding = embedding_.data();
    all.norm = norm_.data();
    all.head = weight(VOCAB, HIDDEN);
    all.turns = turns_.data();
    const Shape shape{VOCAB, HIDDEN, INNER_WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, 1e-5f, window};
    decoder_ = std::make_unique<Decoder>(shape, std::move(all), kernels,
                                         std::make_shared<ThreadPool>(threads));
  }

  struct Sequence {
    std::vector<std::int32_t> pages;
    std::int32_t length = 0;
  };
  struct Rows {
    Sequence* sequence;
    std::vector<std::int32_t> tokens, parents;
    bool chain;
    std::vector<std::int32_t> kept;
  };

  // Logits of all rows, some of which are committed.
  std::vector<float> run(const std::vector<Rows>& parts) {
    std::vector<std::int32_t> tokens, parents, counts, chains, lengths, page_counts, pages;
    for (const Rows& part : parts) {
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
      parents.insert(parents.end(), part.parents.begin(), part.parents.end());
      counts.push_back(static_cast<std::int32_t>(part.tokens.size()));
      chains.push_back(part.chain ? 1 : 0);
      lengths.push_back(part.sequence->length);
      page_counts.push_back(static_cast<std::int32_t>(part.sequence->pages.size()));
      pages.insert(pages.end(), part.sequence->pages.begin(), part.sequence->pages.end());
    }
    Step step(StepRequest{tokens.size(), parts.size(), tokens.data(), parents.data(),
                          counts.data(), chains.data(), lengths.data(), page_counts.data(),
                          pages.data(), counts.data()});
    const std::vector<std::size_t> taps{1};
    std::vector<float> logits(tokens.size() * VOCAB), features(tokens.size() * HIDDEN);
    PassArrays arrays;
    arrays.logits = logits.data();
    arrays.features = features.data();
    decoder_->run(step, pool_.data(), PAGES, taps, arrays);
    std::vector<std::int32_t> rows, to_pages, places;
    for (std::size_t p = 0; p < parts.size(); p++)
      for (const std::int32_t row : parts[p].kept) {
        Sequence& sequence = *parts[p].sequence;
        const auto at = static_cast<std::size_t>(sequence.length++);
        rows.push_back(static_cast<std::int32_t>(step.parts[p].first) + row);
        to_pages.push_back(sequence.pages[at / PAGE]);
        places.push_back(static_cast<std::int32_t>(at % PAGE));
      }
    decoder_->commit(step, pool_.data(), PAGES, rows.size(), rows.data(), to_pages.data(),
                     places.data());
    return logits;
  }

 private:
  std::vector<std::uint16_t> embedding_;
  std::vector<float> norm_, turns_, pool_;
  std::vector<std::unique_ptr<PackedWeight>> weights_;
  std::unique_ptr<Decoder> decoder_;
};

Model::Rows chain(Model::Sequence& sequence, const std::vector<std::int32_t>& tokens,
                  std::size_t first, std::size_t last) {
  Model::Rows rows{&sequence, {}, {}, true, {}};
  for (std::size_t i = first; i < last; i++) {
    rows.tokens.push_back(tokens[i]);
    rows.parents.push_back(-1);
    rows.kept.push_back(static_cast<std::int32_t>(i - first));
  }
  return rows;
}

bool same(const float* one, const std::vector<float>& all, std::size_t row) {
  return std::memcmp(one, all.data() + row * Model::VOCAB, Model::VOCAB * sizeof(float)) == 0;
}

// Plain decoding, chunks, and a path among siblings beside another sequence give the same bits.
// The path begins four places before the end of a page.
void check_decoder(const Kernels& kernels, Format format, std::size_t window, std::size_t pages) {
  const std::size_t prefix = pages * PAGE - 4, count = prefix + 12;
  Chance chance;
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(chance.below(Model::VOCAB));
  Model model(format, kernels, 1, window), shared(format, kernels, 3, window);
  Model::Sequence plain{{7, 2, 4, 12, 13, 14}, 0}, other{{1, 9, 3, 15, 16, 17}, 0};
  std::vector<float> expected;
  for (std::size_t i = 0; i < count; i++) {
    const auto logits = model.run({chain(plain, tokens, i, i + 1)});
    expected.insert(expected.end(), logits.begin(), logits.end());
  }
  for (const float value : expected) expect(std::isfinite(value), "logits are numbers");
  for (Model* one : {&model, &shared}) {
    other.length = 0;
    Model::Sequence beside{{0, 5, 6}, 0};
    std::size_t done = 0;
    for (const std::size_t size : {std::size_t{1}, std::size_t{63}, std::size_t{3}, prefix - 67}) {
      const auto logits = one->run({chain(beside, tokens, 0, size % 8),
                                    chain(other, tokens, done, done + size)});
      for (std::size_t row = 0; row < size; row++)
        expect(same(logits.data() + (size % 8 + row) * Model::VOCAB, expected, done + row),
               "a chunk's row has the bits of plain decoding");
      done += size;
    }
    expect(done == prefix, "the whole prefix was read");
    Model::Rows tree{&other, {}, {}, false, {}};
    std::vector<std::int32_t> path;
    while (path.size() < count - prefix) {
      const bool on_path = chance.below(2) == 0;
      const auto rows = static_cast<std::uint32_t>(tree.tokens.size());
      if (on_path) {
        tree.tokens.push_back(tokens[prefix + path.size()]);
        tree.parents.push_back(path.empty() ? -1 : path.back());
        path.push_back(static_cast<std::int32_t>(rows));
      } else {
        tree.tokens.push_back(static_cast<std::int32_t>(chance.below(Model::VOCAB)));
        tree.parents.push_back(static_cast<std::int32_t>(chance.below(rows + 1)) - 1);
      }
    }
    tree.kept.assign(path.begin(), path.begin() + 8);
    const auto logits = one->run({tree, chain(beside, tokens, 0, 5)});
    for (std::size_t i = 0; i < path.size(); i++)
      expect(same(logits.data() + static_cast<std::size_t>(path[i]) * Model::VOCAB, expected,
                  prefix + i),
             "a tree's row has the bits of plain decoding");
    const auto next = one->run({chain(other, tokens, prefix + 8, prefix + 9)});
    expect(same(next.data(), expected, prefix + 8), "committed rows go on as decoded plainly");
  }
}

void check_steps() {
  const std::int32_t token[2] = {1, 2}, parents[2] = {-1, 1}, count = 2, length = 62, one = 1,
                     none = 0, page = 0, three = 3;
  const auto refused = [&](std::int32_t chain_flag, std::int32_t rows, std::int32_t committed) {
    try {
      Step(StepRequest{2, 1, token, parents, &rows, &chain_flag, &committed, &one, &page, &rows});
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  expect(!refused(one, count, length), "two rows behind 62 positions fit one page");
  expect(refused(one, count, length + 1), "three rows do not fit");
  expect(refused(none, count, length), "a parent is behind its child");
  expect(refused(one, three, none), "more rows than there are");
  expect(refused(one, one, none), "fewer rows than there are");
}

// A corpus in tables as draft/corpus_build.py makes them; contexts of more than eight places answer
// with the token after their first place.
struct SmallCorpus {
  std::vector<std::uint16_t> tokens, successors, probabilities;
  std::vector<std::uint32_t> positions, first_bounds, frequent, order_bounds{0}, successor_bounds{0};

  SmallCorpus(Chance& chance, std::size_t size, std::uint32_t vocab) : positions(size) {
    for (std::size_t i = 0; i < size; i++)
      tokens.push_back(static_cast<std::uint16_t>(chance.below(vocab)));
    tokens.resize(size + CORPUS_ORDER, 0);
    for (std::size_t i = 0; i < size; i++) positions[i] = static_cast<std::uint32_t>(i);
    const auto at = [&](std::uint32_t place) { return tokens.begin() + place; };
    std::sort(positions.begin(), positions.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::lexicographical_compare(at(a), at(a) + CORPUS_ORDER, at(b), at(b) + CORPUS_ORDER);
    });
    for (std::uint32_t token = 0; token <= vocab; token++)
      first_bounds.push_back(static_cast<std::uint32_t>(
          std::count_if(positions.begin(), positions.end(),
                        [&](std::uint32_t place) { return tokens[place] < token; })));
    for (std::size_t order = 1; order <= CORPUS_ORDER; order++) {
      for (std::size_t low = 0, high; low < size; low = high) {
        for (high = low + 1;
             high < size && std::equal(at(positions[low]), at(positions[low]) + order,
                                       at(positions[high]));)
          high++;
        if (high - low <= CORPUS_FREQUENT) continue;
        frequent.push_back(static_cast<std::uint32_t>(low));
        successors.push_back(tokens[positions[low] + order]);
        probabilities.push_back(40000);
        successor_bounds.push_back(static_cast<std::uint32_t>(successors.size()));
      }
      order_bounds.push_back(static_cast<std::uint32_t>(frequent.size()));
    }
  }

  template <class Element>
  static Column column(const std::vector<Element>& table) {
    return {reinterpret_cast<const unsigned char*>(table.data()), table.size(), sizeof(Element)};
  }

  CorpusTables tables() const {
    return {column(tokens),       column(positions),        column(first_bounds),
            column(frequent),     column(order_bounds),     column(successor_bounds),
            column(successors),   column(probabilities)};
  }
};

// The same two tokens at every level.
class Marginals : public Predictions {
 public:
  std::size_t levels() const override { return 3; }
  void after(const std::vector<std::int32_t>& path, std::vector<Predicted>& found) override {
    found.push_back({static_cast<std::int32_t>(path.size()), 0.6});
    found.push_back({5, 0.3});
  }
};

void check_trees() {
  Chance chance;
  const SmallCorpus small(chance, 400, 6);
  const auto corpus = std::make_shared<const Corpus>(
      small.tables(), std::vector<double>(CORPUS_FREQUENT + 1, 4.5));
  const std::vector<double> by_order(CORPUS_ORDER + 1, 0.4);
  const MixturePrior prior{{0.0, 0.5, 2.0, 6.0}, by_order, {2}, {{by_order, by_order}}, 10.0};
  for (int round = 0; round < 40; round++) {
    std::vector<std::int32_t> text(chance.below(90));
    // Tokens that the corpus does not know are among them.
    for (std::int32_t& token : text) token = static_cast<std::int32_t>(chance.below(7));
    std::vector<std::unique_ptr<GrowingTree>> trees;
    std::vector<GrowingTree*> named;
    for (int kind = 0; kind < 6; kind++) {
      auto sources =
          std::make_shared<TextSources>(prior, kind % 3 != 1, kind % 3 != 2 ? corpus : nullptr);
      for (std::size_t i = 0; i < text.size(); i += 7)
        sources->extend(text.data() + i, std::min<std::size_t>(7, text.size() - i));
      auto network = kind < 3 ? std::unique_ptr<Marginals>() : std::make_unique<Marginals>();
      trees.push_back(std::make_unique<GrowingTree>(std::move(sources), std::move(network),
                                                    TreeLimits{1 + chance.below(40), 3, 8}));
      named.push_back(trees.back().get());
    }
    std::vector<double> seconds{1.0};
    for (int i = 0; i < 60; i++) seconds.push_back(seconds.back() + 0.001 * chance.below(30));
    const auto [counts, expected] = allocate(named, std::vector<double>(6, 1.5), seconds, 6.0, 6.0);
    expect(expected >= 6.0, "drafting never loses to not drafting");
    for (std::size_t i = 0; i < trees.size(); i++) {
      expect(counts[i] <= trees[i]->tree().tokens.size(), "no more nodes than there are");
      trees[i]->grow();
      const CandidateTree& tree = trees[i]->tree();
      expect(std::count(tree.depths.begin(), tree.depths.end(), 1) <= 3, "no more roots");
      expect(std::is_sorted(tree.probabilities.rbegin(), tree.probabilities.rend()),
             "nodes come in the order of falling probability");
      for (std::size_t node = 0; node < tree.tokens.size(); node++)
        expect(tree.parents[node] < static_cast<std::int32_t>(node), "parents come first");
    }
  }
}

}  // namespace

int main(int arguments, char** names) {
  check_threads();
  check_that_late_threads_are_left_out();
  check_steps();
  check_trees();
  for (const Kernels* const* sets = available_kernels(); *sets != nullptr; sets++) {
    const Kernels& kernels = **sets;
    if (arguments > 1 && std::strcmp(names[1], kernels.name) != 0) continue;
    check_products(kernels);
    check_row_kernels(kernels);
    if (kernels.attend_span != nullptr) check_spans(kernels);
    for (const Format format : {Format::int8, Format::int4, Format::bfloat16})
      for (const std::size_t window : {0u, 70u}) check_decoder(kernels, format, window, 2);
    for (const std::size_t window : {0u, 300u}) check_decoder(kernels, Format::int8, window, 5);
    std::printf("%s: sound\n", kernels.name);
  }
  std::printf("%d checks\n", checks);
}
