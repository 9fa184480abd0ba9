#include "drafting_module.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "allocation.h"
#include "arrays.h"
#include "bound_markov.h"

namespace peagle {

namespace {

using Table = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = std::vector<std::int32_t>;

// A corpus with the arrays that it reads.
class BoundCorpus {
 public:
  BoundCorpus(Table tokens, Table positions, Table first_token_bounds, Table frequent_ranges,
              Table frequent_order_bounds, Table successor_bounds, Table successors,
              Table successor_probabilities, std::vector<double> shares)
      : tables_{tokens, positions, first_token_bounds, frequent_ranges, frequent_order_bounds,
                successor_bounds, successors, successor_probabilities} {
    require(tokens.shape(0) == positions.shape(0) + CORPUS_ORDER, "tokens and padding");
    require(frequent_order_bounds.shape(0) == CORPUS_ORDER + 1, "a bound for each order");
    require(first_token_bounds.shape(0) >= 1 &&
                successor_bounds.shape(0) == frequent_ranges.shape(0) + 1 &&
                successors.shape(0) == successor_probabilities.shape(0),
            "tables that belong together");
    require(shares.size() == CORPUS_FREQUENT + 1, "a share for each number of successors");
    const CorpusTables columns{column(tables_[0]), column(tables_[1]), column(tables_[2]),
                               column(tables_[3]), column(tables_[4]), column(tables_[5]),
                               column(tables_[6]), column(tables_[7])};
    corpus_ = std::make_unique<Corpus>(columns, std::move(shares));
  }

  const Corpus& corpus() const { return *corpus_; }

 private:
  static Column column(const Table& table) {
    const nb::dlpack::dtype type = table.dtype();
    require(type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt) &&
                (type.bits == 16 || type.bits == 32 || type.bits == 64),
            "unsigned integers of 2, 4 or 8 bytes");
    return {static_cast<const unsigned char*>(table.data()), table.shape(0), type.bits / 8u};
  }

  std::vector<Table> tables_;
  std::unique_ptr<Corpus> corpus_;
};

// Predictions of a Markov head, which the tree asks without Python.
class MarkovPredictions : public Predictions {
 public:
  explicit MarkovPredictions(nb::object owner)
      : owner_(std::move(owner)), branches_(nb::cast<BoundBranches&>(owner_)) {}

  std::size_t levels() const override { return branches_.levels(); }

  void after(const Tokens& path, std::vector<Predicted>& found) override {
    const Children& children = branches_.after(path.size(), path.empty() ? 0 : path.back());
    for (std::size_t i = 0; i < children.ids.size(); i++)
      found.push_back({children.ids[i], static_cast<double>(children.probabilities[i])});
  }

 private:
  nb::object owner_;
  BoundBranches& branches_;
};

// Predictions of any other network (draft/distributions.py).
class PythonPredictions : public Predictions {
 public:
  explicit PythonPredictions(const nb::object& network)
      : levels_(nb::cast<std::size_t>(network.attr("levels"))),
        children_(network.attr("children")) {}

  std::size_t levels() const override { return levels_; }

  void after(const Tokens& path, std::vector<Predicted>& found) override {
    nb::list tokens;
    for (const std::int32_t token : path) tokens.append(token);
    const auto [ids, probabilities] = nb::cast<std::pair<Tokens, std::vector<double>>>(
        children_(path.size() + 1, nb::tuple(tokens)));
    require(ids.size() == probabilities.size(), "a probability for each token");
    for (std::size_t i = 0; i < ids.size(); i++) found.push_back({ids[i], probabilities[i]});
  }

 private:
  const std::size_t levels_;
  const nb::object children_;
};

MixturePrior make_prior(std::vector<double> lookup_evidence, std::vector<double> corpus_evidence,
                        Tokens match_bounds,
                        std::vector<std::vector<std::vector<double>>> network_weights,
                        double trust_observations) {
  require(lookup_evidence.size() >= 2 && corpus_evidence.size() == CORPUS_ORDER + 1,
          "evidence by length");
  require(!network_weights.empty(), "a weight for each depth");
  for (const auto& row : network_weights) {
    require(row.size() == match_bounds.size() + 1, "a weight for each range of matches");
    for (const auto& column : row)
      require(column.size() == CORPUS_ORDER + 1, "a weight for each length of context");
  }
  return {std::move(lookup_evidence), std::move(corpus_evidence), std::move(match_bounds),
          std::move(network_weights), trust_observations};
}

std::shared_ptr<TextSources> open_sources(const Tokens& tokens, const MixturePrior& prior,
                                          bool with_lookup, std::shared_ptr<BoundCorpus> bound) {
  // Shares the ownership of the arrays.
  std::shared_ptr<const Corpus> corpus;
  if (bound) corpus = std::shared_ptr<const Corpus>(bound, &bound->corpus());
  auto sources = std::make_shared<TextSources>(prior, with_lookup, std::move(corpus));
  sources->extend(tokens.data(), tokens.size());
  return sources;
}

std::unique_ptr<GrowingTree> growing(std::shared_ptr<TextSources> sources, nb::object network,
                                     std::size_t nodes, std::size_t roots, std::size_t depth) {
  std::unique_ptr<Predictions> predictions;
  if (nb::isinstance<BoundBranches>(network))
    predictions = std::make_unique<MarkovPredictions>(std::move(network));
  else if (!network.is_none())
    predictions = std::make_unique<PythonPredictions>(network);
  return std::make_unique<GrowingTree>(std::move(sources), std::move(predictions),
                                       TreeLimits{nodes, roots, depth});
}

void observe(TextSources& sources, const Tokens& parents, const std::vector<double>& probabilities,
             const Tokens& accepted) {
  require(parents.size() == probabilities.size(), "a probability for each node");
  const std::int32_t nodes = static_cast<std::int32_t>(parents.size());
  for (const std::int32_t parent : parents)
    require(parent >= -1 && parent < nodes, "no such parent");
  for (const std::int32_t node : accepted) require(node >= 0 && node < nodes, "no such node");
  sources.mixture.observe(parents, probabilities, accepted);
}

template <class Element>
std::vector<Element> first(const std::vector<Element>& all, std::size_t count) {
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(count, all.size()))};
}

using TreeLists = std::tuple<Tokens, Tokens, std::vector<double>, std::vector<std::uint8_t>, Tokens>;

// In the order of CandidateTree's fields (draft/tree.py).
TreeLists first_nodes(const GrowingTree& growing, std::size_t count) {
  const CandidateTree& tree = growing.tree();
  return {first(tree.tokens, count), first(tree.parents, count), first(tree.probabilities, count),
          first(tree.sources, count), first(tree.depths, count)};
}

std::pair<std::vector<std::size_t>, double> share_out(const std::vector<GrowingTree*>& trees,
                                                      const std::vector<double>& odds,
                                                      const std::vector<double>& seconds,
                                                      double certain, double rate) {
  require(odds.size() == trees.size(), "odds for each tree");
  require(!seconds.empty() && seconds[0] > 0, "a step takes time");
  return allocate(trees, odds, seconds, certain, rate);
}

}  // namespace

void bind_drafting(nb::module_& module) {
  nb::class_<BoundCorpus>(module, "Corpus")
      .def(nb::init<Table, Table, Table, Table, Table, Table, Table, Table, std::vector<double>>(),
           nb::kw_only(), nb::arg("tokens"), nb::arg("positions"), nb::arg("first_token_bounds"),
           nb::arg("frequent_ranges"), nb::arg("frequent_order_bounds"),
           nb::arg("successor_bounds"), nb::arg("successors"),
           nb::arg("successor_probabilities"), nb::arg("shares"));
  nb::class_<MixturePrior>(module, "MixturePrior")
      .def(nb::new_(&make_prior), nb::kw_only(), nb::arg("lookup_evidence"),
           nb::arg("corpus_evidence"), nb::arg("match_bounds"), nb::arg("network_weights"),
           nb::arg("trust_observations"));
  nb::class_<TextSources>(module, "TextSources")
      .def(nb::new_(&open_sources), nb::arg("token_ids"), nb::kw_only(), nb::arg("prior"),
           nb::arg("lookup"), nb::arg("corpus").none())
      .def("extend",
           [](TextSources& sources, const Tokens& tokens) {
             sources.extend(tokens.data(), tokens.size());
           })
      .def("observe", &observe)
      .def_prop_ro("repeats", &TextSources::repeats)
      .def_prop_ro("longest_match", &TextSources::longest_match)
      .def_prop_ro("trust", [](const TextSources& sources) { return sources.mixture.trust(); });
  nb::class_<GrowingTree>(module, "GrowingTree")
      .def(nb::new_(&growing), nb::arg("sources"), nb::arg("network").none(), nb::kw_only(),
           nb::arg("max_nodes"), nb::arg("max_roots"), nb::arg("max_depth"))
      .def("grow", &GrowingTree::grow)
      .def("first", &first_nodes)
      .def_prop_ro("taken", [](const GrowingTree& tree) { return tree.tree().tokens.size(); });
  module.def("allocate", &share_out);
}

}  // namespace peagle
