#define FEWFOLD_ISA generic
#include "factor.h"

namespace fewfold {
constexpr StructuredTable generic_structured = generic::structured_table();
}
