#define FEWFOLD_ISA avx512
#define FEWFOLD_AVX512
#include "factor.h"

namespace fewfold {
constexpr StructuredTable avx512_structured = avx512::structured_table();
}
