// The parts of the Python module, one file each.
#pragma once
#include <nanobind/nanobind.h>

void bind_sampling(nanobind::module_ &m);
