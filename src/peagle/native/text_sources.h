// What is known of one request: its own text, the corpus, and how far to trust them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "corpus.h"
#include "lookup.h"
#include "mixture.h"

namespace peagle {

struct Predicted {
  std::int32_t token;
  double probability;
};

// What a drafter network predicts for the next levels of a tree (draft/distributions.py).
class Predictions {
 public:
  virtual ~Predictions() = default;
  virtual std::size_t levels() const = 0;
  // The token behind the draft tokens of `path`, which are fewer than `levels`.
  virtual void after(const std::vector<std::int32_t>& path, std::vector<Predicted>& found) = 0;
};

// A path of draft tokens, with the places where the text sources know it from.
struct Branch {
  Matches matches;
  Ranges ranges;
};

class TextSources {
 public:
  // Without a lookup or corpus where a request turns it off.
  TextSources(MixturePrior prior, bool with_lookup, std::shared_ptr<const Corpus> corpus);

  void extend(const std::int32_t* tokens, std::size_t count);
  // The branch of no draft tokens.
  Branch root();
  Branch follow(const Branch& branch, std::int32_t token) const;
  // What may follow `path`, which led to `branch`; in no order.
  std::vector<Child> children(const Branch& branch, const std::vector<std::int32_t>& path,
                              Predictions* network);
  bool repeats() const { return lookup_ && lookup_->repeats(); }
  std::int32_t longest_match() { return lookup_ ? longest_of(lookup_->matches()) : 0; }

  Mixture mixture;

 private:
  std::optional<Lookup> lookup_;
  std::shared_ptr<const Corpus> corpus_;
  // The end of the text, which the corpus is asked about when a tree is wanted.
  Ranges ranges_;
  std::vector<std::int32_t> unread_;
  Mentions said_;
  std::vector<Predicted> predicted_;
};

}  // namespace peagle
