#define FEWFOLD_ISA avx512
#define FEWFOLD_AVX512
#include "rows.h"

namespace fewfold {
constexpr Tables avx512_tables = {"avx512",           avx512::table<float>(),   avx512::table<double>(),
                              avx512::draw,      avx512::cell_log_probs, avx512::mix_cells,
                              avx512::within,    avx512::nearest,   avx512::byte_scores, avx512::byte_products, avx512::above,
                            avx512::cholesky_rows, avx512::solve_rows, avx512::solve_columns};
}
