// Oracles of trees: dependency trees over words, by arborescence.h or eisner.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "structured.h"

namespace fewfold {

constexpr int64_t MOST_WORDS = 32768;  // so that parts are indexed in 32 bits

// Scores are (words, words), by head and word, the root on the diagonal; a slot is a word. A word whose column is all
// -inf is absent.
class TreeOracle {
 public:
  TreeOracle(int64_t n, bool projective, bool single)
      : n_(n), single_(single), solve_(projective ? structured().eisner : structured().arborescence),
        real_(static_cast<size_t>(tree_reals(n)) + 8), whole_(static_cast<size_t>(tree_wholes(n))),
        heads_(static_cast<size_t>(n)) {}

  double best(const double *scores, int32_t *code) {
    if (all_present(scores)) return best_present(scores, n_, nullptr, code);
    std::vector<double> fewer;
    std::vector<int32_t> present;
    pack(scores, present, fewer);
    std::fill_n(code, n_, -1);
    return best_present(fewer.data(), static_cast<int64_t>(present.size()), present.data(), code);
  }

  double extra(const int32_t *) const { return 0; }

  // The words that are present, and the scores among them.
  void pack(const double *scores, std::vector<int32_t> &present, std::vector<double> &fewer) const {
    for (int64_t m = 0; m < n_; ++m)
      if (is_present(scores, m)) present.push_back(static_cast<int32_t>(m));
    for (int32_t h : present)
      for (int32_t m : present) fewer.push_back(scores[h * n_ + m]);
  }

  // The best tree over n words, none of them absent; `present` names them, null: as they are.
  double best_present(const double *scores, int64_t n, const int32_t *present, int32_t *code) {
    if (!n) return 0;
    const double value = solve_(scores, n, single_, workspace(), whole_.data(), heads_.data());
    if (!std::isfinite(value)) return value;
    for (int64_t m = 0; m < n; ++m) {
      const int64_t word = present ? present[m] : m, head = heads_[static_cast<size_t>(m)];
      code[word] = static_cast<int32_t>((present ? present[head] : head) * n_ + word);
    }
    return value;
  }

 private:
  double *workspace() {  // aligned to a cache line
    return reinterpret_cast<double *>((reinterpret_cast<uintptr_t>(real_.data()) + 63) / 64 * 64);
  }

  bool is_present(const double *scores, int64_t m) const {
    if (scores[m * n_ + m] > -INFINITY) return true;
    for (int64_t h = 0; h < n_; ++h)
      if (!(scores[h * n_ + m] == -INFINITY)) return true;
    return false;
  }

  bool all_present(const double *scores) const {
    for (int64_t m = 0; m < n_; ++m)
      if (!is_present(scores, m)) return false;
    return true;
  }

  int64_t n_;
  bool single_;
  double (*solve_)(const double *, int64_t, bool, double *, int32_t *, int32_t *);
  std::vector<double> real_;
  std::vector<int32_t> whole_, heads_;
};

}  // namespace fewfold
