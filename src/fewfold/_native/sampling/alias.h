// Alias tables: a draw from any distribution costs one number and one comparison.
#pragma once
#include <cstdint>
#include <vector>

namespace fewfold {

// Alias tables inside every cell (Vose, 1991): place p stands for itself with probability accept[p], else for other[p].
inline void alias(const double *weight, const int64_t *start, int64_t cells, float *accept, int32_t *other) {
  std::vector<int64_t> small, large;
  std::vector<double> share;
  for (int64_t c = 0; c < cells; ++c) {
    const int64_t first = start[c], size = start[c + 1] - first;
    double total = 0;
    for (int64_t i = 0; i < size; ++i) total += weight[first + i];
    share.assign(weight + first, weight + first + size);
    small.clear();
    large.clear();
    for (int64_t i = 0; i < size; ++i) {
      share[i] *= static_cast<double>(size) / total;
      (share[i] < 1 ? small : large).push_back(i);
    }
    while (!small.empty() && !large.empty()) {
      const int64_t s = small.back(), l = large.back();
      small.pop_back();
      accept[first + s] = static_cast<float>(share[s]);
      other[first + s] = static_cast<int32_t>(first + l);
      share[l] -= 1 - share[s];
      if (share[l] < 1) {
        large.pop_back();
        small.push_back(l);
      }
    }
    for (const auto &left : {small, large})
      for (const int64_t i : left) {
        accept[first + i] = 1;
        other[first + i] = static_cast<int32_t>(first + i);
      }
  }
}

}  // namespace fewfold
