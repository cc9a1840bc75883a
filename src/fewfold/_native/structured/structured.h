// The function table of structured inference: one per instruction set, filled by structured_*.cpp.
#pragma once
#include <cstdint>

#include "assign_table.h"

namespace fewfold {

// A triangular factor L of a growing matrix, column-major with leading dimension ld: L[r, c] is at [c * ld + r], r >= c.
// `scores` and `ones` are L^-1 s and L^-1 1, updated with L; `inverse` holds the reciprocals of the diagonal.
struct Factor {
  double *l;
  int64_t ld;
  double *scores, *ones, *inverse;
};

// Columns and rows of trees over n words are padded for the root and for reading whole vectors past the end.
static constexpr int64_t tree_column(int64_t n) { return (n + 17) / 8 * 8; }
static constexpr int64_t tree_reals(int64_t n) { return (4 * n + 4) * tree_column(n) + 2 * n; }
static constexpr int64_t tree_wholes(int64_t n) { return 18 * n; }

// A chain of states: transitions[from, to], `between` numbers from those of the next position. `turned` has them by
// columns. The trace of viterbi takes `wide` numbers for each position and one more: states in whole vectors.
struct Chain {
  int64_t states, wide, between;
  const double *transitions, *turned, *start, *stop;
  double *reach, *most;
};

struct StructuredTable {
  // The number of parts structure i of `codes`, taken in this order, shares with `code`, or the sum of their `by`. Empty
  // slots of `code` are less than -1.
  void (*overlaps)(const int32_t *codes, const int32_t *order, int64_t count, int64_t slots, const int32_t *code,
                   const double *by, double *out);
  // Solves L x = b, b given in x. Accesses x and the columns of L up to n rounded up to 8, past their n numbers.
  void (*solve_lower)(const Factor &f, int64_t n, double *x);
  void (*solve_upper)(const Factor &f, int64_t n, double *x);  // solves L' x = b, b given in x
  void (*drop)(const Factor &f, int64_t n, int64_t which, double *spare);  // removes one row and column of L L'
  double (*dot)(const double *a, const double *b, int64_t n);
  // Chains: viterbi.h.
  int64_t (*viterbi)(const Chain &chain, const double *scores, const int64_t *where, int64_t layers);
  void (*trace)(const Chain &chain, const int64_t *where, int64_t layers, int64_t state, int32_t *code);
  bool (*any_nan)(const double *a, int64_t n);
  void (*count_step)(const double *off, const double *on, int64_t n, double score, double bonus, double *new_off,
                     double *new_on);
  // Trees: arborescence.h, eisner.h. `real` and `whole` are workspaces of tree_reals(n) and tree_wholes(n) numbers.
  double (*arborescence)(const double *scores, int64_t n, bool single, double *real, int32_t *whole, int32_t *heads);
  double (*eisner)(const double *scores, int64_t n, bool single, double *real, int32_t *whole, int32_t *heads);
  AssignmentTable assignment;  // assign.h
  // left = scores - by * mu (by null: one); returns the sum of by * mu^2
  double (*take_off)(const double *scores, const double *mu, const double *by, int64_t n, double *left);
  bool (*all_numbers)(const double *a, int64_t n);  // neither NaN nor -inf
};

const StructuredTable &structured();  // that of the selected instruction set

extern const StructuredTable generic_structured;
#if defined(__x86_64__)
extern const StructuredTable avx2_structured, avx512_structured;
#endif

}  // namespace fewfold
