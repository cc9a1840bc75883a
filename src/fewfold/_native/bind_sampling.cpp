// Draws, and the scores of what was drawn, for Python.
#include <nanobind/nanobind.h>

#include <atomic>
#include <string>

#include "alias.h"
#include "bind.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

template <class T> const T *reading(uintptr_t address) { return reinterpret_cast<const T *>(address); }
template <class T> T *writing(uintptr_t address) { return reinterpret_cast<T *>(address); }

// Returns the first row whose scores were no numbers, or -1.
int64_t draw(int64_t cells, int64_t codebooks, uintptr_t code, uintptr_t log_mass, uintptr_t start, uintptr_t item,
             uintptr_t accept, uintptr_t other, uintptr_t log_share, uintptr_t scores, int64_t width, int64_t rows,
             int64_t n, uint64_t seed, uintptr_t ids, uintptr_t log_q, uintptr_t log_z, int threads) {
  const Cells at{cells,
                 codebooks,
                 reading<int32_t>(code),
                 reading<float>(log_mass),
                 reading<int64_t>(start),
                 reading<int32_t>(item),
                 reading<float>(accept),
                 reading<int32_t>(other),
                 reading<float>(log_share)};
  std::atomic<int64_t> bad{-1};
  share(rows, cells + 8 * n, threads, [&](int64_t a, int64_t b) {
    const int64_t row = tables->draw(at, reading<float>(scores), width, a, b, n, seed, writing<int64_t>(ids),
                                     writing<float>(log_q), writing<double>(log_z));
    if (row >= 0) bad = row;
  });
  return bad;
}

// log q of ids, each with the row it is asked for; false if one is out of range.
bool log_prob(int64_t cells, int64_t codebooks, uintptr_t code_, uintptr_t cell_of_, int64_t items, uintptr_t share_,
              uintptr_t scores_, int64_t width, int64_t rows, uintptr_t log_z, uintptr_t ids, uintptr_t row_, int64_t n,
              uintptr_t out) {
  const int32_t *code = reading<int32_t>(code_), *cell_of = reading<int32_t>(cell_of_);
  const float *share = reading<float>(share_), *scores = reading<float>(scores_);
  const int64_t *id = reading<int64_t>(ids), *row = reading<int64_t>(row_);
  for (int64_t i = 0; i < n; ++i)
    if (id[i] < 0 || id[i] >= items || row[i] < 0 || row[i] >= rows) return false;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t cell = cell_of[id[i]];
    double total = -reading<double>(log_z)[row[i]];
    for (int64_t b = 0; b < codebooks && cell >= 0; ++b)
      total += static_cast<double>(scores[row[i] * width + code[b * cells + cell]]);
    if (share) total += static_cast<double>(share[id[i]]);
    writing<float>(out)[i] = cell < 0 ? -__builtin_inff() : static_cast<float>(total);
  }
  return true;
}

void nearest(uintptr_t points, int64_t stride, int64_t n, int64_t d, uintptr_t centres, uintptr_t half, int64_t k,
             uintptr_t code, int threads) {
  share(n, d * k / 8, threads, [&](int64_t a, int64_t b) {
    tables->nearest(reading<float>(points) + a * stride, stride, b - a, d, reading<float>(centres), reading<float>(half),
                    k, writing<int64_t>(code) + a);
  });
}

void alias_tables(uintptr_t weight, uintptr_t start, int64_t cells, uintptr_t accept, uintptr_t other) {
  alias(reading<double>(weight), reading<int64_t>(start), cells, writing<float>(accept), writing<int32_t>(other));
}

// The ids of a row: a block of `each`, then those between two offsets, if there are any.
struct Picks {
  const int64_t *ids, *more, *offset;
  int64_t each;
  int64_t first(int64_t row) const { return offset ? offset[row] : 0; }
  int64_t count(int64_t row) const { return offset ? offset[row + 1] - offset[row] : 0; }
};

// False if an id is out of range.
template <class T>
bool dots(uintptr_t queries, uintptr_t table_, int64_t size, int64_t d, int64_t rows, uintptr_t ids, int64_t each,
          uintptr_t more, uintptr_t offset, uintptr_t scores, uintptr_t more_scores, int threads) {
  const Picks p{reading<int64_t>(ids), reading<int64_t>(more), reading<int64_t>(offset), each};
  std::atomic<bool> fine{true};
  share(rows, 2 * each * d, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      const T *query = reading<T>(queries) + r * d;
      const int64_t at = p.first(r);
      if (!table<T>().picked_dots(query, reading<T>(table_), size, d, p.ids + r * each, each,
                                  writing<T>(scores) + r * each) ||
          !table<T>().picked_dots(query, reading<T>(table_), size, d, p.more + at, p.count(r),
                                  writing<T>(more_scores) + at))
        fine = false;
    }
  });
  return fine;
}

// Gradients of those scores: `pull` to the queries, `values` to the rows of the table, block by block, then the others.
template <class T>
void pulls(uintptr_t queries, uintptr_t table_, int64_t d, int64_t rows, uintptr_t ids, int64_t each, uintptr_t more,
           uintptr_t offset, uintptr_t by, uintptr_t more_by, uintptr_t pull, uintptr_t values, int threads) {
  const Picks p{reading<int64_t>(ids), reading<int64_t>(more), reading<int64_t>(offset), each};
  share(rows, 2 * each * d, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      const T *query = reading<T>(queries) + r * d;
      T *to = pull ? writing<T>(pull) + r * d : nullptr;
      T *block = values ? writing<T>(values) + r * each * d : nullptr;
      T *rest = values ? writing<T>(values) + (rows * each + p.first(r)) * d : nullptr;
      table<T>().picked_pulls(query, reading<T>(table_), d, p.ids + r * each, each, reading<T>(by) + r * each, to, block);
      table<T>().picked_pulls(query, reading<T>(table_), d, p.more + p.first(r), p.count(r),
                              reading<T>(more_by) + p.first(r), to, rest);
    }
  });
}

template <class T> void bind(nb::module_ &m, const std::string &suffix) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def(("picked_dots_" + suffix).c_str(), &dots<T>, release());
  m.def(("picked_pulls_" + suffix).c_str(), &pulls<T>, release());
}

}  // namespace

void bind_sampling(nb::module_ &m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def("draw", &draw, release());
  m.def("log_prob", &log_prob, release());
  m.def("nearest", &nearest, release());
  m.def("alias_tables", &alias_tables, release());
  bind<float>(m, "f32");
  bind<double>(m, "f64");
}
