// SparseMAP for sets of bits, what all structures share of its derivatives, and the table of this processor.
#include <cstring>

#include "bind.h"
#include "choices.h"
#include "solve.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

const StructuredTable &fewfold::structured() {
  static const StructuredTable &chosen = *[] {
#if defined(__x86_64__)
    if (!std::strcmp(tables->name, "avx512")) return &avx512_structured;
    if (!std::strcmp(tables->name, "avx2")) return &avx2_structured;
#endif
    return &generic_structured;
  }();
  return chosen;
}

namespace {

// x (columns of m numbers, `stride` apart) <- Q x for the structures of every row; see ActiveSet::derive.
void derive(uintptr_t codes, uintptr_t offsets, int64_t rows, int64_t slots, uintptr_t x, int64_t columns, int64_t stride,
            int threads) {
  std::vector<ActiveSet> sets(static_cast<size_t>(std::max(1, threads)));
  each_row(rows, threads, [&](int64_t r, int lane) {
    ActiveSet &active = sets[static_cast<size_t>(lane)];
    active.reset(slots);
    const int64_t first = address<const int64_t>(offsets)[r], last = address<const int64_t>(offsets)[r + 1];
    std::vector<int64_t> kept;
    for (int64_t i = first; i < last; ++i)
      if (active.append(address<const int32_t>(codes) + i * slots, 0, 0)) kept.push_back(i);
    std::vector<double> own(kept.size());
    for (int64_t c = 0; c < columns; ++c) {
      double *to = address<double>(x) + c * stride;
      for (size_t k = 0; k < kept.size(); ++k) own[k] = to[kept[k]];
      if (!kept.empty()) active.derive(own.data());
      std::fill(to + first, to + last, 0.0);
      for (size_t k = 0; k < kept.size(); ++k) to[kept[k]] = own[k];
    }
  });
}

// The gradient of the scores, (rows, parts), from that of the marginals; `by`, (m,), is that of the scores of structures.
void pull(uintptr_t codes, uintptr_t offsets, int64_t rows, int64_t slots, int64_t parts, uintptr_t grad, uintptr_t by,
          uintptr_t out, int threads) {
  std::vector<ActiveSet> sets(static_cast<size_t>(std::max(1, threads)));
  each_row(rows, threads, [&](int64_t r, int lane) {
    ActiveSet &active = sets[static_cast<size_t>(lane)];
    active.reset(slots);
    const double *g = address<const double>(grad) + r * parts;
    double *to = address<double>(out) + r * parts;
    std::fill_n(to, parts, 0.0);
    const int64_t first = address<const int64_t>(offsets)[r], last = address<const int64_t>(offsets)[r + 1];
    double *own = address<double>(by) + first;
    for (int64_t i = first; i < last; ++i) {
      const int32_t *code = address<const int32_t>(codes) + i * slots;
      const bool kept = active.append(code, 0, 0);
      double sum = 0;
      for (int64_t j = 0; j < slots && kept; ++j)
        if (code[j] >= 0) sum += g[code[j]];
      if (kept) own[active.size() - 1] = sum;  // all of them are, as they were independent when they were found
    }
    std::fill(own + active.size(), own + (last - first), 0.0);
    if (!active.size()) return;
    active.derive(own);
    for (int64_t i = 0; i < active.size(); ++i) active.add_to(i, own[i], to);
  });
}

}  // namespace

void bind_structured(nb::module_ &m) {
  nb::class_<Request>(m, "Request")
      .def(nb::init<uintptr_t, int64_t, int64_t, int64_t, int64_t, double, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                    uintptr_t, uintptr_t, int, bool>());
  m.def("sparsemap_choices", [](const Request &q, int64_t least, int64_t most) {
    return solve_rows(q, [&](int64_t) { return ChoiceOracle(q.parts, least, most); });
  });
  m.def("pull", &pull, nb::call_guard<nb::gil_scoped_release>());
  m.def("derive", &derive, nb::call_guard<nb::gil_scoped_release>());
}
