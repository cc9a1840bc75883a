// Euclidean projection of a matrix of scores on the convex hull of assignments, without enumerating any of them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "active.h"
#include "assignment.h"

namespace fewfold {

// The Laplacian matrix of the columns that share rows: each row with k positive entries, if its sum is fixed, joins
// their columns with weight 1 / k. Columns that are not `free` are excluded.
class ColumnLaplacian {
 public:
  explicit ColumnLaplacian(int64_t columns)
      : n_(columns), l_(at(columns * columns + 8)), diagonal_(at(columns)), inverse_(at(columns)), x_(at(columns + 8)), support_(at(columns + 8)) {}

  // Row i has the columns where its values, less the prices, exceed level(i).
  template <class Level, class Fixed>
  void build(const double *values, const double *prices, int64_t rows, const char *free, double ridge, Level level,
             Fixed fixed) {
    std::fill(l_.begin(), l_.end(), 0.0);
    for (int64_t i = 0; i < rows; ++i) {
      int64_t k = structured().assignment.support_of(values + i * n_, prices, n_, level(i), support_.data());
      const double share = k && fixed(i) ? 1.0 / static_cast<double>(k) : 0.0;
      const auto first = support_.begin();
      k = std::remove_if(first, first + k, [&](int32_t j) { return !free[j]; }) - first;
      for (int64_t a = 0; a < k; ++a) {
        double *column = l_.data() + support_[at(a)] * n_;
        column[support_[at(a)]] += 1;
        if (share > 0)
          for (int64_t b = a; b < k; ++b) column[support_[at(b)]] -= share;
      }
    }
    for (int64_t j = 0; j < n_; ++j) l_[at(j * n_ + j)] += free[j] ? ridge : 1;
    structured().assignment.factorise(l_.data(), n_, n_, 1e-13, diagonal_.data());
    for (int64_t j = 0; j < n_; ++j) inverse_[at(j)] = 1 / l_[at(j * n_ + j)];
  }

  void solve(double *x) {
    const Factor f{l_.data(), n_, nullptr, nullptr, inverse_.data()};
    std::copy_n(x, n_, x_.data());
    structured().solve_lower(f, n_, x_.data());
    structured().solve_upper(f, n_, x_.data());
    std::copy_n(x_.data(), n_, x);
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  int64_t n_;
  std::vector<double> l_, diagonal_, inverse_, x_;  // l_ and x_ padded to whole vectors
  std::vector<int32_t> support_;
};

// mu = [t - a 1' - 1 b']_+ with rows, and columns, that sum to one (or to at most one, where a or b is zero). For given
// b every row has its own a, that of a projection on the simplex; b minimises
//   sum_i a_i + |mu_i|^2 / 2  +  sum_j b_j,
// which is convex, piecewise quadratic, and has the gradient one minus the sums of columns: Newton's method, from the
// prices of the best assignment.
class BirkhoffProjection {
 public:
  explicit BirkhoffProjection(AssignmentOracle &oracle)
      : oracle_(oracle), m_(oracle.rows()), n_(oracle.columns()), laplacian_(n_), left_(at(m_ * n_)),
        b_(at(n_)), next_(at(n_)), low_(at(n_)), step_(at(n_)), over_(at(n_)), over_next_(at(n_)), level_(at(m_)),
        floor_(at(m_)), free_(at(n_)), code_(at(m_)) {}

  Result run(const double *scores, double *mu, int64_t turns) {
    const double value = oracle_.best(scores, code_.data());
    if (std::isnan(value)) return {Outcome::no_numbers, 0, NAN};
    if (value == -INFINITY) return {Outcome::infeasible, 0, NAN};
    start(scores);
    double now = measure(b_, mu, over_);
    Result result{Outcome::stopped, 0, 0};
    for (;;) {
      const double off = violation();
      if (off <= 1e-13) return finish(result, Outcome::converged, mu);
      if (result.turns >= turns) return finish(result, Outcome::stopped, mu);
      ++result.turns;
      // After short steps, entries about to become positive are included too, as they would limit the next step.
      const double near = careful_ ? off : 0;
      laplacian_.build(
          left_.data(), b_.data(), m_, free_.data(), std::clamp(1e-3 * off, 1e-10, 1e-4),
          [&](int64_t i) { return level_[at(i)] - near; }, [&](int64_t i) { return level_[at(i)] > floor_[at(i)]; });
      for (int64_t j = 0; j < n_; ++j) step_[at(j)] = free_[at(j)] ? over_[at(j)] : 0;
      laplacian_.solve(step_.data());
      if (!search(mu, now, off)) return finish(result, off <= 1e-9 ? Outcome::converged : Outcome::stopped, mu);
    }
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  // Scores reduced by the dual prices of the best assignment: relevant values are then near zero.
  void start(const double *scores) {
    int64_t present = 0;
    for (int64_t i = 0; i < m_; ++i) {
      present += oracle_.here(i);
      const double gain = oracle_.gain(scores, i);
      for (int64_t j = 0; j < n_; ++j) left_[at(i * n_ + j)] = scores[i * n_ + j] - oracle_.prices()[j] - gain;
      floor_[at(i)] = oracle_.alone() ? -gain : -INFINITY;
      level_[at(i)] = -1;
    }
    const bool all = present == n_ && !oracle_.alone();
    for (int64_t j = 0; j < n_; ++j) low_[at(j)] = all ? -INFINITY : -oracle_.prices()[j];
    std::fill(b_.begin(), b_.end(), 0.0);
    careful_ = false;
  }

  // The objective at b; mu, and by how much its columns exceed one.
  double measure(const std::vector<double> &b, double *mu, std::vector<double> &over) {
    double sum = 0;
    for (int64_t j = 0; j < n_; ++j) sum += b[at(j)], over[at(j)] = -1;
    for (int64_t i = 0; i < m_; ++i) {
      double *row = mu + i * n_;
      if (!oracle_.here(i)) {
        std::fill_n(row, n_, 0.0);
        continue;
      }
      level_[at(i)] = structured().assignment.onto_simplex(left_.data() + i * n_, b.data(), n_, floor_[at(i)],
                                                           level_[at(i)], row);
      sum += level_[at(i)] + structured().dot(row, row, n_) / 2;
      for (int64_t j = 0; j < n_; ++j) over[at(j)] += row[j];
    }
    return sum;
  }

  // The largest violation of the sums of columns; marks the prices that may change.
  double violation() {
    double off = 0;
    for (int64_t j = 0; j < n_; ++j) {
      free_[at(j)] = b_[at(j)] > low_[at(j)] || over_[at(j)] > 0;
      if (free_[at(j)]) off = std::max(off, std::abs(over_[at(j)]));
    }
    return off;
  }

  // Line search: a step along the Newton direction that decreases the objective.
  bool search(double *mu, double &now, double off) {
    for (double by = 1; by > 1e-9;) {
      double slope = 0, after = 0;
      for (int64_t j = 0; j < n_; ++j) {
        next_[at(j)] = std::max(low_[at(j)], b_[at(j)] + by * step_[at(j)]);
        slope -= over_[at(j)] * (next_[at(j)] - b_[at(j)]);
      }
      const double then = measure(next_, mu, over_next_);
      double worst = 0;
      for (int64_t j = 0; j < n_; ++j) {
        after -= over_next_[at(j)] * (next_[at(j)] - b_[at(j)]);
        if (next_[at(j)] > low_[at(j)] || over_next_[at(j)] > 0) worst = std::max(worst, std::abs(over_next_[at(j)]));
      }
      // The objective is convex: if it still decreases at the end of the step, it has decreased along it. Close to the
      // optimum, where rounding hides the decrease, the sums of columns are compared instead.
      if (then <= now + 1e-4 * slope || after <= 0 || (worst <= 0.5 * off && off < 1e-3)) {
        careful_ = by < 0.3;
        b_.swap(next_);
        over_.swap(over_next_);
        now = then;
        return true;
      }
      by *= std::clamp(slope / (slope - after), 0.1, 0.7);
    }
    measure(b_, mu, over_);
    return false;
  }

  Result finish(Result result, Outcome outcome, double *mu) {
    result.outcome = outcome;
    for (int64_t k = 0; k < m_ * n_; ++k)
      if (mu[k] < 1e-12) mu[k] = 0;  // a zero up to rounding
    for (int64_t j = 0; j < n_; ++j) {
      const double price = low_[at(j)] > -INFINITY ? b_[at(j)] - low_[at(j)] : b_[at(j)];
      result.gap += std::abs(price * over_[at(j)]);
    }
    return result;
  }

  AssignmentOracle &oracle_;
  int64_t m_, n_;
  ColumnLaplacian laplacian_;
  std::vector<double> left_, b_, next_, low_, step_, over_, over_next_, level_, floor_;
  std::vector<char> free_;
  bool careful_ = false;
  std::vector<int32_t> code_;
};

// to = the change projected on the tangent space of the face of mu: zero where mu is zero, and with zero sums along the
// rows and columns that sum to one.
class BirkhoffFace {
 public:
  BirkhoffFace(int64_t rows, int64_t columns)
      : m_(rows), n_(columns), laplacian_(columns), price_(at(columns)), sum_(at(columns)), mean_(at(rows)),
        none_(at(columns), 0.0), fixed_(at(rows)), free_(at(columns)) {}

  void apply(const double *mu, const double *change, double *to) {
    std::fill(sum_.begin(), sum_.end(), 0.0);
    std::fill(price_.begin(), price_.end(), 0.0);
    for (int64_t i = 0; i < m_; ++i) {
      const double *row = mu + i * n_, *given = change + i * n_;
      double total = 0, sum = 0, count = 0;
      for (int64_t j = 0; j < n_; ++j) {
        sum_[at(j)] += row[j];
        total += row[j];
        if (row[j] > 0) sum += given[j], ++count;
      }
      fixed_[at(i)] = total > 1 - FULL;
      mean_[at(i)] = fixed_[at(i)] ? sum / count : 0;
      for (int64_t j = 0; j < n_; ++j) price_[at(j)] += row[j] > 0 ? given[j] - mean_[at(i)] : 0;
    }
    for (int64_t j = 0; j < n_; ++j) {
      free_[at(j)] = sum_[at(j)] > 1 - FULL;
      if (!free_[at(j)]) price_[at(j)] = 0;
    }
    laplacian_.build(
        mu, none_.data(), m_, free_.data(), 0, [](int64_t) { return 0.0; }, [&](int64_t i) { return fixed_[at(i)]; });
    laplacian_.solve(price_.data());
    for (int64_t i = 0; i < m_; ++i) {
      const double *row = mu + i * n_, *given = change + i * n_;
      double sum = 0, count = 0;
      for (int64_t j = 0; j < n_; ++j)
        if (row[j] > 0) sum += given[j] - price_[at(j)], ++count;
      const double mean = fixed_[at(i)] ? sum / count : 0;
      for (int64_t j = 0; j < n_; ++j) to[i * n_ + j] = row[j] > 0 ? given[j] - price_[at(j)] - mean : 0;
    }
  }

 private:
  static constexpr double FULL = 1e-9;  // tolerance within which a sum equals one
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  int64_t m_, n_;
  ColumnLaplacian laplacian_;
  std::vector<double> price_, sum_, mean_, none_;
  std::vector<char> fixed_, free_;
};

}  // namespace fewfold
