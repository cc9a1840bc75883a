// The best spanning tree of an undirected graph, by Kruskal's algorithm.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace fewfold {

// A slot is an edge, on or off; scores are by edge.
class SpanningOracle {
 public:
  SpanningOracle(const int32_t *ends, int64_t edges, int64_t nodes)
      : ends_(ends), edges_(edges), nodes_(nodes), group_(static_cast<size_t>(nodes)) {
    for (int64_t e = 0; e < edges; ++e) order_.push_back(static_cast<int32_t>(e));
  }

  double best(const double *scores, int32_t *code) { return best_with({}, scores, code); }

  double extra(const int32_t *) const { return 0; }

  // The best among the trees that have these edges.
  double best_with(const std::vector<int32_t> &forced, const double *scores, int32_t *code) {
    for (int64_t e = 0; e < edges_; ++e)
      if (std::isnan(scores[e])) return NAN;
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    for (int64_t v = 0; v < nodes_; ++v) group_[static_cast<size_t>(v)] = static_cast<int32_t>(v);
    std::fill_n(code, edges_, -1);
    double value = 0;
    int64_t left = nodes_ - 1;
    const auto take = [&](int32_t e) {
      const int32_t a = leader(ends_[2 * e]), b = leader(ends_[2 * e + 1]);
      if (a == b || !(scores[e] > -INFINITY)) return;
      group_[static_cast<size_t>(a)] = b;
      code[e] = e;
      value += scores[e];
      --left;
    };
    for (int32_t e : forced) take(e);
    for (size_t i = 0; i < order_.size() && left > 0; ++i) take(order_[i]);
    if (left > 0) std::fill_n(code, edges_, -1);
    return left > 0 ? -INFINITY : value;
  }

 private:
  int32_t leader(int32_t v) {
    int32_t *group = group_.data();
    while (group[v] != v) v = group[v] = group[group[v]];
    return v;
  }

  const int32_t *ends_;
  int64_t edges_, nodes_;
  std::vector<int32_t> group_, order_;  // the order of the last call: scores change little from one to the next
};

}  // namespace fewfold
