#define FEWFOLD_ISA generic
#include "least_squares.h"

namespace fewfold {
constexpr FactorizationTable generic_factorization = {generic::regress, generic::add_gram, generic::multiply};
}
