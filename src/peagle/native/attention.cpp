#include "attention.h"

#include <algorithm>
#include <cstring>

namespace peagle {

namespace {

// Query rows that one job takes: enough that reading a page is little beside computing with it, and
// few enough that there are jobs for all threads.
constexpr std::size_t QUERY_ROWS = 48;

// A page of the step's rows, gathered as it will lie in the pool once it is committed.
struct Gathered {
  Buffer<float> rows;
  Buffer<std::uint16_t> pairs;
};

}  // namespace

// Rows that one job takes.
std::size_t AttentionPlan::rows_of_job() const {
  return std::max(QUERY_ROWS / shape_.shared(), std::size_t{1});
}

// The first position that a row sees.
std::size_t AttentionPlan::low(std::size_t position) const {
  return shape_.window == 0 || position < shape_.window ? 0 : position + 1 - shape_.window;
}

// The first place that a row sees behind position `at`.
std::int32_t AttentionPlan::first_seen(std::size_t position, std::size_t at) const {
  const std::size_t first = low(position);
  return static_cast<std::int32_t>(first > at ? first - at : 0);
}

// Where the results of an own page lie: behind those of the spans, or of the pages, before it.
std::size_t AttentionPlan::slot_of(std::size_t own_page) const {
  return in_pairs_ ? (own_page + SPAN - 1) / SPAN : own_page;
}

void AttentionPlan::make(const Shape& shape, const Kernels& kernels, const Step& step,
                         std::size_t first, std::size_t last) {
  shape_ = shape;
  in_pairs_ = attends_in_pairs(kernels, shape.head_dim);
  first_ = first;
  rows_ = last - first;
  pages_.clear();
  spans_.clear();
  reach_.clear();
  std::size_t slots = 0;
  for (std::size_t row = first; row < last; row++) {
    const std::size_t position = step.positions[row];
    Reach reach;
    reach.own_page = position / PAGE;
    reach.first_page = low(position) / PAGE;
    reach.own_slot = slot_of(reach.own_page);
    // A row that sees its own page only has no span.
    reach.first_slot = !in_pairs_                               ? reach.first_page
                       : reach.first_page < reach.own_page ? reach.first_page / SPAN
                                                             : reach.own_slot;
    reach_.push_back(reach);
    slots = std::max(slots, reach.own_slot + 1);
  }
  for (std::size_t p = 0; p < step.parts.size(); p++) {
    const Part& part = step.parts[p];
    const std::size_t begin = std::max(first, part.first);
    const std::size_t end = std::min(last, part.first + part.count);
    if (begin >= end) continue;
    plan_pages(step, p, begin, end);
    if (in_pairs_) plan_spans(step, p, begin, end);
  }
  const std::size_t places = slots * rows_ * shape.heads;
  sums_.grow(places * shape.head_dim);
  maxima_.grow(places);
  weights_.grow(places);
}

void AttentionPlan::plan_pages(const Step& step, std::size_t part_index, std::size_t begin,
                               std::size_t end) {
  const Part& part = step.parts[part_index];
  const std::size_t most = rows_of_job();
  std::size_t pages = 0;
  for (std::size_t row = begin; row < end; row++)
    pages = std::max(pages, reach_[row - first_].own_page + 1);
  for (std::size_t page = in_pairs_ ? part.length / PAGE : 0; page < pages; page++) {
    const std::size_t at = page * PAGE;
    std::size_t row = begin;
    while (row < end) {
      PageRows reading;
      reading.part = part_index;
      reading.page = page;
      reading.slot = slot_of(page);
      reading.committed = part.length <= at ? 0 : std::min(part.length - at, PAGE);
      std::size_t own_first = step.width, own_last = 0;
      for (; row < end && reading.rows.size() < most; row++) {
        const Reach& reach = reach_[row - first_];
        if (page < (in_pairs_ ? reach.own_page : reach.first_page) || page > reach.own_page) continue;
        const std::size_t position = step.positions[row];
        const std::size_t seen = std::min(position + 1 - at, PAGE);
        const std::int32_t* own = part.paths.data() + part.path_of[row - part.first] +
                                  (at >= part.tail ? at - part.tail : 0);
        for (std::size_t place = reading.committed; place < seen; place++) {
          own_first = std::min(own_first, static_cast<std::size_t>(own[place]));
          own_last = std::max(own_last, static_cast<std::size_t>(own[place]) + 1);
        }
        reading.rows.push_back(row - first_);
        for (std::size_t shared = 0; shared < shape_.shared(); shared++) {
          reading.own.push_back(own);
          reading.first_seen.push_back(first_seen(position, at));
          reading.last_seen.push_back(static_cast<std::int32_t>(seen));
        }
      }
      if (reading.rows.empty()) continue;
      reading.own_first = own_last == 0 ? 0 : own_first / BLOCK * BLOCK;
      reading.own_last = (own_last + BLOCK - 1) / BLOCK * BLOCK;
      pages_.push_back(std::move(reading));
    }
  }
}

void AttentionPlan::plan_spans(const Step& step, std::size_t part_index, std::size_t begin,
                               std::size_t end) {
  const Part& part = step.parts[part_index];
  const std::size_t most = rows_of_job();
  std::size_t last_slot = 0;
  for (std::size_t row = begin; row < end; row++)
    last_slot = std::max(last_slot, reach_[row - first_].own_slot);
  for (std::size_t slot = 0; slot < last_slot; slot++) {
    const std::size_t first_of_slot = spans_.size(), first_page = slot * SPAN;
    for (std::size_t row = begin; row < end; row++) {
      const Reach& reach = reach_[row - first_];
      if (slot < reach.first_slot || slot >= reach.own_slot) continue;
      const std::size_t pages = std::min(reach.own_page - first_page, SPAN);
      const std::size_t behind = (first_page + pages) * PAGE;
      const std::int32_t* path =
          behind <= part.tail ? nullptr : part.paths.data() + part.path_of[row - part.first];
      // Who shares the ancestor at the last of these positions shares all of them.
      const auto alike = [&](const SpanRows& span) {
        return span.pages == pages && span.rows.size() < most &&
               (path == nullptr || span.path[behind - 1 - part.tail] == path[behind - 1 - part.tail]);
      };
      auto found = std::find_if(spans_.begin() + static_cast<std::ptrdiff_t>(first_of_slot),
                                spans_.end(), alike);
      if (found == spans_.end()) {
        SpanRows span;
        span.part = part_index;
        span.page = first_page;
        span.slot = slot;
        span.pages = pages;
        span.path = path;
        found = spans_.insert(found, std::move(span));
      }
      found->rows.push_back(row - first_);
      found->first_seen.insert(found->first_seen.end(), shape_.shared(),
                               first_seen(step.positions[row], first_page * PAGE));
    }
  }
}

void AttentionPlan::attend(Team& team, const Kernels& kernels, const Step& step,
                           std::size_t layer, const float* pool, std::size_t pool_pages,
                           const float* queries) {
  const Layer all{kernels, step, layer, pool, pool_pages, queries};
  const std::size_t kv_heads = shape_.kv_heads;
  team.share((pages_.size() + spans_.size()) * kv_heads, 1,
             [&](std::size_t first, std::size_t last) {
               for (std::size_t job = first; job < last; job++) {
                 const std::size_t at = job / kv_heads, head = job % kv_heads;
                 if (at < spans_.size())
                   attend_span(all, spans_[at], head);
                 else
                   attend_page(all, pages_[at - spans_.size()], head);
               }
             });
}

void AttentionPlan::merge(const Kernels& kernels, std::size_t row, float* attended) const {
  const std::size_t heads = shape_.heads, head_dim = shape_.head_dim;
  for (std::size_t head = 0; head < heads; head++) {
    const std::size_t at = row * heads + head;
    kernels.merge(sums_.data() + at * head_dim, maxima_.data() + at, weights_.data() + at,
                  reach_[row].first_slot, reach_[row].own_slot + 1, rows_ * heads * head_dim,
                  rows_ * heads, head_dim, attended + head * head_dim);
  }
}

const AttentionPlan::QueryRows& AttentionPlan::query_rows(const Layer& layer, const Rows& some,
                                                          std::size_t head) {
  const std::size_t heads = shape_.heads, head_dim = shape_.head_dim, shared = shape_.shared();
  thread_local QueryRows found;
  found.asked.clear(), found.sums.clear(), found.maxima.clear(), found.weights.clear();
  for (const std::size_t row : some.rows)
    for (std::size_t one = 0; one < shared; one++) {
      const std::size_t at = row * heads + head * shared + one;
      const std::size_t place = some.slot * rows_ * heads + at;
      found.asked.push_back(layer.queries + at * head_dim);
      found.sums.push_back(sums_.data() + place * head_dim);
      found.maxima.push_back(maxima_.data() + place);
      found.weights.push_back(weights_.data() + place);
    }
  return found;
}

// Keys of a page of the pool; its values lie `layer_floats` behind.
const float* AttentionPlan::committed(const Layer& layer, const Part& part, std::size_t page,
                                      std::size_t head) const {
  const std::size_t place = static_cast<std::size_t>(part.pages[page]) * shape_.kv_heads + head;
  return layer.pool + 2 * layer.index * layer_floats(layer) + place * shape_.page_floats();
}

void AttentionPlan::attend_page(const Layer& layer, const PageRows& page, std::size_t head) {
  const std::size_t head_dim = shape_.head_dim;
  const QueryRows& query = query_rows(layer, page, head);
  const Step& step = layer.step;
  const float* keys = committed(layer, step.parts[page.part], page.page, head);
  const std::size_t own = (layer.index * shape_.kv_heads + head) * head_dim * step.width;
  layer.kernels.attend_page({head_dim, query.asked.size(), query.asked.data(), keys,
                             keys + layer_floats(layer), page.committed, step.keys.data() + own,
                             step.values.data() + own, step.width, page.own_first, page.own_last,
                             page.own.data(), page.first_seen.data(), page.last_seen.data(),
                             query.sums.data(), query.maxima.data(), query.weights.data()});
}

void AttentionPlan::attend_span(const Layer& layer, const SpanRows& span, std::size_t head) {
  thread_local Gathered gathered;
  const std::size_t page_floats = shape_.page_floats();
  const QueryRows& query = query_rows(layer, span, head);
  const Part& part = layer.step.parts[span.part];
  const std::uint16_t *keys[SPAN], *values[SPAN];
  for (std::size_t i = 0; i < span.pages; i++) {
    const std::size_t page = span.page + i;
    const float* stored = committed(layer, part, page, head);
    if (page * PAGE < part.tail) {
      keys[i] = reinterpret_cast<const std::uint16_t*>(stored);
      values[i] = reinterpret_cast<const std::uint16_t*>(stored + layer_floats(layer));
      continue;
    }
    gathered.rows.grow(page_floats);
    gathered.pairs.grow(2 * SPAN * page_floats);
    std::uint16_t* pairs = gathered.pairs.data() + 2 * i * page_floats;
    const std::int32_t* own = span.path + (page * PAGE - part.tail);
    const std::size_t done = page * PAGE < part.length ? part.length - page * PAGE : 0;
    gather_keys(layer, stored, done, own, head, gathered.rows.data());
    layer.kernels.pair_rows(gathered.rows.data(), shape_.head_dim, PAGE, pairs);
    keys[i] = pairs;
    gather_values(layer, stored + layer_floats(layer), done, own, head, gathered.rows.data());
    layer.kernels.pair_rows(gathered.rows.data(), PAGE, shape_.head_dim, pairs + page_floats);
    values[i] = pairs + page_floats;
  }
  layer.kernels.attend_span({shape_.head_dim, query.asked.size(), query.asked.data(), span.pages,
                             keys, values, span.first_seen.data(), query.sums.data(),
                             query.maxima.data(), query.weights.data()});
}

// Keys of a page, `done` of them committed and the others the step's own: [head_dim, 64].
void AttentionPlan::gather_keys(const Layer& layer, const float* stored, std::size_t done,
                                const std::int32_t* own, std::size_t head, float* to) const {
  const std::size_t head_dim = shape_.head_dim, width = layer.step.width;
  const float* keys =
      layer.step.keys.data() + (layer.index * shape_.kv_heads + head) * head_dim * width;
  for (std::size_t d = 0; d < head_dim; d++) {
    std::memcpy(to + d * PAGE, stored + d * PAGE, done * sizeof(float));
    for (std::size_t place = done; place < PAGE; place++)
      to[d * PAGE + place] = keys[d * width + static_cast<std::size_t>(own[place])];
  }
}

// The same of values: [64, head_dim].
void AttentionPlan::gather_values(const Layer& layer, const float* stored, std::size_t done,
                                  const std::int32_t* own, std::size_t head, float* to) const {
  const std::size_t head_dim = shape_.head_dim, width = layer.step.width;
  const float* values =
      layer.step.values.data() + (layer.index * shape_.kv_heads + head) * head_dim * width;
  std::memcpy(to, stored, done * head_dim * sizeof(float));
  for (std::size_t place = done; place < PAGE; place++)
    std::memcpy(to + place * head_dim, values + static_cast<std::size_t>(own[place]) * head_dim,
                head_dim * sizeof(float));
}

}  // namespace peagle
