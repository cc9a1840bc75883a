// Small dense least squares, many of them: products of narrow matrices, Cholesky factors, regressions.
//
// One routine does the arithmetic of all: `tile` adds a product of two panels to a few rows of a matrix, all sums in
// registers. Gram matrices are products of a panel with itself, and a Cholesky factor, row by row of blocks, subtracts the
// product of its finished rows with themselves. The order of additions depends on the sizes alone.
#pragma once
#include "factorization.h"
#include "simd.h"
#include "turn.h"

namespace fewfold {
namespace FEWFOLD_ISA {

using V = Vec<float>;
#if defined(FEWFOLD_AVX512)
constexpr int HIGH = 8, WIDE = 3;  // of a tile: rows, and vectors across; as many sums as there are registers for
#elif defined(FEWFOLD_AVX2)
constexpr int HIGH = 4, WIDE = 2;
#else
constexpr int HIGH = 4, WIDE = 1;
#endif

// A panel whose number k of column i is at [k * along + i * across].
struct Panel {
  const float *at;
  int64_t along, across;
};

// c (HIGH, W vectors) += by * a' b, where b has rows of vectors `apart`.
template <int W>
inline void tile(Panel a, const float *b, int64_t apart, int64_t n, float by, float *c, int64_t between) {
  V sum[HIGH][W];
  for (int r = 0; r < HIGH; ++r)
    for (int w = 0; w < W; ++w) sum[r][w] = V::of(0.f);
  for (int64_t k = 0; k < n; ++k, b += apart) {
    V x[W];
    for (int w = 0; w < W; ++w) x[w] = V::load(b + w * V::N);
    const float *column = a.at + k * a.along;
    for (int r = 0; r < HIGH; ++r) {
      const V y = V::of(column[r * a.across]);
      for (int w = 0; w < W; ++w) sum[r][w] = V::fma(y, x[w], sum[r][w]);
    }
  }
  for (int r = 0; r < HIGH; ++r)
    for (int w = 0; w < W; ++w) {
      float *to = c + r * between + w * V::N;
      V::fma(sum[r][w], V::of(by), V::load(to)).store(to);
    }
}

// HIGH rows of c from column `first`, a multiple of V::N, to `last`.
inline void stripe(Panel a, const float *b, int64_t apart, int64_t n, float by, float *c, int64_t between, int64_t first,
                   int64_t last) {
  int64_t j = first;
  for (; j + WIDE * V::N <= last; j += WIDE * V::N) tile<WIDE>(a, b + j, apart, n, by, c + j, between);
  if constexpr (WIDE > 2)
    if (j + 2 * V::N <= last) tile<2>(a, b + j, apart, n, by, c + j, between), j += 2 * V::N;
  for (; j < last; j += V::N) tile<1>(a, b + j, apart, n, by, c + j, between);
}

inline int64_t whole(int64_t i) { return i / V::N * V::N; }

// The upper triangle of c (columns wide, and `more` numbers behind them) += x' x for n rows of x.
inline void add_products(const float *x, int64_t apart, int64_t n, int64_t columns, int64_t more, float *c,
                         int64_t between) {
  for (int64_t i = 0; i < columns; i += HIGH)
    stripe({x + i, apart, 1}, x, apart, n, 1.f, c + i * between, between, whole(i), columns + more);
}

// a = u' u for the upper triangle of a (m, m), m a multiple of PAD, in place; PAD numbers behind the columns, right-hand
// sides, become u'^-1 of themselves. `inverse` are those of the diagonal. A pivot that rounding has made too small to
// divide by is replaced: the answer stays finite.
inline void factorise(float *a, int64_t m, int64_t between, float *inverse) {
  for (int64_t i = 0; i < m; i += HIGH) {
    stripe({a + i, between, 1}, a, between, i, -1.f, a + i * between, between, whole(i), m + PAD);
    for (int64_t r = i; r < i + HIGH; ++r) {
      float *row = a + r * between;
      const float least = 1e-30f, pivot = row[r];
      inverse[r] = 1.f / std::sqrt(pivot > least ? pivot : least);
      const V scale = V::of(inverse[r]);
      for (int64_t j = whole(r); j < m + PAD; j += V::N) (V::load(row + j) * scale).store(row + j);
      for (int64_t s = r + 1; s < i + HIGH; ++s) {
        float *other = a + s * between;
        const V by = V::of(-row[s]);
        for (int64_t j = whole(s); j < m + PAD; j += V::N) V::fma(by, V::load(row + j), V::load(other + j)).store(other + j);
      }
    }
  }
}

// The x of u x = y, where y is the number behind the columns of each row.
inline void solve_upper(const float *u, int64_t m, int64_t between, const float *inverse, float *x) {
  for (int64_t i = 0; i < m; ++i) x[i] = 0.f;
  for (int64_t i = m; i-- > 0;) {
    const float *row = u + i * between;
    V sum = V::of(0.f);
    for (int64_t j = whole(i); j < m; j += V::N) sum = V::fma(V::load(row + j), V::load(x + j), sum);
    x[i] = (row[m] - sum.sum()) * inverse[i];
  }
}

inline void clear(float *x, int64_t n) {
  for (int64_t i = 0; i < n; i += V::N) V::of(0.f).store(x + i);
}

// to[j] = by * from[j], and zeros up to a multiple of PAD.
inline void copy_row(const float *from, int64_t d, float by, float *to) {
  const V scale = V::of(by);
  int64_t j = 0;
  for (; j + V::N <= d; j += V::N) (V::load(from + j) * scale).store(to + j);
  if (j < d) (V::load(from + j, static_cast<int>(d - j), 0.f) * scale).store(to + j), j += V::N;
  for (; j < padded(d); j += V::N) V::of(0.f).store(to + j);
}

// ---- one regression ---------------------------------------------------------------------------------------------------

constexpr int64_t EARLY = 6;  // rows of the table that are asked for before they are needed

FEWFOLD_INLINE void ask_row(const Regressions &q, int64_t p, int64_t last) {
  if (p < last) ask_for<3>(q.table + q.id[p] * q.d, q.d);
}

// From as many equations as there are unknowns: (G + X' C X) x = X' C 1, where the rows of X are those of the table.
inline void regress_long(const Regressions &q, int64_t row, float *room) {
  const int64_t m = padded(q.d), apart = pitch(q.d), first = q.offset[row], last = q.offset[row + 1];
  float *a = room, *x = a + m * apart, *inverse = x + (m > CHUNK ? m : CHUNK) * apart;
  clear(a, m * apart);
  for (int64_t k = 0; k < m; ++k) a[k * apart + k] = k < q.d ? q.gram[k] + q.ridge[row] : 1.f;
  for (int64_t begin = first; begin < last; begin += CHUNK) {
    const int64_t n = last - begin < CHUNK ? last - begin : CHUNK;
    for (int64_t i = 0; i < n; ++i) {
      ask_row(q, begin + i + EARLY, last);
      const float by = q.weight ? std::sqrt(q.weight[begin + i]) : 1.f;
      copy_row(q.table + q.id[begin + i] * q.d, q.d, by, x + i * apart);
      clear(x + i * apart + m, PAD);
      x[i * apart + m] = by;  // so that the last column is X' C 1
    }
    add_products(x, apart, n, m, PAD, a, apart);
  }
  factorise(a, m, apart, inverse);
  float *answer = inverse + apart;
  solve_upper(a, m, apart, inverse, answer);
  for (int64_t k = 0; k < q.d; ++k) q.out[row * q.d + k] = answer[k];
}

// Columns i of `to`, rows `apart` of each other, are the rows of the table scaled by `by` (d).
inline void turned_rows(const Regressions &q, int64_t first, int64_t n, const float *by, float *to, int64_t apart) {
  int64_t i = 0;
#if defined(FEWFOLD_AVX512) || defined(FEWFOLD_AVX2)
  for (; i < n; i += V::N) {
    const float *from[V::N];
    const int here = static_cast<int>(n - i < V::N ? n - i : V::N);
    for (int r = 0; r < V::N; ++r) from[r] = q.table + q.id[first + i + (r < here ? r : 0)] * q.d;
    for (int64_t k = 0; k < q.d; k += V::N) {
      const int left = static_cast<int>(q.d - k < V::N ? q.d - k : V::N);
      decltype(V::v) x[V::N];
      for (int r = 0; r < V::N; ++r) {
        V v = left == V::N ? V::load(from[r] + k) : V::load(from[r] + k, left, 0.f);
        x[r] = r < here ? v.v : V::of(0.f).v;
      }
      turn(x);
      for (int j = 0; j < left; ++j) (V{x[j]} * V::of(by[k + j])).store(to + (k + j) * apart + i);
    }
  }
#else
  for (; i < n; ++i) {
    const float *from = q.table + q.id[first + i] * q.d;
    for (int64_t k = 0; k < q.d; ++k) to[k * apart + i] = from[k] * by[k];
  }
#endif
  for (; i % PAD; ++i)
    for (int64_t k = 0; k < q.d; ++k) to[k * apart + i] = 0.f;
}

// From fewer equations than unknowns: x = D^-1 X' z with (C^-1 + X D^-1 X') z = 1 and D = G + ridge, which is diagonal.
inline void regress_short(const Regressions &q, int64_t row, float *room) {
  const int64_t first = q.offset[row], n = q.offset[row + 1] - first, m = padded(n), apart = pitch(n);
  float *a = room, *x = a + padded(q.d) * pitch(q.d), *inverse = x + (padded(q.d) > CHUNK ? padded(q.d) : CHUNK) * pitch(q.d);
  float *z = inverse + pitch(q.d), *by = z + pitch(q.d), *answer = by + pitch(q.d);
  for (int64_t k = 0; k < q.d; ++k) by[k] = 1.f / std::sqrt(q.gram[k] + q.ridge[row]);
  turned_rows(q, first, n, by, x, apart);
  clear(a, m * apart);
  for (int64_t i = 0; i < m; ++i) {
    a[i * apart + i] = i < n && q.weight ? 1.f / q.weight[first + i] : 1.f;
    a[i * apart + m] = i < n ? 1.f : 0.f;
  }
  add_products(x, apart, q.d, m, 0, a, apart);
  factorise(a, m, apart, inverse);
  solve_upper(a, m, apart, inverse, z);
  clear(answer, padded(q.d));
  for (int64_t i = 0; i < n; ++i) {
    const float *from = q.table + q.id[first + i] * q.d;
    const V scale = V::of(z[i]);
    int64_t k = 0;
    for (; k + V::N <= q.d; k += V::N) V::fma(scale, V::load(from + k), V::load(answer + k)).store(answer + k);
    for (; k < q.d; ++k) answer[k] += z[i] * from[k];
  }
  for (int64_t k = 0; k < q.d; ++k) q.out[row * q.d + k] = answer[k] * by[k] * by[k];
}

inline void regress(const Regressions &q, int64_t first, int64_t last, float *room) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = q.offset[row + 1] - q.offset[row];
    if (n == 0) {
      for (int64_t k = 0; k < q.d; ++k) q.out[row * q.d + k] = 0.f;
    } else if (padded(n) < padded(q.d)) {
      regress_short(q, row, room);
    } else {
      regress_long(q, row, room);
    }
  }
}

// ---- products of tables -------------------------------------------------------------------------------------------------

inline void add_gram(const float *x, int64_t rows, int64_t d, double *sum, float *room) {
  const int64_t m = padded(d), apart = pitch(d);
  float *a = room, *packed = a + m * apart;
  for (int64_t begin = 0; begin < rows; begin += CHUNK) {
    const int64_t n = rows - begin < CHUNK ? rows - begin : CHUNK;
    for (int64_t i = 0; i < n; ++i) copy_row(x + (begin + i) * d, d, 1.f, packed + i * apart);
    clear(a, m * apart);
    add_products(packed, apart, n, m, 0, a, apart);
    for (int64_t i = 0; i < d; ++i)
      for (int64_t j = i; j < d; ++j) sum[i * d + j] += static_cast<double>(a[i * apart + j]);
  }
}

inline void multiply(float *x, int64_t rows, int64_t d, const float *b, float *room) {
  const int64_t m = padded(d), apart = pitch(d);
  float *packed = room, *product = packed + PAD * apart;
  for (int64_t begin = 0; begin < rows; begin += HIGH) {
    const int64_t n = rows - begin < HIGH ? rows - begin : HIGH;
    clear(packed, HIGH * apart);
    for (int64_t i = 0; i < n; ++i) copy_row(x + (begin + i) * d, d, 1.f, packed + i * apart);
    clear(product, HIGH * apart);
    stripe({packed, 1, apart}, b, apart, d, 1.f, product, apart, 0, m);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < d; ++j) x[(begin + i) * d + j] = product[i * apart + j];
  }
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
