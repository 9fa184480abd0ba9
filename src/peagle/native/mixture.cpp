#include "mixture.h"

#include <algorithm>
#include <utility>

namespace peagle {

double MixturePrior::network_weight(std::size_t depth, std::int32_t match,
                                    std::size_t corpus_order) const {
  const auto& row = network_weights[std::min(depth, network_weights.size()) - 1];
  const auto column = std::upper_bound(match_bounds.begin(), match_bounds.end(), match);
  return row[static_cast<std::size_t>(column - match_bounds.begin())][corpus_order];
}

std::size_t Mentions::slot(std::int32_t token) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = (static_cast<std::uint32_t>(token) * 2654435761u >> 16) & mask;
  while (slots_[slot] != 0 && all_[slots_[slot] - 1].token != token) slot = (slot + 1) & mask;
  return slot;
}

void Mentions::clear() {
  for (const Mention& one : all_) slots_[one.slot] = 0;
  all_.clear();
}

Mentions::Mention& Mentions::of(std::int32_t token) {
  std::size_t place = slot(token);
  if (slots_[place] != 0) return all_[slots_[place] - 1];
  if (2 * all_.size() >= slots_.size()) {
    slots_.assign(2 * slots_.size(), 0);
    for (std::size_t i = 0; i < all_.size(); i++) {
      all_[i].slot = slot(all_[i].token);
      slots_[all_[i].slot] = static_cast<std::uint32_t>(i + 1);
    }
    place = slot(token);
  }
  all_.push_back({token, 0.0, 0.0, 0.0, false, false, place});
  slots_[place] = static_cast<std::uint32_t>(all_.size());
  return all_.back();
}

void Mentions::add_lookup(std::int32_t token, double evidence) {
  Mention& one = of(token);
  one.lookup += evidence;
  one.by_text = true;
}

void Mentions::add_corpus(std::int32_t token, double probability) {
  Mention& one = of(token);
  one.corpus += probability;
  one.by_text = true;
}

void Mentions::set_network(std::int32_t token, double probability) {
  Mention& one = of(token);
  one.network = probability;
  one.by_network = true;
}

Mixture::Mixture(MixturePrior given)
    : prior(std::move(given)),
      hits_(prior.trust_observations),
      expected_(prior.trust_observations) {}

std::vector<Child> Mixture::children(const Mentions& said, std::size_t corpus_order,
                                     double network_weight) const {
  bool text = false, network = false;
  double lookup = 0.0;
  for (const Mentions::Mention& one : said.all()) {
    text |= one.by_text;
    network |= one.by_network;
    lookup += one.lookup;
  }
  // A source that says nothing leaves its weight to the other.
  if (!network)
    network_weight = 0.0;
  else if (!text)
    network_weight = 1.0;
  const double network_share = network_weight * trust_;
  const double text_share = (1.0 - network_weight) * trust_;
  const double corpus_evidence = prior.corpus_evidence[corpus_order];
  const double evidence = lookup + corpus_evidence;
  const double per_evidence = evidence > 0 ? text_share / evidence : 0.0;
  const double corpus_share = corpus_evidence * per_evidence;
  std::vector<Child> children;
  children.reserve(said.all().size());
  for (const Mentions::Mention& one : said.all()) {
    const double from_lookup = one.lookup * per_evidence;
    const double from_corpus = one.corpus * corpus_share;
    const double from_network = one.network * network_share;
    const Source text_source = from_lookup >= from_corpus ? Source::lookup : Source::corpus;
    const Source source =
        std::max(from_lookup, from_corpus) >= from_network ? text_source : Source::network;
    const double probability = from_lookup + from_corpus + from_network;
    if (probability > 0) children.push_back({-probability, one.token, source});
  }
  return children;
}

void Mixture::observe(const std::vector<std::int32_t>& parents,
                      const std::vector<double>& probabilities,
                      const std::vector<std::int32_t>& accepted) {
  if (parents.empty()) return;
  // By parent, the root first; no child has probability 0.
  std::vector<double> promised(parents.size() + 1, 0.0);
  for (std::size_t node = 0; node < parents.size(); node++)
    promised[static_cast<std::size_t>(parents[node] + 1)] += probabilities[node];
  const auto observe_at = [&](std::size_t place, double above) {
    if (promised[place] > 0) expected_ += promised[place] / above / trust_;
  };
  observe_at(0, 1.0);
  for (const std::int32_t node : accepted)
    observe_at(static_cast<std::size_t>(node + 1), probabilities[static_cast<std::size_t>(node)]);
  hits_ += static_cast<double>(accepted.size());
  trust_ = std::min(1.0, hits_ / expected_);
}

}  // namespace peagle
