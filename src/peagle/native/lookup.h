// What followed the last tokens earlier in the same request (draft/lookup.py, which it equals).
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace peagle {

// An earlier place: where what followed stands, and how many tokens before it agree.
struct Match {
  std::int32_t position, length;
};

// In the order in which they were found, so that sums over them have one order.
using Matches = std::vector<Match>;

class Lookup {
 public:
  // Lengths from `longest` on are not told apart.
  explicit Lookup(std::size_t longest) : longest_(longest) {}

  void extend(const std::int32_t* tokens, std::size_t count);
  // Of the end of the text; tokens appended since are followed only now.
  const Matches& matches();
  // Of a branch that continues one having `matches` with `token`.
  Matches follow(const Matches& matches, std::int32_t token) const;
  std::int32_t token(std::int32_t position) const {
    return text_[static_cast<std::size_t>(position)];
  }
  std::size_t size() const { return text_.size(); }
  // Whether the last few tokens stood in the text before.
  bool repeats() const { return repeats_; }

 private:
  static constexpr std::size_t RECENT = 32, RUN = 4;

  struct Run {
    std::int32_t tokens[RUN];
    bool operator==(const Run& other) const;
  };
  struct RunHash {
    std::size_t operator()(const Run& run) const;
  };

  const std::size_t longest_;
  std::vector<std::int32_t> text_;
  std::vector<std::int32_t> before_;                     // last place before of each place's token
  std::unordered_map<std::int32_t, std::int32_t> last_;  // last place of each token
  std::unordered_set<Run, RunHash> runs_;
  bool repeats_ = false;
  Matches matches_;
  std::size_t followed_ = 0;
};

// Length of the longest; 0 where there is none.
std::int32_t longest_of(const Matches& matches);

}  // namespace peagle
