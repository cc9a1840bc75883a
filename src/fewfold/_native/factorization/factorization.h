// What an instruction set offers to matrix factorisation: a table of its own, filled by factorization_*.cpp.
#pragma once
#include <cstdint>

namespace fewfold {

// Columns of d numbers in whole vectors, whatever the instruction set.
static constexpr int64_t PAD = 16;
static constexpr int64_t padded(int64_t d) { return (d + PAD - 1) / PAD * PAD; }
// Numbers from one row of a matrix to the next: an odd number of cache lines, so that a column does not fall into few
// sets of the cache. There are always PAD numbers behind the columns: a right-hand side, or nothing.
static constexpr int64_t pitch(int64_t columns) { return padded(columns) + (padded(columns) / PAD % 2 ? 2 * PAD : PAD); }

static constexpr int64_t CHUNK = 256;  // rows of a table that are summed up in single precision

// Ridge regressions: row r is the x that minimises, over the pairs p of the row,
//   sum_p weight[p] (1 - <x, table[id[p]]>)^2 + sum_k (gram[k] + ridge[r]) x_k^2
struct Regressions {
  const int64_t *offset, *id;
  const float *weight;  // null: all one
  const float *table;
  int64_t d;
  const float *gram, *ridge;  // (d), (rows); their sums are positive
  // Null, or (d, d) with rows pitch(d) apart: `out` holds vectors which, multiplied by it, are close to the answer. Long
  // rows then take one step from there, in blocks of columns; all others are solved exactly.
  const float *rotation;
  float *out;  // (rows, d)
};

static constexpr int64_t BLOCK = 64;  // columns, about, of a step in blocks
// Where a row of so many pairs is quicker solved in blocks.
static constexpr bool in_blocks(int64_t n, int64_t d) { return padded(d) > BLOCK && n > BLOCK + BLOCK / 2; }

// Numbers to work in; `longest` of the rows that are solved in blocks.
static constexpr int64_t regression_room(int64_t d, int64_t longest) {
  const int64_t rows = padded(d) > CHUNK ? padded(d) : CHUNK;
  return padded(d) * pitch(d) + rows * pitch(d) + 6 * pitch(d) + padded(longest);
}
static constexpr int64_t gram_room(int64_t d) { return (padded(d) + CHUNK) * pitch(d); }
static constexpr int64_t product_room(int64_t d) { return 2 * PAD * pitch(d); }

struct FactorizationTable {
  void (*regress)(const Regressions &q, int64_t first, int64_t last, float *room);
  // sum += X' X, upper triangle, for rows of d numbers one after the other
  void (*add_gram)(const float *x, int64_t rows, int64_t d, double *sum, float *room);
  // x <- x B in place for rows of d numbers; B (d, d) with rows pitch(d) apart
  void (*multiply)(float *x, int64_t rows, int64_t d, const float *b, float *room);
};

const FactorizationTable &factorization();  // that of this processor

extern const FactorizationTable generic_factorization;
#if defined(__x86_64__)
extern const FactorizationTable avx2_factorization, avx512_factorization;
#endif

}  // namespace fewfold
