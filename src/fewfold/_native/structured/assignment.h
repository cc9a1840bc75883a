// The best assignment of rows to columns, by shortest augmenting paths (Jonker and Volgenant).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "structured.h"

namespace fewfold {

// Every row takes one column, no column two rows. A row may also stay alone for a score of zero if `alone` is set.
// A row without any admissible column is ignored.
//
// Columns have dual prices. By complementary slackness, the best assignment gives every row the column of its largest
// gain, score less price, at prices that are zero for unassigned columns.
class AssignmentOracle {
 public:
  AssignmentOracle(int64_t rows, int64_t columns, bool alone)
      : rows_(rows), columns_(columns), alone_(alone), price_(at(columns), 0.0), taken_(at(rows)), taker_(at(columns)),
        here_(at(rows)), must_(at(rows), alone ? 0 : 1), reach_(at(columns + 8)), from_(at(columns + 8)) {}

  double extra(const int32_t *) const { return 0; }

  double best(const double *scores, int32_t *code) {
    if (!structured().assignment.usable(scores, rows_ * columns_)) return NAN;
    for (int64_t i = 0; i < rows_; ++i) {
      const double *row = scores + i * columns_;
      here_[at(i)] = std::any_of(row, row + columns_, [](double x) { return x > -INFINITY; });
    }
    return solve(scores, code);
  }

  // The same with known sets of rows that take part and that must be assigned: all scores are valid.
  double solve(const double *scores, int32_t *code) {
    int64_t present = 0;
    for (int64_t i = 0; i < rows_; ++i) present += here_[at(i)];
    // Prices of an earlier call are a valid warm start if every column will be assigned again.
    if (alone_ || present < columns_) std::fill(price_.begin(), price_.end(), 0.0);
    std::fill(taken_.begin(), taken_.end(), NOBODY);
    std::fill(taker_.begin(), taker_.end(), NOBODY);
    waiting_.clear();
    bid(scores);
    for (size_t k = 0; k < waiting_.size(); ++k)
      if (!augment(scores, waiting_[k])) {
        std::fill(price_.begin(), price_.end(), 0.0);
        return -INFINITY;
      }
    double value = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      const int32_t j = taken_[at(i)];
      code[i] = j < 0 ? -1 : static_cast<int32_t>(i * columns_ + j);
      if (j >= 0) value += scores[code[i]];
    }
    return value;
  }

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  bool alone() const { return alone_; }
  bool here(int64_t i) const { return here_[at(i)]; }
  const double *prices() const { return price_.data(); }
  std::vector<char> &present() { return here_; }
  std::vector<char> &must() { return must_; }

  // The current gain of row i.
  double gain(const double *scores, int64_t i) const {
    const int32_t j = taken_[at(i)];
    return j < 0 ? 0 : scores[i * columns_ + j] - price_[at(j)];
  }

 private:
  static constexpr int32_t NOBODY = -1;
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  double staying(int64_t i) const { return must_[at(i)] ? -INFINITY : 0; }

  // Row reduction: every row takes its best column and raises the price up to its second best; the previous owner bids
  // again, while that is fast. The remaining rows are left to the augmenting paths.
  void bid(const double *scores) {
    int64_t turns = 2 * rows_;
    for (int64_t first = 0; first < rows_; ++first) {
      if (!here_[at(first)]) continue;
      for (int64_t i = first; i >= 0;) {
        Offer want = structured().assignment.best_two(scores + i * columns_, price_.data(), columns_);
        const double stay = staying(i);
        if (stay >= want.value && stay > -INFINITY) break;
        want.second = std::max(want.second, stay);
        const int32_t before = want.value > -INFINITY ? taker_[at(want.at)] : 0;
        const double rise = want.second > -INFINITY ? want.value - want.second : 0;
        if (want.value == -INFINITY || (before >= 0 && (!(rise > 0) || --turns < 0))) {
          waiting_.push_back(static_cast<int32_t>(i));
          break;
        }
        price_[at(want.at)] += rise;
        taker_[at(want.at)] = static_cast<int32_t>(i);
        taken_[at(i)] = want.at;
        if (before >= 0) taken_[at(before)] = NOBODY;
        i = before;
      }
    }
  }

  // Augments along the shortest path from a row to a free column, or to a row that becomes unassigned instead.
  bool augment(const double *scores, int32_t start) {
    const auto &table = structured().assignment;
    std::fill(reach_.begin(), reach_.begin() + columns_, INFINITY);
    std::fill(reach_.begin() + columns_, reach_.end(), -INFINITY);
    done_.clear();
    far_.clear();
    int32_t row = start, column = NOBODY, quits = NOBODY;
    // The gain of the first row is its maximum, so that all path lengths are nonnegative.
    double gone = 0, quit_at = INFINITY;
    double gain = std::max(table.best_two(scores + start * columns_, price_.data(), columns_).value, staying(start));
    if (gain == -INFINITY) return false;
    for (;;) {
      if (gone + gain - staying(row) < quit_at) quit_at = gone + gain - staying(row), quits = row;
      const Offer next = table.nearest_column(scores + row * columns_, price_.data(), columns_, gone + gain, row,
                                             reach_.data(), from_.data());
      if (quits >= 0 && quit_at <= next.value) {
        gone = quit_at;
        column = taken_[at(quits)];
        taken_[at(quits)] = NOBODY;
        break;
      }
      if (!(next.value < INFINITY)) return false;
      gone = next.value;
      column = next.at;
      if (taker_[at(column)] < 0) break;
      done_.push_back(column);
      far_.push_back(gone);
      reach_[at(column)] = -INFINITY;
      row = taker_[at(column)];
      gain = scores[row * columns_ + column] - price_[at(column)];
    }
    for (size_t k = 0; k < done_.size(); ++k) price_[at(done_[k])] += std::max(0.0, gone - far_[k]);
    while (column >= 0) {  // back to the start
      const int32_t who = static_cast<int32_t>(from_[at(column)]);
      taker_[at(column)] = who;
      std::swap(taken_[at(who)], column);
      if (who == start) break;
    }
    return true;
  }

  int64_t rows_, columns_;
  bool alone_;
  std::vector<double> price_;
  std::vector<int32_t> taken_, taker_, waiting_, done_;
  std::vector<char> here_, must_;
  std::vector<double> reach_, from_, far_;
};

}  // namespace fewfold
