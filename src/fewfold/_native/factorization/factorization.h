// The function table of matrix factorisation: one per instruction set, filled by factorization_*.cpp.
#pragma once
#include <cstdint>

namespace fewfold {

// d rounded up to whole vectors of any instruction set.
static constexpr int64_t PAD = 16;
static constexpr int64_t padded(int64_t d) { return (d + PAD - 1) / PAD * PAD; }
// Leading dimension of a matrix (row-major): an odd number of cache lines, so that a column does not map to a small
// number of cache sets. PAD extra numbers follow the columns of each row: right-hand sides, or unused.
static constexpr int64_t pitch(int64_t columns) { return padded(columns) + (padded(columns) / PAD % 2 ? 2 * PAD : PAD); }

static constexpr int64_t CHUNK = 256;  // rows of a table accumulated in single precision

// Ridge regressions: row r is the x that minimises, over the pairs p of the row,
//   sum_p weight[p] (1 - <x, table[id[p]]>)^2 + sum_k (gram[k] + ridge[r]) x_k^2
struct Regressions {
  const int64_t *offset, *id;
  const float *weight;  // null: all one
  const float *table;
  int64_t d;
  const float *gram, *ridge;  // (d), (rows); their sums are positive
  // Null, or (d, d) with rows pitch(d) apart: `out` times it is close to the solution. Long
  // rows then take one step from there, in blocks of columns; all others are solved exactly.
  const float *rotation;
  float *out;  // (rows, d)
};

static constexpr int64_t BLOCK = 64;  // columns, about, of a step in blocks
// Whether a row with this number of pairs is solved faster in blocks.
static constexpr bool in_blocks(int64_t n, int64_t d) { return padded(d) > BLOCK && n > BLOCK + BLOCK / 2; }

// Workspace sizes in numbers; `longest` is the longest row that is solved in blocks.
static constexpr int64_t regression_workspace(int64_t d, int64_t longest) {
  const int64_t rows = padded(d) > CHUNK ? padded(d) : CHUNK;
  return padded(d) * pitch(d) + rows * pitch(d) + 6 * pitch(d) + padded(longest);
}
static constexpr int64_t gram_workspace(int64_t d) { return (padded(d) + CHUNK) * pitch(d); }
static constexpr int64_t product_workspace(int64_t d) { return 2 * PAD * pitch(d); }

struct FactorizationTable {
  void (*regress)(const Regressions &q, int64_t first, int64_t last, float *workspace);
  // sum += X' X, upper triangle, for rows of d numbers one after the other
  void (*add_gram)(const float *x, int64_t rows, int64_t d, double *sum, float *workspace);
  // x <- x B in place for rows of d numbers; B (d, d) with rows pitch(d) apart
  void (*multiply)(float *x, int64_t rows, int64_t d, const float *b, float *workspace);
};

const FactorizationTable &factorization();  // that of the selected instruction set

extern const FactorizationTable generic_factorization;
#if defined(__x86_64__)
extern const FactorizationTable avx2_factorization, avx512_factorization;
#endif

}  // namespace fewfold
