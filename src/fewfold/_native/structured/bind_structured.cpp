// SparseMAP for sets of bits, the derivatives common to all structures, and the function table in use.
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
void derive(const Buffer &codes_, const Buffer &offsets, int64_t rows, int64_t slots, const Buffer &x_, int64_t columns,
            int64_t stride, int threads) {
  const int64_t *at = offsets.numbers<int64_t>("offsets", count_of(rows) + 1);
  const int64_t m = check_offsets(at, rows, stride, "offsets");
  check_positive(slots, "slots");
  const int32_t *codes = check_codes(codes_, m, slots, std::numeric_limits<int32_t>::max(), "codes");
  double *x = x_.numbers<double>("columns", reach_of(columns, m, stride));
  std::vector<ActiveSet> sets(static_cast<size_t>(lanes_for(rows, threads)));
  each_row(rows, threads, [&](int64_t r, int lane) {
    ActiveSet &active = sets[static_cast<size_t>(lane)];
    active.reset(slots);
    const int64_t first = at[r], last = at[r + 1];
    std::vector<int64_t> selected;
    for (int64_t i = first; i < last; ++i)
      if (active.append(codes + i * slots, 0, 0)) selected.push_back(i);
    std::vector<double> own(selected.size());
    for (int64_t c = 0; c < columns; ++c) {
      double *to = x + c * stride;
      for (size_t k = 0; k < selected.size(); ++k) own[k] = to[selected[k]];
      if (!selected.empty()) active.derive(own.data());
      std::fill(to + first, to + last, 0.0);
      for (size_t k = 0; k < selected.size(); ++k) to[selected[k]] = own[k];
    }
  });
}

// The gradient of the scores, (rows, parts), from that of the marginals; `by`, (m,), is that of the scores of structures.
// `factors` is returned by solve_rows(), or null: then the factors are recomputed.
void pull(const Buffer &codes_, const Buffer &offsets, const Buffer &factors_, int64_t rows, int64_t slots, int64_t parts,
          const Buffer &grad_, const Buffer &by_, const Buffer &out_, int threads) {
  const int64_t *at = offsets.numbers<int64_t>("offsets", count_of(rows) + 1);
  const int64_t m = check_offsets(at, rows, by_.count(), "offsets");
  check_positive(slots, "slots");
  const int32_t *codes = check_codes(codes_, m, slots, parts, "codes");
  const double *grad = grad_.numbers<double>("grad", count_of(rows, parts));
  double *by = by_.numbers<double>("by", m), *out = out_.numbers<double>("out", count_of(rows, parts));
  std::vector<ActiveSet> sets(static_cast<size_t>(lanes_for(rows, threads)));
  std::vector<int64_t> begin(static_cast<size_t>(rows) + 1);  // of the factor of each row
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t n = at[r + 1] - at[r];
    begin[static_cast<size_t>(r) + 1] = begin[static_cast<size_t>(r)] + n * (n + 1) / 2;
  }
  const double *factors = factors_.maybe<double>("factors", begin.back());
  each_row(rows, threads, [&](int64_t r, int lane) {
    ActiveSet &active = sets[static_cast<size_t>(lane)];
    active.reset(slots);
    const int32_t *code = codes + at[r] * slots;
    const int64_t n = at[r + 1] - at[r];
    if (factors)
      active.take_factor(code, n, factors + begin[static_cast<size_t>(r)]);
    else  // none is rejected, as they were independent when found
      for (int64_t i = 0; i < n; ++i) active.append(code + i * slots, 0, 0);
    const double *g = grad + r * parts;
    double *own = by + at[r], *to = out + r * parts;
    std::fill_n(own, n, 0.0);
    std::fill_n(to, parts, 0.0);
    if (!active.size()) return;
    for (int64_t i = 0; i < active.size(); ++i) own[i] = sum_over(active.code(i), slots, g);
    active.derive(own);
    for (int64_t i = 0; i < active.size(); ++i) active.add_to(i, own[i], to);
  });
}

}  // namespace

void bind_structured(nb::module_ &m) {
  nb::class_<Request>(m, "Request")
      .def(nb::init<const Buffer &, int64_t, int64_t, int64_t, int64_t, double, const Buffer &, const Buffer &,
                    const Buffer &, const Buffer &, const Buffer &, const Buffer &, int, bool>(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>(), nb::keep_alive<1, 10>(),
           nb::keep_alive<1, 11>(), nb::keep_alive<1, 12>(), nb::keep_alive<1, 13>());
  m.def("sparsemap_choices", [](const Request &q, int64_t least, int64_t most) {
    q.expect(q.parts, q.parts);
    if (count_of(least) > most) refuse("at least " + std::to_string(least) + " and at most " + std::to_string(most));
    return solve_rows(q, [&](int64_t, int) { return ChoiceOracle(q.parts, least, most); });
  });
  m.def("pull", &pull, nb::call_guard<nb::gil_scoped_release>());
  m.def("derive", &derive, nb::call_guard<nb::gil_scoped_release>());
}
