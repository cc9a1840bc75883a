// Sets of bits by how many are on.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace fewfold {

class ChoiceOracle {
 public:
  ChoiceOracle(int64_t size, int64_t least, int64_t most)
      : size_(size), least_(least), most_(most), order_(static_cast<size_t>(size)) {}

  double best(const double *scores, int32_t *code) {
    int64_t allowed = 0, positive = 0;
    for (int64_t i = 0; i < size_; ++i) {
      code[i] = -1;
      if (std::isnan(scores[i])) return NAN;
      if (scores[i] > -INFINITY) order_[static_cast<size_t>(allowed++)] = static_cast<int32_t>(i);
      positive += scores[i] > 0;
    }
    if (!allowed) return 0;
    if (allowed < least_) return -INFINITY;
    const int64_t ones = std::min(std::max(positive, least_), most_);
    if (ones < allowed)
      std::nth_element(order_.begin(), order_.begin() + ones, order_.begin() + allowed,
                       [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    double value = 0;
    for (int64_t k = 0; k < std::min(ones, allowed); ++k) {
      const int32_t i = order_[static_cast<size_t>(k)];
      code[i] = i;
      value += scores[i];
    }
    return value;
  }

  double extra(const int32_t *) const { return 0; }

 private:
  int64_t size_, least_, most_;
  std::vector<int32_t> order_;
};

}  // namespace fewfold
