// Arguments of the sparse optimiser kernels: the rows with a gradient, and the update rule.
#pragma once
#include <cstdint>

namespace fewfold {

enum class Rule { sgd, momentum, adagrad, adam, adam_by_row, scale_by_row, yogi };

// The hyperparameters of all rules; each rule reads its own.
struct Update {
  Rule rule;
  double lr, beta1, beta2, eps;
  double decay;   // times the row, added to its gradient
  double shrink;  // times the row, before it moves
  bool maximize, nesterov;
  double initial;  // where adagrad's sums begin
  double l1;       // times the step size, subtracted from a row after its update
  bool signed_;    // towards zero from both sides; otherwise to zero from above
  bool adam_eps;   // yogi: eps is added to the corrected root of the second moment, and not to the root itself
};

// A table with its state, and the rows of a gradient grouped by the row of the table they belong to.
template <class T> struct Touched {
  T *weight;
  T *state;      // (rows, SLOTS of the rule, width)
  int32_t *age;  // how often a row has been touched; all with moments
  T *square;     // the second moment of a row; adam_by_row and scale_by_row
  const T *grad;
  const uint64_t *order;  // row << bits | position in grad, ascending; null: row i has gradient i
  int bits;
  int64_t width;
};

}  // namespace fewfold
