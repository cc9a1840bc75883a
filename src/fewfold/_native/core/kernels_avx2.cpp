#define FEWFOLD_ISA avx2
#define FEWFOLD_AVX2
#include "rows.h"

namespace fewfold {
constexpr Tables avx2_tables = {"avx2",           avx2::table<float>(),   avx2::table<double>(),
                            avx2::draw,      avx2::cell_log_probs, avx2::mix_cells,
                            avx2::within,    avx2::nearest,   avx2::byte_scores, avx2::byte_products, avx2::above,
                            avx2::cholesky_rows, avx2::solve_rows, avx2::solve_columns};
}
