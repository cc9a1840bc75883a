#pragma once
#include <nanobind/nanobind.h>

namespace fewfold {

// Adds `Update` and `touch_RULE_f32`, `touch_RULE_f64` to the module.
void bind_touch(nanobind::module_ &m);

}  // namespace fewfold
