// The inner loops of assignments: the two best columns of a row, one step of a shortest path search, projection on the
// simplex, and the factor of a Laplacian matrix.
#pragma once
#include "assign_table.h"
#include "simd.h"

namespace fewfold {
namespace FEWFOLD_ISA {

alignas(64) static constexpr double COUNT[8] = {0, 1, 2, 3, 4, 5, 6, 7};

// Whether all of x are numbers below +inf.
inline bool usable(const double *x, int64_t n) {
  using V = Vec<double>;
  const V most = V::of(-LOWEST<double>);
  int64_t i = 0;
  for (; i + V::N <= n; i += V::N)
    if (V::bits(V::over(V::load(x + i), most))) return false;
  const int rest = static_cast<int>(n - i);
  return !rest || !V::bits(V::over(V::load(x + i, rest, 0.0), most));
}

inline Offer best_two(const double *gain, const double *price, int64_t n) {
  using V = Vec<double>;
  V best = V::of(-INF<double>), second = best, at = V::of(0), here = V::load(COUNT);
  const V step = V::of(V::N);
  for (int64_t j = 0; j < n; j += V::N) {
    const int rest = static_cast<int>(n - j);
    const V x = rest >= V::N ? V::load(gain + j) - V::load(price + j)
                             : V::load(gain + j, rest, -INF<double>) - V::load(price + j, rest, 0.0);
    const auto more = V::gt(x, best);
    second = V::max(second, V::min(best, x));
    at = V::pick(more, here, at);
    best = V::max(best, x);
    here = here + step;
  }
  double first[V::N], next[V::N], where[V::N];
  best.store(first);
  second.store(next);
  at.store(where);
  Offer found{first[0], next[0], static_cast<int32_t>(where[0])};
  for (int i = 1; i < V::N; ++i) {
    if (first[i] > found.value) {
      found.second = found.value > next[i] ? found.value : next[i];
      found.value = first[i];
      found.at = static_cast<int32_t>(where[i]);
    } else if (first[i] > found.second) {
      found.second = first[i];
    }
  }
  return found;
}

// Columns may be reached through this row at `base` less its gain: `reach` and `from` are updated. Columns that are
// done have reach -inf. The nearest of the others is returned.
inline Offer nearest_column(const double *gain, const double *price, int64_t n, double base, int32_t row, double *reach,
                           double *from) {
  using V = Vec<double>;
  const V start = V::of(base), mine = V::of(row), none = V::of(-INF<double>), far = V::of(INF<double>);
  V best = far, at = V::of(-1), here = V::load(COUNT);
  const V step = V::of(V::N);
  for (int64_t j = 0; j < n; j += V::N) {  // `reach` and `from` are padded to whole vectors
    const int rest = static_cast<int>(n - j);
    const V x = rest >= V::N ? V::load(gain + j) - V::load(price + j)
                             : V::load(gain + j, rest, -INF<double>) - V::load(price + j, rest, 0.0);
    const V through = start - x;
    V now = V::load(reach + j);
    const auto nearer = V::gt(now, through);
    if (V::bits(nearer)) {
      now = V::pick(nearer, through, now);
      now.store(reach + j);
      V::pick(nearer, mine, V::load(from + j)).store(from + j);
    }
    now = V::pick(V::gt(now, none), now, far);
    const auto less = V::gt(best, now);
    at = V::pick(less, here, at);
    best = V::min(best, now);
    here = here + step;
  }
  double first[V::N], where[V::N];
  best.store(first);
  at.store(where);
  Offer found{first[0], 0, static_cast<int32_t>(where[0])};
  for (int i = 1; i < V::N; ++i)
    if (first[i] < found.value) found = {first[i], 0, static_cast<int32_t>(where[i])};
  return found;
}

// to = [gain - price - level]_+, with the level, not below `floor`, at which it sums to one; the level is returned.
// `level` is a guess. Newton's method: after one step the level is too low, and then it rises to the right one.
inline double onto_simplex(const double *gain, const double *price, int64_t n, double floor, double level, double *to) {
  using V = Vec<double>;
  V top = V::of(-INF<double>);
  for (int64_t j = 0; j < n; j += V::N) {
    const int rest = static_cast<int>(n - j);
    if (rest >= V::N) {
      const V x = V::load(gain + j) - V::load(price + j);
      x.store(to + j);
      top = V::max(top, x);
    } else {
      const V x = V::load(gain + j, rest, -INF<double>) - V::load(price + j, rest, 0.0);
      x.store(to + j, rest);
      top = V::max(top, x);
    }
  }
  const double most = top.top();
  if (!(level < most)) level = most - 1;
  double before = -1;
  for (int64_t turn = 0; turn < n + 2; ++turn) {
    V sum = V::of(0), number = V::of(0);
    const V least = V::of(level), one = V::of(1);
    for (int64_t j = 0; j < n; j += V::N) {
      const int rest = static_cast<int>(n - j);
      const V x = rest >= V::N ? V::load(to + j) : V::load(to + j, rest, -INF<double>);
      const auto in = V::gt(x, least);
      sum = V::add_where(in, sum, x - least);
      number = V::add_where(in, number, one);
    }
    const double many = number.sum();
    if (!(many > 0)) break;  // rounding: the level is that of the largest
    const double rise = (sum.sum() - 1) / many;
    level += rise;
    if (many == before || rise == 0) break;
    if (turn) before = many;
    if (level < most - 1) level = most - 1, before = -1;
  }
  if (level < floor) level = floor;
  const V least = V::of(level), zero = V::of(0);
  for (int64_t j = 0; j < n; j += V::N) {
    const int rest = static_cast<int>(n - j);
    if (rest >= V::N)
      V::max(V::load(to + j) - least, zero).store(to + j);
    else
      V::max(V::load(to + j, rest, -INF<double>) - least, zero).store(to + j, rest);
  }
  return level;
}

// The places where gain less price exceeds a level; `to` is padded by eight.
inline int64_t support_of(const double *gain, const double *price, int64_t n, double level, int32_t *to) {
  using V = Vec<double>;
  int64_t found = 0;
  const V least = V::of(level);
  for (int64_t j = 0; j < n; j += V::N) {
    const int rest = static_cast<int>(n - j);
    const V x = rest >= V::N ? V::load(gain + j) - V::load(price + j)
                             : V::load(gain + j, rest, -INF<double>) - V::load(price + j, rest, 0.0);
    const auto in = V::gt(x, least);
    if (!V::bits(in)) continue;
    V::pack_index(to + found, in, static_cast<int32_t>(j));
    found += V::count(in);
  }
  return found;
}

// l, whose lower triangle is a positive semidefinite matrix by columns, becomes its Cholesky factor. Where it is
// singular (a pivot is at most `least` times the original diagonal) the solution is set to zero.
inline void factorise(double *l, int64_t n, int64_t ld, double least, double *diagonal) {
  using V = Vec<double>;
  for (int64_t c = 0; c < n; ++c) diagonal[c] = l[c * ld + c];
  for (int64_t c = 0; c < n; ++c) {
    double *column = l + c * ld;
    if (!(column[c] > least * diagonal[c])) {
      column[c] = INF<double>;
      for (int64_t r = c + 1; r < n; ++r) column[r] = 0;
      continue;
    }
    const double corner = std::sqrt(column[c]), by = 1 / corner;
    column[c] = corner;
    for (int64_t r = c + 1; r < n; ++r) column[r] *= by;
    for (int64_t k = c + 1; k < n; ++k) {
      if (column[k] == 0) continue;
      double *to = l + k * ld;
      const V each = V::of(-column[k]);
      int64_t r = k;
      for (; r + V::N <= n; r += V::N) V::fma(each, V::load(column + r), V::load(to + r)).store(to + r);
      const int rest = static_cast<int>(n - r);
      if (rest) V::fma(each, V::load(column + r, rest, 0.0), V::load(to + r, rest, 0.0)).store(to + r, rest);
    }
  }
}

constexpr AssignmentTable assignment_table() {
  return {usable, best_two, nearest_column, onto_simplex, support_of, factorise};
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
