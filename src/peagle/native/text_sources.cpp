#include "text_sources.h"

#include <algorithm>
#include <utility>

namespace peagle {

TextSources::TextSources(MixturePrior prior, bool with_lookup, std::shared_ptr<const Corpus> corpus)
    : mixture(std::move(prior)), corpus_(std::move(corpus)) {
  if (with_lookup) lookup_.emplace(mixture.prior.longest_match());
}

void TextSources::extend(const std::int32_t* tokens, std::size_t count) {
  if (lookup_) lookup_->extend(tokens, count);
  // No longer context is looked up.
  if (corpus_)
    unread_.insert(unread_.end(), tokens + (count - std::min(count, CORPUS_ORDER)), tokens + count);
}

Branch TextSources::root() {
  if (corpus_) {
    ranges_ = corpus_->follow_all(ranges_, unread_);
    unread_.clear();
  }
  return {lookup_ ? lookup_->matches() : Matches{}, ranges_};
}

Branch TextSources::follow(const Branch& branch, std::int32_t token) const {
  return {lookup_ ? lookup_->follow(branch.matches, token) : Matches{},
          corpus_ ? corpus_->follow(branch.ranges, token) : Ranges{}};
}

std::vector<Child> TextSources::children(const Branch& branch,
                                         const std::vector<std::int32_t>& path,
                                         Predictions* network) {
  const MixturePrior& prior = mixture.prior;
  said_.clear();
  const std::size_t longest = prior.longest_match();
  for (const Match& match : branch.matches)
    said_.add_lookup(lookup_->token(match.position),
                     prior.lookup_evidence[std::min(static_cast<std::size_t>(match.length),
                                                    longest)]);
  if (corpus_)
    corpus_->successors(branch.ranges, [&](std::int32_t token, double probability) {
      said_.add_corpus(token, probability);
    });
  double weight = 0.0;
  if (network != nullptr && path.size() < network->levels()) {
    predicted_.clear();
    network->after(path, predicted_);
    for (const Predicted& one : predicted_)
      // No comparison with NaN is true: a broken network says nothing.
      if (one.probability > 0) said_.set_network(one.token, one.probability);
    weight = prior.network_weight(path.size() + 1, longest_of(branch.matches), branch.ranges.count);
  }
  return mixture.children(said_, branch.ranges.count, weight);
}

}  // namespace peagle
