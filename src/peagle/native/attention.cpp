#include "attention.h"

#include <algorithm>

namespace peagle {

void AttentionPlan::make(const Shape& shape, const Step& step, std::size_t first,
                         std::size_t last) {
  shape_ = shape;
  rows_ = last - first;
  pages_.clear();
  first_page_.assign(rows_, 0);
  last_page_.assign(rows_, 0);
  std::size_t most_pages = 0;
  for (std::size_t p = 0; p < step.parts.size(); p++) {
    const Part& part = step.parts[p];
    const std::size_t begin = std::max(first, part.first);
    const std::size_t end = std::min(last, part.first + part.count);
    if (begin >= end) continue;
    std::size_t pages = 0;
    for (std::size_t row = begin; row < end; row++) {
      const std::size_t position = step.positions[row];
      const bool all = shape.window == 0 || position < shape.window;
      first_page_[row - first] = all ? 0 : (position + 1 - shape.window) / PAGE;
      last_page_[row - first] = position / PAGE + 1;
      pages = std::max(pages, position / PAGE + 1);
    }
    most_pages = std::max(most_pages, pages);
    for (std::size_t page = 0; page < pages; page++) {
      const std::size_t at = page * PAGE;
      PageRows reading;
      reading.part = p;
      reading.page = page;
      reading.committed = part.length <= at ? 0 : std::min(part.length - at, PAGE);
      std::size_t own_first = step.width, own_last = 0;
      for (std::size_t row = begin; row < end; row++) {
        if (page < first_page_[row - first] || page >= last_page_[row - first]) continue;
        const std::size_t position = step.positions[row];
        const std::size_t low =
            shape.window == 0 || position < shape.window ? 0 : position + 1 - shape.window;
        const std::size_t seen = std::min(position + 1 - at, PAGE);
        const std::int32_t* own = part.paths.data() + part.path_of[row - part.first] +
                                  (at >= part.tail ? at - part.tail : 0);
        for (std::size_t place = reading.committed; place < seen; place++) {
          own_first = std::min(own_first, static_cast<std::size_t>(own[place]));
          own_last = std::max(own_last, static_cast<std::size_t>(own[place]) + 1);
        }
        reading.rows.push_back(row - first);
        for (std::size_t shared = 0; shared < shape.shared(); shared++) {
          reading.own.push_back(own);
          reading.first_seen.push_back(static_cast<std::int32_t>(low > at ? low - at : 0));
          reading.last_seen.push_back(static_cast<std::int32_t>(seen));
        }
      }
      if (reading.rows.empty()) continue;
      reading.own_first = own_last == 0 ? 0 : own_first / BLOCK * BLOCK;
      reading.own_last = (own_last + BLOCK - 1) / BLOCK * BLOCK;
      pages_.push_back(std::move(reading));
    }
  }
  const std::size_t places = most_pages * rows_ * shape.heads;
  sums_.grow(places * shape.head_dim);
  maxima_.grow(places);
  weights_.grow(places);
}

void AttentionPlan::attend(Team& team, const Kernels& kernels, const Step& step,
                           std::size_t layer, const float* pool, std::size_t pool_pages,
                           const float* queries, float* attended) {
  const std::size_t heads = shape_.heads, head_dim = shape_.head_dim;
  team.share(pages_.size() * shape_.kv_heads, 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t job = first; job < last; job++)
      attend_page(kernels, step, pages_[job / shape_.kv_heads], job % shape_.kv_heads, layer, pool,
                  pool_pages, queries);
  });
  team.share(rows_ * heads, heads, [&](std::size_t first, std::size_t last) {
    for (std::size_t at = first; at < last; at++)
      kernels.merge(sums_.data() + at * head_dim, maxima_.data() + at, weights_.data() + at,
                    first_page_[at / heads], last_page_[at / heads], rows_ * heads * head_dim,
                    rows_ * heads, head_dim, attended + at * head_dim);
  });
}

void AttentionPlan::attend_page(const Kernels& kernels, const Step& step, const PageRows& page,
                                std::size_t head, std::size_t layer, const float* pool,
                                std::size_t pool_pages, const float* queries) {
  const std::size_t heads = shape_.heads, head_dim = shape_.head_dim, shared = shape_.shared();
  const std::size_t count = page.rows.size() * shared;
  thread_local std::vector<const float*> asked;
  thread_local std::vector<float*> sums, maxima, weights;
  asked.clear(), sums.clear(), maxima.clear(), weights.clear();
  for (const std::size_t row : page.rows)
    for (std::size_t one = 0; one < shared; one++) {
      const std::size_t at = row * heads + head * shared + one;
      const std::size_t place = page.page * rows_ * heads + at;
      asked.push_back(queries + at * head_dim);
      sums.push_back(sums_.data() + place * head_dim);
      maxima.push_back(maxima_.data() + place);
      weights.push_back(weights_.data() + place);
    }
  const Part& part = step.parts[page.part];
  const std::size_t layer_floats = pool_pages * shape_.kv_heads * shape_.page_floats();
  const std::size_t place = static_cast<std::size_t>(part.pages[page.page]) * shape_.kv_heads + head;
  const float* keys = pool + 2 * layer * layer_floats + place * shape_.page_floats();
  const std::size_t own = (layer * shape_.kv_heads + head) * head_dim * step.width;
  kernels.attend_page({head_dim, count, asked.data(), keys, keys + layer_floats, page.committed,
                       step.keys.data() + own, step.values.data() + own, step.width,
                       page.own_first, page.own_last, page.own.data(), page.first_seen.data(),
                       page.last_seen.data(), sums.data(), maxima.data(), weights.data()});
}

}  // namespace peagle
