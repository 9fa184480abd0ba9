#include "step.h"

#include <stdexcept>

#include "kernels.h"
#include "packing.h"

namespace peagle {

namespace {

// Chains share the path of their last row.
void add_chain(Part& part) {
  const std::size_t before = part.length - part.tail;
  part.paths.resize(padded(before + part.count, PAGE), 0);
  for (std::size_t row = 0; row < part.count; row++)
    part.paths[before + row] = static_cast<std::int32_t>(part.column + row);
  part.path_of.assign(part.count, 0);
}

void add_tree(Part& part, const std::int32_t* parents, std::vector<std::size_t>& depths) {
  const std::size_t before = part.length - part.tail;
  depths.resize(part.count);
  for (std::size_t row = 0; row < part.count; row++) {
    const std::int32_t parent = parents[row];
    if (parent >= static_cast<std::int32_t>(row))
      throw std::invalid_argument("parents come before their children");
    const std::size_t depth = parent < 0 ? 0 : depths[parent] + 1;
    depths[row] = depth;
    const std::size_t begin = part.paths.size();
    part.paths.resize(begin + padded(before + depth + 1, PAGE), 0);
    if (parent >= 0)
      for (std::size_t i = 0; i < depth; i++)
        part.paths[begin + before + i] = part.paths[part.path_of[parent] + before + i];
    part.paths[begin + before + depth] = static_cast<std::int32_t>(part.column + row);
    part.path_of.push_back(begin);
  }
}

}  // namespace

Step::Step(const StepRequest& request) : tokens(request.tokens, request.tokens + request.rows) {
  std::size_t row = 0;
  const std::int32_t* pages = request.pages;
  std::vector<std::size_t> depths;
  for (std::size_t p = 0; p < request.parts; p++) {
    Part part;
    part.first = row;
    part.count = static_cast<std::size_t>(request.counts[p]);
    if (part.count > request.rows - row)
      throw std::invalid_argument("the parts do not add up to the rows");
    part.column = width;
    part.length = static_cast<std::size_t>(request.lengths[p]);
    part.tail = part.length / PAGE * PAGE;
    part.pages.assign(pages, pages + request.page_counts[p]);
    pages += request.page_counts[p];
    const bool chain = request.chains[p] != 0;
    if (chain)
      add_chain(part);
    else
      add_tree(part, request.parents + row, depths);
    for (std::size_t i = 0; i < part.count; i++) {
      const std::size_t position = part.length + (chain ? i : depths[i]);
      if (position >= part.pages.size() * PAGE)
        throw std::invalid_argument("a row stands behind the pages of its sequence");
      positions.push_back(position);
      columns.push_back(part.column + i);
      asked.push_back(i + static_cast<std::size_t>(request.asked[p]) >= part.count);
    }
    row += part.count;
    width += padded(part.count, BLOCK);
    parts.push_back(std::move(part));
  }
  if (row != request.rows) throw std::invalid_argument("the parts do not add up to the rows");
}

}  // namespace peagle
