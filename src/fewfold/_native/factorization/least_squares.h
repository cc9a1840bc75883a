// Batched small dense least squares: products of narrow matrices, Cholesky factors, regressions.
//
// All arithmetic is done by one micro-kernel: `tile` adds a product of two panels to HIGH rows of a matrix, all sums in
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
constexpr int HIGH = 8, WIDE = 3;  // rows and vectors of a tile, chosen so that the accumulators fit the registers
#elif defined(FEWFOLD_AVX2)
constexpr int HIGH = 4, WIDE = 2;
#else
constexpr int HIGH = 4, WIDE = 1;
#endif

// Accumulators stay in registers only if these loops are unrolled before register allocation.
#if defined(__GNUC__)
#define FEWFOLD_UNROLL _Pragma("GCC unroll 16")
#else
#define FEWFOLD_UNROLL
#endif

// c (HIGH, W vectors) += by * a' b for panels of n rows: HIGH numbers of a, W vectors of b.
template <int W>
inline void tile(const float *a, int64_t a_apart, const float *b, int64_t b_apart, int64_t n, float by, float *c,
                 int64_t between) {
  V sum[HIGH][W];
  FEWFOLD_UNROLL for (int r = 0; r < HIGH; ++r) {
    FEWFOLD_UNROLL for (int w = 0; w < W; ++w) sum[r][w] = V::of(0.f);
  }
  for (int64_t k = 0; k < n; ++k, a += a_apart, b += b_apart) {
    V x[W];
    FEWFOLD_UNROLL for (int w = 0; w < W; ++w) x[w] = V::load(b + w * V::N);
    FEWFOLD_UNROLL for (int r = 0; r < HIGH; ++r) {
      const V y = V::of(a[r]);
      FEWFOLD_UNROLL for (int w = 0; w < W; ++w) sum[r][w] = V::fma(y, x[w], sum[r][w]);
    }
  }
  const V scale = V::of(by);
  FEWFOLD_UNROLL for (int r = 0; r < HIGH; ++r) {
    FEWFOLD_UNROLL for (int w = 0; w < W; ++w) {
      float *to = c + r * between + w * V::N;
      V::fma(sum[r][w], scale, V::load(to)).store(to);
    }
  }
}

// HIGH rows of c from column `first`, a multiple of V::N, to `last`.
inline void stripe(const float *a, int64_t a_apart, const float *b, int64_t b_apart, int64_t n, float by, float *c,
                   int64_t between, int64_t first, int64_t last) {
  int64_t j = first;
  for (; j + WIDE * V::N <= last; j += WIDE * V::N) tile<WIDE>(a, a_apart, b + j, b_apart, n, by, c + j, between);
  if constexpr (WIDE > 2)
    if (j + 2 * V::N <= last) tile<2>(a, a_apart, b + j, b_apart, n, by, c + j, between), j += 2 * V::N;
  for (; j < last; j += V::N) tile<1>(a, a_apart, b + j, b_apart, n, by, c + j, between);
}

inline int64_t whole(int64_t i) { return i / V::N * V::N; }

// The upper triangle of c (m, m), and `more` numbers behind its columns, += x' x for n rows of x. Of c only the first
// `high` rows, in whole tiles: the rows below are zero.
inline void add_products(const float *x, int64_t apart, int64_t n, int64_t high, int64_t m, int64_t more, float *c,
                         int64_t between) {
  for (int64_t i = 0; i < high; i += HIGH)
    stripe(x + i, apart, x, apart, n, 1.f, c + i * between, between, whole(i), m + more);
}

// a = u' u for the upper triangle of a (m, m), m a multiple of PAD, in place; PAD numbers behind the columns, right-hand
// sides, become u'^-1 of themselves. `inverse` are those of the diagonal. A pivot that rounding has made too small to
// divide by is replaced: the answer stays finite. Only the first `high` rows, in whole tiles: below them a is diagonal.
inline void factorise(float *a, int64_t high, int64_t m, int64_t between, float *inverse) {
  for (int64_t i = 0; i < high; i += HIGH) {
    stripe(a + i, between, a, between, i, -1.f, a + i * between, between, whole(i), m + PAD);
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

// The x of u x = y, where y is the number behind the columns of each row, and zero from row `high` on.
inline void solve_upper(const float *u, int64_t high, int64_t m, int64_t between, const float *inverse, float *x) {
  for (int64_t i = 0; i < m; ++i) x[i] = 0.f;
  for (int64_t i = high; i-- > 0;) {
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

constexpr int64_t EARLY = 6;  // prefetch distance in rows of the table

FEWFOLD_INLINE void prefetch_row(const Regressions &q, int64_t p, int64_t last) {
  if (p < last) prefetch_range<3>(q.table + q.id[p] * q.d, q.d);
}

// At least as many equations as unknowns: (G + X' C X) x = X' C 1, where the rows of X are those of the table.
inline void regress_long(const Regressions &q, int64_t row, float *workspace) {
  const int64_t m = padded(q.d), apart = pitch(q.d), first = q.offset[row], last = q.offset[row + 1];
  float *a = workspace, *x = a + m * apart, *inverse = x + (m > CHUNK ? m : CHUNK) * apart;
  clear(a, m * apart);
  for (int64_t k = 0; k < m; ++k) a[k * apart + k] = k < q.d ? q.gram[k] + q.ridge[row] : 1.f;
  for (int64_t begin = first; begin < last; begin += CHUNK) {
    const int64_t n = last - begin < CHUNK ? last - begin : CHUNK;
    for (int64_t i = 0; i < n; ++i) {
      prefetch_row(q, begin + i + EARLY, last);
      const float by = q.weight ? std::sqrt(q.weight[begin + i]) : 1.f;
      copy_row(q.table + q.id[begin + i] * q.d, q.d, by, x + i * apart);
      clear(x + i * apart + m, PAD);
      x[i * apart + m] = by;  // so that the last column is X' C 1
    }
    add_products(x, apart, n, m, m, PAD, a, apart);
  }
  factorise(a, m, m, apart, inverse);
  float *answer = inverse + apart;
  solve_upper(a, m, m, apart, inverse, answer);
  for (int64_t k = 0; k < q.d; ++k) q.out[row * q.d + k] = answer[k];
}

// Column i of `to`, of leading dimension `apart`, is row i of the table scaled by `by` (d).
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

// Fewer equations than unknowns: x = D^-1 X' z with (C^-1 + X D^-1 X') z = 1 and D = G + ridge, which is diagonal.
inline void regress_short(const Regressions &q, int64_t row, float *workspace) {
  const int64_t first = q.offset[row], n = q.offset[row + 1] - first, m = padded(n), apart = pitch(n);
  float *a = workspace, *x = a + padded(q.d) * pitch(q.d);
  float *inverse = x + (padded(q.d) > CHUNK ? padded(q.d) : CHUNK) * pitch(q.d);
  float *z = inverse + pitch(q.d), *by = z + pitch(q.d), *answer = by + pitch(q.d);
  for (int64_t k = 0; k < q.d; ++k) by[k] = 1.f / std::sqrt(q.gram[k] + q.ridge[row]);
  turned_rows(q, first, n, by, x, apart);
  clear(a, m * apart);
  for (int64_t i = 0; i < m; ++i) {
    a[i * apart + i] = i < n && q.weight ? 1.f / q.weight[first + i] : 1.f;
    a[i * apart + m] = i < n ? 1.f : 0.f;
  }
  add_products(x, apart, q.d, n, m, 0, a, apart);
  factorise(a, n, m, apart, inverse);
  solve_upper(a, n, m, apart, inverse, z);
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

// sum_j a[j] b[j]
inline float dot(const float *a, const float *b, int64_t n) {
  V sum = V::of(0.f), more = V::of(0.f);
  int64_t j = 0;
  for (; j + 2 * V::N <= n; j += 2 * V::N) {
    sum = V::fma(V::load(a + j), V::load(b + j), sum);
    more = V::fma(V::load(a + j + V::N), V::load(b + j + V::N), more);
  }
  for (; j < n; j += V::N) {
    const int left = static_cast<int>(n - j < V::N ? n - j : V::N);
    sum = V::fma(V::load(a + j, left, 0.f), V::load(b + j, left, 0.f), sum);
  }
  return (sum + more).sum();
}

constexpr int64_t PANEL_ROWS = 96;  // rows of a block at a time, which fit into the L1 cache

// One step of block coordinate descent (Rendle, Krichene, Zhang, Koren 2021, iALS++): the columns of x in blocks, each
// solved exactly with the others fixed, warm-started from the last iteration.
inline void regress_blocks(const Regressions &q, int64_t row, float *workspace) {
  const int64_t first = q.offset[row], n = q.offset[row + 1] - first, d = q.d;
  const int64_t blocks = (d + BLOCK - 1) / BLOCK, width = padded((d + blocks - 1) / blocks);
  const int64_t apart = pitch(width);
  float *a = workspace, *packed = a + width * apart, *inverse = packed + PANEL_ROWS * apart, *move = inverse + apart;
  float *x = move + apart, *rest = x + pitch(d);
  float *out = q.out + row * d;
  clear(x, padded(d));
  for (int64_t j = 0; j < d; ++j) {
    const V by = V::of(out[j]);
    const float *from = q.rotation + j * pitch(d);
    for (int64_t k = 0; k < d; k += V::N) V::fma(by, V::load(from + k), V::load(x + k)).store(x + k);
  }
  for (int64_t p = 0; p < n; ++p) {
    prefetch_row(q, first + p + EARLY, first + n);
    rest[p] = 1.f - dot(x, q.table + q.id[first + p] * d, d);
  }
  for (int64_t begin = 0; begin < d; begin += width) {
    const int64_t here = d - begin < width ? d - begin : width;
    const float *table = q.table + begin;
    clear(a, width * apart);
    for (int64_t k = 0; k < width; ++k) {
      const float ridge = k < here ? q.gram[begin + k] + q.ridge[row] : 1.f;
      a[k * apart + k] = ridge;
      a[k * apart + width] = k < here ? -ridge * x[begin + k] : 0.f;
    }
    for (int64_t start = 0; start < n; start += PANEL_ROWS) {
      const int64_t count = n - start < PANEL_ROWS ? n - start : PANEL_ROWS;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t p = start + i;
        if (p + EARLY < n) prefetch_range<3>(table + q.id[first + p + EARLY] * d, here);
        const float by = q.weight ? std::sqrt(q.weight[first + p]) : 1.f;
        float *to = packed + i * apart;
        clear(to, width + PAD);
        copy_row(table + q.id[first + p] * d, here, by, to);
        to[width] = by * rest[p];
      }
      add_products(packed, apart, count, width, width, PAD, a, apart);
    }
    factorise(a, width, width, apart, inverse);
    solve_upper(a, width, width, apart, inverse, move);
    for (int64_t k = 0; k < here; ++k) x[begin + k] += move[k];
    if (begin + width < d)
      for (int64_t p = 0; p < n; ++p) rest[p] -= dot(move, table + q.id[first + p] * d, here);
  }
  for (int64_t k = 0; k < d; ++k) out[k] = x[k];
}

inline void regress(const Regressions &q, int64_t first, int64_t last, float *workspace) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = q.offset[row + 1] - q.offset[row];
    if (n == 0) {
      for (int64_t k = 0; k < q.d; ++k) q.out[row * q.d + k] = 0.f;
    } else if (q.rotation && in_blocks(n, q.d)) {
      regress_blocks(q, row, workspace);
    } else if (padded(n) < padded(q.d)) {
      regress_short(q, row, workspace);
    } else {
      regress_long(q, row, workspace);
    }
  }
}

// ---- products of tables -------------------------------------------------------------------------------------------------

inline void add_gram(const float *x, int64_t rows, int64_t d, double *sum, float *workspace) {
  const int64_t m = padded(d), apart = pitch(d);
  float *a = workspace, *packed = a + m * apart;
  for (int64_t begin = 0; begin < rows; begin += CHUNK) {
    const int64_t n = rows - begin < CHUNK ? rows - begin : CHUNK;
    for (int64_t i = 0; i < n; ++i) copy_row(x + (begin + i) * d, d, 1.f, packed + i * apart);
    clear(a, m * apart);
    add_products(packed, apart, n, m, m, 0, a, apart);
    for (int64_t i = 0; i < d; ++i)
      for (int64_t j = i; j < d; ++j) sum[i * d + j] += static_cast<double>(a[i * apart + j]);
  }
}

inline void multiply(float *x, int64_t rows, int64_t d, const float *b, float *workspace) {
  const int64_t m = padded(d), apart = pitch(d);
  float *packed = workspace, *product = packed + PAD * apart;
  for (int64_t begin = 0; begin < rows; begin += HIGH) {
    const int64_t n = rows - begin < HIGH ? rows - begin : HIGH;
    for (int64_t i = 0; i < HIGH; ++i)
      for (int64_t k = 0; k < d; ++k) packed[k * HIGH + i] = i < n ? x[(begin + i) * d + k] : 0.f;
    clear(product, HIGH * apart);
    stripe(packed, HIGH, b, apart, d, 1.f, product, apart, 0, m);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < d; ++j) x[(begin + i) * d + j] = product[i * apart + j];
  }
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
