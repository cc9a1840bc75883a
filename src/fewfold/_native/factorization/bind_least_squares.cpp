// Matrix factorisation for Python: regressions of many rows, Gram matrices and products of tables.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "argument.h"
#include "bind.h"
#include "factorization.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

const FactorizationTable &fewfold::factorization() {
  static const FactorizationTable &chosen = *[] {
#if defined(__x86_64__)
    if (!std::strcmp(tables->name, "avx512")) return &avx512_factorization;
    if (!std::strcmp(tables->name, "avx2")) return &avx2_factorization;
#endif
    return &generic_factorization;
  }();
  return chosen;
}

namespace {

constexpr int64_t MOST_COLUMNS = 4096;
constexpr int64_t ROWS = 16;         // per task of a thread
constexpr int64_t PART = 4096;       // least number of rows per partial Gram matrix
constexpr int64_t MOST_PARTS = 16;   // whatever the number of threads, so that sums are reproducible

int64_t check_columns(int64_t d) {
  check_positive(d, "d");
  if (d > MOST_COLUMNS) refuse("vectors must have at most " + std::to_string(MOST_COLUMNS) + " columns, got " + std::to_string(d));
  return d;
}

void check_values(const float *x, int64_t n, bool zero, const char *name) {
  bool fine = true;
  for (int64_t i = 0; i < n; ++i) fine &= (x[i] > 0 || (zero && x[i] == 0)) && std::isfinite(x[i]);
  if (!fine) refuse(std::string(name) + " must be finite and " + (zero ? "at least 0" : "above 0"));
}

// A matrix (d, d) with rows pitch(d) apart.
std::vector<float> pitched(const float *from, int64_t d) {
  std::vector<float> to(static_cast<size_t>(d * pitch(d)));
  for (int64_t i = 0; i < d; ++i) std::copy_n(from + i * d, d, to.begin() + i * pitch(d));
  return to;
}

using Workspace = std::unique_ptr<float[]>;

// Solves the regressions of all rows; see `Regressions`.
void regress(const Buffer &offsets, const Buffer &ids_, const Buffer &weights, int64_t rows, const Buffer &table_,
             int64_t items, int64_t d, const Buffer &gram_, const Buffer &ridge_, const Buffer &rotation_,
             const Buffer &out_, int threads) {
  check_columns(d);
  const int64_t *at = offsets.numbers<int64_t>("offsets", count_of(rows) + 1);
  const int64_t pairs = check_offsets(at, rows, ids_.count(), "offsets");
  const float *rotation = rotation_.maybe<float>("rotation", count_of(d, d));
  const std::vector<float> rotated = rotation ? pitched(rotation, d) : std::vector<float>();
  const Regressions q{at,
                      ids_.numbers<int64_t>("ids", pairs),
                      weights.maybe<float>("weights", pairs),
                      table_.numbers<float>("table", count_of(items, d)),
                      d,
                      gram_.numbers<float>("gram", d),
                      ridge_.numbers<float>("ridge", rows),
                      rotation ? rotated.data() : nullptr,
                      out_.numbers<float>("out", count_of(rows, d))};
  check_ids(q.id, pairs, items, "ids", threads);
  if (q.weight) check_values(q.weight, pairs, false, "weights");
  check_values(q.gram, d, true, "gram");
  check_values(q.ridge, rows, false, "ridge");
  int64_t longest = 0;
  for (int64_t r = 0; rotation && r < rows; ++r)
    if (in_blocks(at[r + 1] - at[r], d)) longest = std::max(longest, at[r + 1] - at[r]);
  const int64_t pieces = (rows + ROWS - 1) / ROWS;
  std::vector<Workspace> workspaces(static_cast<size_t>(lanes_for(pieces, threads)));
  each_row(pieces, threads, [&](int64_t piece, int lane) {
    Workspace &workspace = workspaces[static_cast<size_t>(lane)];
    if (!workspace) workspace.reset(new float[static_cast<size_t>(regression_workspace(d, longest))]);
    factorization().regress(q, piece * ROWS, std::min(rows, (piece + 1) * ROWS), workspace.get());
  });
}

// out (d, d) = X' X.
void gram(const Buffer &table_, int64_t rows, int64_t d, const Buffer &out_, int threads) {
  check_columns(d);
  const float *x = table_.numbers<float>("table", count_of(rows, d));
  double *out = out_.numbers<double>("out", count_of(d, d));
  const int64_t parts = std::max<int64_t>(1, std::min(MOST_PARTS, rows / PART));
  std::vector<double> sums(static_cast<size_t>(count_of(parts, d, d)));
  each_row(parts, threads, [&](int64_t part, int) {
    const Workspace workspace(new float[static_cast<size_t>(gram_workspace(d))]);
    const int64_t first = part_of(rows, part, parts), last = part_of(rows, part + 1, parts);
    factorization().add_gram(x + first * d, last - first, d, sums.data() + part * d * d, workspace.get());
  });
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = i; j < d; ++j) {
      double sum = 0;
      for (int64_t part = 0; part < parts; ++part) sum += sums[static_cast<size_t>((part * d + i) * d + j)];
      out[i * d + j] = out[j * d + i] = sum;
    }
}

// table <- table B, in place.
void multiply(const Buffer &table_, int64_t rows, int64_t d, const Buffer &by_, int threads) {
  check_columns(d);
  float *x = table_.numbers<float>("table", count_of(rows, d));
  const float *by = by_.numbers<float>("by", count_of(d, d));
  const std::vector<float> b = pitched(by, d);
  share(rows, d * d / 16, threads, [&](int64_t first, int64_t last) {
    const Workspace workspace(new float[static_cast<size_t>(product_workspace(d))]);
    factorization().multiply(x + first * d, last - first, d, b.data(), workspace.get());
  });
}

}  // namespace

void bind_least_squares(nb::module_ &m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def("regress", &regress, release());
  m.def("gram", &gram, release());
  m.def("multiply_rows", &multiply, release());
}
