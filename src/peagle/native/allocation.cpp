#include "allocation.h"

#include <algorithm>

namespace peagle {

namespace {

// The answer whose next node may be worth most; of equals the first one.
struct Next {
  double worth;
  std::size_t place;
  bool operator<(const Next& other) const {
    return worth < other.worth || (worth == other.worth && place > other.place);
  }
};

// missing: tokens by which what is expected so far falls short of the best.
bool may_pay(double missing, double worth, const std::vector<double>& seconds, std::size_t taken,
             double rate) {
  double gained = 0.0;
  for (std::size_t after = taken + 1; after < seconds.size(); after++) {
    gained += worth;
    if (gained - rate * seconds[after] > missing) return true;
  }
  return false;
}

}  // namespace

std::pair<std::vector<std::size_t>, double> allocate(const std::vector<GrowingTree*>& trees,
                                                     const std::vector<double>& odds,
                                                     const std::vector<double>& seconds,
                                                     double certain, double rate) {
  const std::size_t most = seconds.size() - 1;
  const auto corrected = [&](std::size_t place, double probability) {
    return odds[place] * probability / (1.0 + (odds[place] - 1.0) * probability);
  };
  double expected = certain, best_expected = certain, best = certain - rate * seconds[0];
  std::size_t count = 0;
  std::vector<std::size_t> taken;
  std::vector<Next> queue;
  for (std::size_t place = 0; place < trees.size(); place++)
    queue.push_back({corrected(place, trees[place]->bound()), place});
  std::make_heap(queue.begin(), queue.end());
  const auto requeue = [&](std::size_t place) {
    std::pop_heap(queue.begin(), queue.end());
    queue.back() = {corrected(place, trees[place]->bound()), place};
    std::push_heap(queue.begin(), queue.end());
  };
  while (!queue.empty() && taken.size() < most) {
    const auto [worth, place] = queue.front();
    if (!may_pay(best - expected, worth, seconds, taken.size(), rate)) break;
    GrowingTree& tree = *trees[place];
    if (!tree.settled()) {
      tree.settle();
      requeue(place);
      continue;
    }
    if (worth == 0) break;
    expected += corrected(place, tree.take());
    taken.push_back(place);
    requeue(place);
    const double worth_all = expected - rate * seconds[taken.size()];
    if (worth_all > best) {
      count = taken.size();
      best = worth_all;
      best_expected = expected;
    }
  }
  std::vector<std::size_t> counts(trees.size(), 0);
  for (std::size_t i = 0; i < count; i++) counts[taken[i]]++;
  return {counts, best_expected};
}

}  // namespace peagle
