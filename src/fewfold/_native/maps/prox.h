// Proximal operators that make entries equal in groups: total variation along a row, and OSCAR on the simplex.
// An entry of -inf is omitted from its row: those on either side of it become neighbours, and it stays -inf.
// Sums are accumulated in double for every T. Rows with NaN or +inf are not supported: the caller handles them first.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "share.h"

namespace fewfold {

// One row at a time; buffers are reused for the next.
struct Prox {
  std::vector<double> value, low, high, fit;      // of the entries read
  std::vector<int64_t> place;                     // where they are in the row
  std::vector<std::pair<double, int64_t>> order;  // OSCAR: the entries and their numbers, largest first
  std::vector<int8_t> rise;                       // sign of the jump after an entry
  std::vector<double> at, slope, level;           // knots of the message, and what each adds to its line

  // Reads the entries above `floor`.
  template <class T> int64_t read(const T *z, int64_t k, double floor = -std::numeric_limits<double>::infinity()) {
    value.clear(), place.clear();
    for (int64_t j = 0; j < k; ++j)
      if (z[j] > floor) value.push_back(z[j]), place.push_back(j);
    return static_cast<int64_t>(value.size());
  }

  // min 1/2 sum (x - value)^2 + force * sum |x_{i+1} - x_i|, by dynamic programming from the left: the derivative
  // of the cost of a prefix, clamped to [-force, force], is a piecewise linear function of its last entry, and each
  // step cuts it on both sides. Entry i then follows entry i + 1 within [low_i, high_i]. Linear time.
  void total_variation(double force) {
    const int64_t n = static_cast<int64_t>(value.size());
    low.resize(n), high.resize(n), fit.resize(n), rise.assign(n, 0);
    at.resize(2 * n + 2), slope.resize(2 * n + 2), level.resize(2 * n + 2);
    int64_t left = n, right = n;  // knots in [left, right)
    for (int64_t i = 0; i < n; ++i) {
      const double wall = i == 0 ? 0.0 : force;     // no neighbour, no penalty
      const double out = i == n - 1 ? 0.0 : force;  // the bound on the force of the next neighbour
      double a = 1, b = -value[i] - wall;
      while (left < right && a * at[left] + b < -out) a += slope[left], b += level[left], ++left;
      double c = 1, d = -value[i] + wall;
      low[i] = (-out - b) / a;
      while (left < right && c * at[right - 1] + d > out) --right, c -= slope[right], d -= level[right];
      high[i] = i == n - 1 ? low[i] : std::max(low[i], (out - d) / c);
      --left;
      at[left] = low[i], slope[left] = a, level[left] = b + out;
      at[right] = high[i], slope[right] = -c, level[right] = out - d;
      ++right;
    }
    fit[n - 1] = low[n - 1];
    for (int64_t i = n - 2; i >= 0; --i) {
      rise[i] = static_cast<int8_t>((fit[i + 1] > high[i]) - (fit[i + 1] < low[i]));
      fit[i] = rise[i] > 0 ? high[i] : rise[i] < 0 ? low[i] : fit[i + 1];
    }
  }

  // Non-increasing regression of value_(r) + tilt * r over the ranks r, by pooling adjacent violators.
  void oscar(double tilt) {
    const int64_t n = static_cast<int64_t>(value.size());
    order.resize(n), fit.resize(n), rise.assign(n, 0);
    for (int64_t i = 0; i < n; ++i) order[i] = {value[i], i};
    std::sort(order.begin(), order.end(), [](const auto &a, const auto &b) {
      return a.first > b.first || (a.first == b.first && a.second < b.second);
    });
    low.clear(), high.clear();  // sum and size of the pools
    for (int64_t r = 0; r < n; ++r) {
      double sum = order[r].first + tilt * static_cast<double>(r), size = 1;
      while (!low.empty() && low.back() * size < sum * high.back()) {
        sum += low.back(), size += high.back();
        low.pop_back(), high.pop_back();
      }
      low.push_back(sum), high.push_back(size);
    }
    int64_t r = 0;
    for (size_t pool = 0; pool < low.size(); ++pool) {
      for (int64_t m = static_cast<int64_t>(high[pool]); m > 0; --m, ++r) fit[r] = low[pool] / high[pool];
      rise[r - 1] = -1;  // a jump down after every pool
    }
  }
};

// Calls work(prox, row) for every row, with the rows divided among threads.
template <class F> void each_prox(int64_t rows, int threads, F work) {
  Caught caught;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) if (threads > 1)
#endif
  {
    Prox prox;
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t row = 0; row < rows; ++row) caught.run([&] { work(prox, row); });
  }
  (void)threads;
  caught.rethrow();
}

// What the prox is made of, enough to rebuild it and its derivatives: the group of every entry, numbered within the
// row, and its pull, so that prox = mean over the group of (z + strength * pull). The group is -1 where the entry was
// left out, and may be where sparsemax of the prox is 0. With a strength of 0 ties are not grouped.
//
// The largest entry of the prox is at most 2 * strength below that of z, and the threshold of sparsemax within 1 of
// it. An entry 2 * strength below that acts as a wall: its exact value does not affect its neighbours.
template <class T>
void tv_groups_rows(const T *z, int64_t *group, T *pull, int64_t rows, int64_t k, const T *strength_per_row,
                    int threads) {
  each_prox(rows, threads, [=](Prox &prox, int64_t row) {
    const T *x = z + row * k;
    int64_t *g = group + row * k;
    T *p = pull + row * k;
    std::fill(g, g + k, int64_t(-1));
    std::fill(p, p + k, T(0));
    const double given = static_cast<double>(strength_per_row[row]);
    const double force = given > 0 ? given : 0.0;  // NaN too: the row is rebuilt as NaN
    const double floor = static_cast<double>(*std::max_element(x, x + k)) - 1.25 - 4 * force;
    int64_t number = 0;
    const auto solve_segment = [&](bool wall_left, bool wall_right) {
      const int64_t n = static_cast<int64_t>(prox.value.size());
      if (n == 0) return;
      prox.value.front() -= wall_left ? force : 0.0;
      prox.value.back() -= wall_right ? force : 0.0;
      prox.total_variation(force);
      for (int64_t i = 0; i < n; ++i) {
        const int before = i > 0 ? prox.rise[i - 1] : wall_left, after = i < n - 1 ? prox.rise[i] : -wall_right;
        number += i > 0 && (before != 0 || force == 0);
        g[prox.place[i]] = number;
        p[prox.place[i]] = static_cast<T>(after - before);
      }
      ++number;
      prox.value.clear(), prox.place.clear();
    };
    bool wall = false;
    prox.value.clear(), prox.place.clear();
    for (int64_t j = 0; j < k; ++j) {
      if (x[j] == -std::numeric_limits<T>::infinity()) continue;
      if (x[j] >= floor) prox.value.push_back(x[j]), prox.place.push_back(j);
      else solve_segment(wall, true), wall = true;
    }
    solve_segment(wall, false);
  });
}

// As for total variation, with the rank of an entry for its pull. In a group that reaches within 1 of the largest
// entry no score lies more than strength * (k - 1) below that.
template <class T>
void oscar_groups_rows(const T *z, int64_t *group, T *pull, int64_t rows, int64_t k, const T *strength_per_row,
                       int threads) {
  each_prox(rows, threads, [=](Prox &prox, int64_t row) {
    const T *x = z + row * k;
    int64_t *g = group + row * k;
    T *p = pull + row * k;
    std::fill(g, g + k, int64_t(-1));
    std::fill(p, p + k, T(0));
    const double given = static_cast<double>(strength_per_row[row]);
    const double tilt = given > 0 ? given : 0.0;
    const int64_t n =
        prox.read(x, k, static_cast<double>(*std::max_element(x, x + k)) - 1.25 - tilt * static_cast<double>(k));
    prox.oscar(tilt);
    int64_t number = 0;
    for (int64_t r = 0; r < n; ++r) {
      number += r > 0 && (prox.rise[r - 1] != 0 || tilt == 0);
      const int64_t j = prox.place[prox.order[r].second];
      g[j] = number;
      p[j] = static_cast<T>(r);
    }
  });
}

}  // namespace fewfold
