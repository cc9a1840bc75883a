#define FEWFOLD_ISA avx2
#define FEWFOLD_AVX2
#include "least_squares.h"

namespace fewfold {
constexpr FactorizationTable avx2_factorization = {avx2::regress, avx2::add_gram, avx2::multiply};
}
