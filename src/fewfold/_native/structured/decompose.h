// Decomposition of a matrix of marginals into a convex combination of assignments (Birkhoff and von Neumann).
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace fewfold {

// Subtracts assignments greedily, each with the largest feasible weight. The remainder sums to at most `weight_` along
// rows and columns; those with equality must be covered by the next assignment. Every assignment has an entry, or omits
// a row or column, that distinguishes it from all later ones: they are affinely independent.
class Decomposition {
 public:
  // Calls found(code, weight) for each; stops early where rounding leaves no assignment.
  template <class Found> void run(const double *mu, int64_t rows, int64_t columns, Found found) {
    read(mu, rows, columns);
    std::vector<int32_t> code(at(rows));
    for (double weight = 1; weight > LEAST;) {
      weight_ = weight;
      for (int side = 0; side < 2; ++side)
        for (int32_t node = 0; node < size(side); ++node)
          if (match_[side][at(node)] < 0 && needed(side, node) && !cover(side, node)) return;
      double part = weight;
      for (int side = 0; side < 2; ++side)
        for (int32_t node = 0; node < size(side); ++node) {
          const int32_t e = match_[side][at(node)];
          part = std::min(part, e < 0 ? weight - sum_[side][at(node)] : left_[at(e)]);
        }
      for (int64_t i = 0; i < rows; ++i) {
        const int32_t e = match_[0][at(i)];
        code[at(i)] = e < 0 ? -1 : static_cast<int32_t>(i * columns + end_[1][at(e)]);
      }
      if (!(part > 0)) return;  // rounding: nothing would change any more
      found(code.data(), part);
      take(part);
      weight -= part;
    }
  }

 private:
  static constexpr double LEAST = 1e-12;
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  int32_t size(int side) const { return static_cast<int32_t>(sum_[side].size()); }
  bool needed(int side, int32_t node) const { return sum_[side][at(node)] >= weight_ - LEAST; }

  void read(const double *mu, int64_t rows, int64_t columns) {
    left_.clear();
    for (int side = 0; side < 2; ++side) {
      end_[side].clear();
      sum_[side].assign(at(side ? columns : rows), 0.0);
      match_[side].assign(at(side ? columns : rows), -1);
      edges_[side].assign(at(side ? columns : rows), {});
    }
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const double x = mu[i * columns + j];
        if (!(x > LEAST)) continue;
        const int32_t ends[] = {static_cast<int32_t>(i), static_cast<int32_t>(j)};
        for (int side = 0; side < 2; ++side) {
          edges_[side][at(ends[side])].push_back(static_cast<int32_t>(left_.size()));
          end_[side].push_back(ends[side]);
          sum_[side][at(ends[side])] += x;
        }
        left_.push_back(x);
      }
  }

  // Extends the assignment to a node by an augmenting path to a node that is not covered, or need not be.
  bool cover(int side, int32_t start) {
    const int other = 1 - side;
    by_.assign(at(size(other)), -1);
    queue_.assign(1, start);
    for (size_t k = 0; k < queue_.size(); ++k)
      for (const int32_t e : edges_[side][at(queue_[k])]) {
        const int32_t to = end_[other][at(e)];
        if (left_[at(e)] <= LEAST || by_[at(to)] >= 0) continue;
        by_[at(to)] = e;
        const int32_t old = match_[other][at(to)];
        const int32_t holder = old < 0 ? -1 : end_[side][at(old)];
        if (holder >= 0 && needed(side, holder)) {
          queue_.push_back(holder);
          continue;
        }
        if (holder >= 0) match_[side][at(holder)] = -1;
        for (int32_t node = to, mine = -1; mine != start;) {
          const int32_t way = by_[at(node)];
          mine = end_[side][at(way)];
          const int32_t before = match_[side][at(mine)];
          match_[side][at(mine)] = match_[other][at(node)] = way;
          if (mine != start) node = end_[other][at(before)];
        }
        return true;
      }
    return false;
  }

  void take(double part) {
    for (int32_t i = 0; i < size(0); ++i) {
      const int32_t e = match_[0][at(i)];
      if (e < 0) continue;
      const int32_t j = end_[1][at(e)];
      sum_[0][at(i)] -= part;
      sum_[1][at(j)] -= part;
      left_[at(e)] -= part;
      if (left_[at(e)] <= LEAST) match_[0][at(i)] = match_[1][at(j)] = -1;
    }
  }

  double weight_ = 1;
  std::vector<double> left_, sum_[2];
  std::vector<int32_t> end_[2], match_[2], by_, queue_;
  std::vector<std::vector<int32_t>> edges_[2];
};

}  // namespace fewfold
