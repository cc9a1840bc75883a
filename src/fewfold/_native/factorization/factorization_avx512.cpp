#define FEWFOLD_ISA avx512
#define FEWFOLD_AVX512
#include "least_squares.h"

namespace fewfold {
constexpr FactorizationTable avx512_factorization = {avx512::regress, avx512::add_gram, avx512::multiply};
}
