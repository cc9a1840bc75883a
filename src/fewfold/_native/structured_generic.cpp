#define FEWFOLD_ISA generic
#include "factor.h"

namespace fewfold {
const StructuredTable generic_structured = generic::structured_table();
}
