// Function tables: one per instruction set, filled by kernels_*.cpp, selected at import.
#pragma once
#include <cstdint>

#include "touched.h"

namespace fewfold {

// Which member of the family a row belongs to.
struct Family {
  const double *alpha;  // one number, or one per row
  bool per_row, norm;   // norm: normmax, otherwise entmax
};

// Supports saved by the forward pass for backward: per row their size (-1: read the output instead), then the indices.
struct SavedSupport {
  int32_t *first = nullptr;
  int64_t capacity = 0;  // numbers per row
};

// Supports of many rows, one after the other. Grown with realloc; the caller frees it.
template <class T> struct Ragged {
  int64_t *index = nullptr;
  T *weight = nullptr;
  int64_t n = 0, capacity = 0;
};

// An inverted index: items by cell, cells by the codewords they share.
struct Cells {
  int64_t cells, codebooks;
  const int32_t *code;      // (codebooks, cells): where the scores of a query hold those of its codewords
  const float *log_mass;    // (cells): of the items in it
  const int64_t *start;     // (cells + 1)
  const int32_t *item;      // by cell
  const float *accept;      // alias tables inside the cells; null where all items are alike
  const int32_t *other;
  const float *log_share;   // log mass of every item, by cell, or null
  int64_t places;           // items in all cells
};

// A heap of the best k entries so far, n of them in use, the worst at its root.
template <class T> struct Best {
  T *score;
  int64_t *id, k, n;
};

// Vectors as bytes: vector i is step[i] code[i], up to an error of length slack[i]; reach[i] bounds its length.
struct Bytes {
  int64_t width;  // a multiple of 32
  const int8_t *code;
  const float *step, *slack, *reach;
};
// Queries as integers of 16 bits or, if `bytes` is given, of 8. Then the first `split` columns, a multiple of 64, are in units
// of 2^shift. The error is what rounding to bytes has changed, its length.
struct ByteQueries {
  int64_t n, split;
  const int16_t *code;  // (n, width)
  const int8_t *bytes;  // (n, width rounded up to 64), with zeros at the end
  const int32_t *shift, *offset;  // (n,) offset: minus 128 times the sum of the integers
  const float *scale, *norm, *error;  // (n,)
};

// Anchors with their weights, term after term, and the bags they sum up to. Without offsets a bag is one id.
template <class T> struct Terms {
  const T *weight;
  const int32_t *slot;
  int64_t each;           // terms of an id
  const int64_t *offset;  // ids of a bag, or null
  const T *by;            // a number per bag, or null: one
  int64_t start(int64_t bag) const { return (offset ? offset[bag] : bag) * each; }
  T scale(int64_t bag) const { return by ? by[bag] : T(1); }
};

// A number that a template can read: the standard one would be a template of the standard library.
template <int N> struct Count {
  static constexpr int value = N;
};

// Points of the simplex, each with a Gaussian of independent scores; rows are strided.
template <class T> struct Scored {
  const T *y, *loc, *scale;
  int64_t n, apart, loc_apart, scale_apart;
};

// Logits of Bernoulli distributions, n for each pair, and the data whose row `row[i]` pair i is compared with.
template <class T> struct Logits {
  const T *logits, *target;
  const int64_t *row;
  int64_t n;
};

template <class T> struct Table {
  bool (*forward)(  // whether some row had infinite scores, and so no gradient
      const T *x, T *p, int64_t rows, int64_t k, const Family &f, SavedSupport saved);
  void (*backward)(const T *p, const T *g, T *out, int64_t rows, int64_t k, const Family &f, SavedSupport saved);
  void (*support)(const T *x, int64_t rows, int64_t k, const Family &f, Ragged<T> &out, int64_t *count);
  void *(*streams_new)(int64_t rows);
  void (*streams_free)(void *streams, int64_t rows);
  void (*streams_push)(void *streams, const T *x, int64_t first, int64_t last, int64_t size, int64_t stride,
                       int64_t base, double alpha, int64_t most);
  int64_t (*streams_take)(void *streams, int64_t row, double alpha, int64_t *column, T *score);
  bool (*budget)(const T *x, T *p, int64_t rows, int64_t n, const double *k, bool per_row);
  void (*budget_backward)(const T *p, const T *g, T *out, int64_t rows, int64_t n);
  void (*picked_dots)(const T *query, const T *table, int64_t d, const int64_t *ids, int64_t n, int64_t later, T *scores);
  void (*picked_pulls)(const T *query, const T *table, int64_t d, const int64_t *ids, int64_t n, int64_t later,
                       const T *by, T scale, T *pull, T *values);
  T (*soften)(T *x, const T *shift, int64_t n);
  void (*bag)(const T *table, int64_t d, const int64_t *ids, int64_t n, int64_t later, T by, T *out);
  void (*unbag)(const T *g, int64_t d, int64_t n, T by, T *values);
  void (*touch)(const Touched<T> &t, const Update &s, int64_t first, int64_t last);
  void (*pay)(const Touched<T> &t, const Update &s, const int64_t *rows, const T *by, int64_t first, int64_t last);
  bool (*best_of)(Best<T> &best, const T *x, int64_t n, int64_t base, const bool *allowed);
  void (*best_sorted)(Best<T> &best);
  void (*mix)(const T *anchors, int64_t d, const Terms<T> &t, int64_t first, int64_t last, T *out);
  void (*mix_dots)(const T *anchors, int64_t d, const Terms<T> &t, const T *g, int64_t first, int64_t last, T *values);
  void (*mix_pull)(const T *g, int64_t stride, const Terms<T> &t, int64_t first, int64_t last, T *to, int64_t d,
                   int64_t width);
  bool (*tile_marks)(const T *x, int64_t stride, int64_t rows, int64_t n, T bar, uint8_t *mark);
  void (*tile_out)(const T *tile, int64_t width, int64_t rows, int64_t across, T *out, int64_t stride);
  void (*tile_in)(const T *x, int64_t stride, int64_t rows, int64_t across, T bar, T *tile, int64_t width);
  void (*mix_scores)(const T *query, const T *weight, const int32_t *slot, int64_t s, int64_t n, T *scores);
  void (*mix_score_pulls)(const T *query, const T *weight, const int32_t *slot, int64_t s, int64_t n, const T *by,
                          T scale, T *pull, T *values);
  int64_t (*expected_products)(const T *shift, const T *slope, int64_t rows, int64_t n, T *out);  // expected.h
  int64_t (*log_densities)(const Scored<T> &at, int64_t first, int64_t last, T *out);                // densities.h
  void (*bernoulli_costs)(const Logits<T> &at, int64_t first, int64_t last, T *out, T *slope);  // bernoulli.h
  void (*bernoulli_pulls)(const Logits<T> &at, const T *grad, int64_t first, int64_t last, T *out);
};

struct Tables {
  const char *name;
  Table<float> f32;
  Table<double> f64;
  int64_t (*draw)(  // the first row with non-finite scores, or -1
      const Cells &at, const float *scores, int64_t width, int64_t first, int64_t last, int64_t n, uint64_t seed,
      int64_t start, int64_t *ids, float *log_q, double *log_z);
  int64_t (*cell_log_probs)(const Cells &at, const float *scores, int64_t width, int64_t first, int64_t last, float *out);
  void (*mix_cells)(const float *x, int64_t rows, int64_t cells, int64_t first, int64_t last, float *out);
  bool (*within)(const int64_t *ids, int64_t n, int64_t size);
  void (*nearest)(const float *points, int64_t stride, int64_t n, int64_t d, const float *centres, const float *half,
                  int64_t k, int64_t *code);
  void (*byte_scores)(const Bytes &at, const ByteQueries &q, const bool *allowed, int64_t first, int64_t last, float *high,
                      int64_t stride);
  bool (*byte_products)();  // whether byte_scores takes queries of bytes
  int64_t (*above)(const float *x, int64_t n, float bar, int64_t *out);
  void (*cholesky_rows)(float *l, int64_t stride, int64_t first, int64_t last, float least, float *inverse);  // cholesky.h
  void (*solve_rows)(const float *l, int64_t stride, int64_t first, int64_t last, const float *inverse, float *y);
  void (*solve_columns)(const float *l, int64_t stride, int64_t n, const float *inverse, float *x);
};

extern const Tables *tables;  // those of the selected instruction set
template <class T> const Table<T> &table();
template <> inline const Table<float> &table() { return tables->f32; }
template <> inline const Table<double> &table() { return tables->f64; }

extern const Tables generic_tables;
#if defined(__x86_64__)
extern const Tables avx2_tables, avx512_tables;
#endif

}  // namespace fewfold
