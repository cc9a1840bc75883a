// The inner loops of assignments, as an instruction set offers them; assign.h says what each does.
#pragma once
#include <cstdint>

namespace fewfold {

struct Offer {
  double value, second;
  int32_t at;
};

struct AssignmentTable {
  bool (*usable)(const double *x, int64_t n);
  Offer (*best_two)(const double *gain, const double *price, int64_t n);
  Offer (*nearest_column)(const double *gain, const double *price, int64_t n, double base, int32_t row, double *reach,
                         double *from);
  double (*onto_simplex)(const double *gain, const double *price, int64_t n, double floor, double level, double *to);
  int64_t (*support_of)(const double *gain, const double *price, int64_t n, double level, int32_t *to);
  void (*factorise)(double *l, int64_t n, int64_t ld, double least, double *diagonal);
};

}  // namespace fewfold
