#include "lookup.h"

#include <algorithm>

namespace peagle {

bool Lookup::Run::operator==(const Run& other) const {
  return std::equal(tokens, tokens + RUN, other.tokens);
}

std::size_t Lookup::RunHash::operator()(const Run& run) const {
  std::uint64_t mixed = 0;
  for (const std::int32_t token : run.tokens)
    mixed = (mixed ^ static_cast<std::uint32_t>(token)) * 0x9e3779b97f4a7c15u;
  return static_cast<std::size_t>(mixed ^ (mixed >> 32));
}

void Lookup::extend(const std::int32_t* tokens, std::size_t count) {
  for (std::size_t i = 0; i < count; i++) {
    const std::int32_t token = tokens[i], place = static_cast<std::int32_t>(text_.size());
    const auto [known, is_new] = last_.try_emplace(token, place);
    before_.push_back(is_new ? -1 : known->second);
    known->second = place;
    text_.push_back(token);
    // The first tokens of a text are a run of fewer.
    Run run{{-1, -1, -1, -1}};
    const std::size_t length = std::min(RUN, text_.size());
    std::copy(text_.end() - static_cast<std::ptrdiff_t>(length), text_.end(), run.tokens);
    repeats_ = !runs_.insert(run).second;
  }
}

const Matches& Lookup::matches() {
  const std::size_t end = text_.size();
  if (followed_ < end) {
    // Older matches cannot be longer than `longest`: a long prompt need not be followed.
    const std::size_t begin = std::max(followed_, end - std::min(end, longest_));
    if (begin != followed_) matches_.clear();
    for (std::size_t place = begin; place < end; place++) matches_ = follow(matches_, text_[place]);
    followed_ = end;
  }
  return matches_;
}

Matches Lookup::follow(const Matches& matches, std::int32_t token) const {
  Matches longer;
  const auto found = last_.find(token);
  if (found == last_.end()) return longer;
  const std::int32_t end = static_cast<std::int32_t>(text_.size());
  std::int32_t recent[RECENT];
  std::size_t count = 0;
  for (std::int32_t place = found->second; place >= 0 && count < RECENT;
       place = before_[static_cast<std::size_t>(place)])
    recent[count++] = place + 1;
  longer.reserve(count + matches.size());
  // The text's end matches itself, and nothing followed it yet.
  for (std::size_t i = count; i-- > 0;)
    if (recent[i] != end) longer.push_back({recent[i], 1});
  const std::size_t begun = longer.size();
  for (const Match& match : matches) {
    if (match.position >= end || text_[static_cast<std::size_t>(match.position)] != token) continue;
    const std::int32_t next = match.position + 1;
    if (next == end) continue;
    const auto last = longer.begin() + static_cast<std::ptrdiff_t>(begun);
    const auto same = std::lower_bound(
        longer.begin(), last, next,
        [](const Match& one, std::int32_t position) { return one.position < position; });
    if (same != last && same->position == next)
      same->length = match.length + 1;
    else
      longer.push_back({next, match.length + 1});
  }
  return longer;
}

std::int32_t longest_of(const Matches& matches) {
  std::int32_t longest = 0;
  for (const Match& match : matches) longest = std::max(longest, match.length);
  return longest;
}

}  // namespace peagle
