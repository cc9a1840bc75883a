// The parts of the Python module, one file each.
#pragma once
#include <nanobind/nanobind.h>

void bind_argument(nanobind::module_ &m);
void bind_anchors(nanobind::module_ &m);
void bind_direct(nanobind::module_ &m);
void bind_bernoulli(nanobind::module_ &m);
void bind_best(nanobind::module_ &m);
void bind_assignments(nanobind::module_ &m);
void bind_expected(nanobind::module_ &m);
void bind_graphs(nanobind::module_ &m);
void bind_least_squares(nanobind::module_ &m);
void bind_models(nanobind::module_ &m);
void bind_sampling(nanobind::module_ &m);
void bind_sequences(nanobind::module_ &m);
void bind_sessions(nanobind::module_ &m);
void bind_structured(nanobind::module_ &m);
void bind_text(nanobind::module_ &m);
void bind_touch(nanobind::module_ &m);  // `Update`, touch_RULE_f32 and touch_RULE_f64, and pay_
void bind_trees(nanobind::module_ &m);
