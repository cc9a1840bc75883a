#define FEWFOLD_ISA avx2
#define FEWFOLD_AVX2
#include "factor.h"

namespace fewfold {
constexpr StructuredTable avx2_structured = avx2::structured_table();
}
