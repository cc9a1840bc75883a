// What an instruction set offers: one table of functions per set, filled by kernels_*.cpp, chosen at import.
#pragma once
#include <cstdint>

#include "touched.h"

namespace fewfold {

// Which member of the family a row belongs to.
struct Family {
  const double *alpha;  // one number, or one per row
  bool per_row, norm;   // norm: normmax, otherwise entmax
};

// The supports a forward pass leaves for its backward: per row how many (-1: look at the output), then their indices.
struct Kept {
  int32_t *first = nullptr;
  int64_t room = 0;  // numbers per row
};

// Supports of many rows, one after the other. Grown with realloc; whoever receives it frees it.
template <class T> struct Ragged {
  int64_t *index = nullptr;
  T *weight = nullptr;
  int64_t n = 0, room = 0;
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
};

// A heap of the best k met so far, n of them, the worst at its root.
template <class T> struct Best {
  T *score;
  int64_t *id, k, n;
};

// Vectors as bytes: vector i is step[i] code[i], up to an error of length slack[i].
struct Bytes {
  int64_t width;  // a multiple of 32
  const int8_t *code;
  const float *step, *slack;
};
struct ByteQuery {
  const int16_t *code;
  float scale, norm;
};

template <class T> struct Table {
  bool (*forward)(  // whether some row had infinite scores, which leave it no gradient
      const T *x, T *p, int64_t rows, int64_t k, const Family &f, Kept kept);
  void (*backward)(const T *p, const T *g, T *out, int64_t rows, int64_t k, const Family &f, Kept kept);
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
  bool (*best_of)(Best<T> &best, const T *x, int64_t n, int64_t base, const bool *allowed);
  void (*best_sorted)(Best<T> &best);
};

struct Tables {
  const char *name;
  Table<float> f32;
  Table<double> f64;
  int64_t (*draw)(  // the first row whose scores were no numbers, or -1
      const Cells &at, const float *scores, int64_t width, int64_t first, int64_t last, int64_t n, uint64_t seed,
      int64_t *ids, float *log_q, double *log_z);
  int64_t (*cell_log_probs)(const Cells &at, const float *scores, int64_t width, int64_t first, int64_t last, float *out);
  void (*mix_cells)(const float *x, int64_t rows, int64_t cells, int64_t first, int64_t last, float *out);
  bool (*within)(const int64_t *ids, int64_t n, int64_t size);
  void (*nearest)(const float *points, int64_t stride, int64_t n, int64_t d, const float *centres, const float *half,
                  int64_t k, int64_t *code);
  void (*byte_scores)(const Bytes &at, const ByteQuery &q, const bool *allowed, int64_t first, int64_t last, float *high);
  int64_t (*above)(const float *x, int64_t n, float bar, int64_t *out);
};

extern const Tables *tables;  // those of this processor
template <class T> const Table<T> &table();
template <> inline const Table<float> &table() { return tables->f32; }
template <> inline const Table<double> &table() { return tables->f64; }

extern const Tables generic_tables;
#if defined(__x86_64__)
extern const Tables avx2_tables, avx512_tables;
#endif

}  // namespace fewfold
