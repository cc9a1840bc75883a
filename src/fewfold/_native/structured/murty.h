// The k best assignments, by Murty's partition: all but the best, split by the first row where they differ from it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "assignment.h"

namespace fewfold {

class Murty {
 public:
  Murty(int64_t rows, int64_t columns, bool alone)
      : m_(rows), n_(columns), alone_(alone), oracle_(rows, columns, alone), left_(at(rows * columns)) {}

  // Codes (k, rows) and values (k,); -1 and -inf where there are fewer.
  void run(const double *scores, int64_t k, int32_t *codes, double *values) {
    std::fill_n(codes, k * m_, -1);
    std::fill_n(values, k, -INFINITY);
    Node root{0, std::vector<int32_t>(at(m_)), 0, {}};
    std::fill(oracle_.must().begin(), oracle_.must().end(), !alone_);
    root.value = oracle_.best(scores, root.code.data());
    const std::vector<char> here = oracle_.present();
    if (!(root.value > -INFINITY)) {
      std::fill_n(values, k, root.value);
      return;
    }
    const auto worse = [](const Node &a, const Node &b) { return a.value < b.value; };
    std::vector<Node> heap{std::move(root)};
    for (int64_t rank = 0; !heap.empty(); ++rank) {
      std::pop_heap(heap.begin(), heap.end(), worse);
      const Node best = std::move(heap.back());
      heap.pop_back();
      std::copy(best.code.begin(), best.code.end(), codes + rank * m_);
      values[rank] = best.value;
      if (rank + 1 == k) return;
      for (int64_t i = best.fixed; i < m_; ++i) {
        if (!here[at(i)]) continue;
        Node child{0, best.code, i, {}};
        if (i == best.fixed) child.barred = best.barred;
        child.barred.push_back(best.code[at(i)]);
        if (solve(scores, here, child)) {
          heap.push_back(std::move(child));
          std::push_heap(heap.begin(), heap.end(), worse);
        }
      }
    }
  }

 private:
  // The best of all that have the first `fixed` rows as they are in its code, and none of the excluded in the next.
  struct Node {
    double value;
    std::vector<int32_t> code;
    int64_t fixed;
    std::vector<int32_t> barred;
  };
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  bool solve(const double *scores, const std::vector<char> &here, Node &node) {
    std::copy_n(scores, m_ * n_, left_.begin());
    oracle_.present() = here;
    std::fill(oracle_.must().begin(), oracle_.must().end(), !alone_);
    double held = 0;
    for (int64_t i = 0; i < node.fixed; ++i) {
      oracle_.present()[at(i)] = 0;
      const int32_t part = node.code[at(i)];
      if (part < 0) continue;
      held += scores[part];
      for (int64_t r = node.fixed; r < m_; ++r) left_[at(r * n_ + part % n_)] = -INFINITY;
    }
    for (const int32_t part : node.barred) {
      if (part < 0)
        oracle_.must()[at(node.fixed)] = 1;
      else
        left_[at(part)] = -INFINITY;
    }
    const std::vector<int32_t> before = node.code;
    const double value = oracle_.solve(left_.data(), node.code.data());
    std::copy_n(before.begin(), node.fixed, node.code.begin());
    node.value = held + value;
    return value > -INFINITY;
  }

  int64_t m_, n_;
  bool alone_;
  AssignmentOracle oracle_;
  std::vector<double> left_;
};

}  // namespace fewfold
