// The best items of users by sums of sparse rows: work in proportion to those rows, not to the number of items.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "argument.h"

namespace fewfold {

// A sparse items x items matrix by rows.
template <class Id> struct SparseRows {
  int64_t items;
  const int64_t *start;
  const Id *id;
  const float *weight;
};

// Sums of rows for one user after the other.
template <class Id> class RowSums {
 public:
  explicit RowSums(const SparseRows<Id> &rows)
      : rows_(rows), sum_(static_cast<size_t>(rows.items), 0), seen_(static_cast<size_t>(rows.items), 0) {}

  // Finds the best k among the items with a positive sum. False if there are fewer: then those without any weight, at
  // 0, may belong to the best, too.
  bool best(const int64_t *history, int64_t n, const int64_t *out, int64_t outs, const bool *allowed, int64_t k,
            int64_t *ids, float *scores) {
    for (int64_t h = 0; h < n; ++h)
      for (int64_t e = rows_.start[history[h]]; e < rows_.start[history[h] + 1]; ++e) {
        const Id j = rows_.id[e];
        if (j < 0 || j >= rows_.items) refuse_id(j, e, rows_.items, "id");
        if (!seen_[j]) seen_[j] = 1, met_.push_back(j);
        sum_[j] += rows_.weight[e];
      }
    for (int64_t i = 0; i < outs; ++i) sum_[out[i]] = 0;
    for (const Id j : met_)
      if (sum_[j] > 0 && (!allowed || allowed[j])) found_.emplace_back(sum_[j], j);
    for (const Id j : met_) sum_[j] = 0, seen_[j] = 0;
    met_.clear();
    const bool enough = static_cast<int64_t>(found_.size()) >= k;
    if (enough) {
      std::partial_sort(found_.begin(), found_.begin() + k, found_.end(), [](const auto &a, const auto &b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
      });
      for (int64_t i = 0; i < k; ++i) scores[i] = found_[i].first, ids[i] = found_[i].second;
    }
    found_.clear();
    return enough;
  }

 private:
  const SparseRows<Id> &rows_;
  std::vector<float> sum_;
  std::vector<uint8_t> seen_;
  std::vector<Id> met_;
  std::vector<std::pair<float, Id>> found_;
};

}  // namespace fewfold
