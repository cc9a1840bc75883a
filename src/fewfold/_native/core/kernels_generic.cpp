#define FEWFOLD_ISA generic
#include "rows.h"

namespace fewfold {
constexpr Tables generic_tables = {"generic",           generic::table<float>(),   generic::table<double>(),
                               generic::draw,      generic::cell_log_probs, generic::mix_cells,
                               generic::within,    generic::nearest,   generic::byte_scores, generic::byte_products, generic::above,
                            generic::cholesky_rows, generic::solve_rows, generic::solve_columns};
}
