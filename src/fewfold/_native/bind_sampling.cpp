// Draws, and the scores of what was drawn, for Python.
#include <nanobind/nanobind.h>

#include <atomic>
#include <string>
#include <vector>

#include "alias.h"
#include "bind.h"
#include "random.h"
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

// log q of the mixture over `rows` queries, cell by cell. Returns a row whose scores were no numbers, or -1.
int64_t mixture(int64_t cells, int64_t codebooks, uintptr_t code, uintptr_t log_mass, uintptr_t scores, int64_t width,
                int64_t rows, uintptr_t out, int threads) {
  const Cells at{cells, codebooks, reading<int32_t>(code), reading<float>(log_mass), nullptr, nullptr, nullptr, nullptr,
                 nullptr};
  std::vector<float> each(static_cast<size_t>(rows * cells));
  std::atomic<int64_t> bad{-1};
  share(rows, 4 * cells, threads, [&](int64_t a, int64_t b) {
    const int64_t row = tables->cell_log_probs(at, reading<float>(scores), width, a, b, each.data());
    if (row >= 0) bad = row;
  });
  if (bad < 0)
    share(cells, 4 * rows, threads, [&](int64_t a, int64_t b) {
      tables->mix_cells(each.data(), rows, cells, a, b, writing<float>(out));
    });
  return bad;
}

// log q of ids, each with the row it is asked for; false if one is out of range.
bool log_prob(int64_t cells, int64_t codebooks, uintptr_t code_, uintptr_t cell_of_, int64_t items, uintptr_t mass_,
              uintptr_t scores_, int64_t width, int64_t rows, uintptr_t log_z, uintptr_t ids, uintptr_t row_, int64_t n,
              uintptr_t out, int threads) {
  const int32_t *code = reading<int32_t>(code_), *cell_of = reading<int32_t>(cell_of_);
  const float *mass = reading<float>(mass_), *scores = reading<float>(scores_);
  const int64_t *id = reading<int64_t>(ids), *row = reading<int64_t>(row_);
  for (int64_t i = 0; i < n; ++i)
    if (id[i] < 0 || id[i] >= items || row[i] < 0 || row[i] >= rows) return false;
  constexpr int64_t AHEAD = 16;  // most are a miss in every cache
  share(n, 64, threads, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      if (i + AHEAD < b) {
        __builtin_prefetch(cell_of + id[i + AHEAD]);
        if (mass) __builtin_prefetch(mass + id[i + AHEAD]);
      }
      const int32_t cell = cell_of[id[i]];
      double total = -reading<double>(log_z)[row[i]];
      for (int64_t k = 0; k < codebooks && cell >= 0; ++k)
        total += static_cast<double>(scores[row[i] * width + code[k * cells + cell]]);
      if (mass) total += static_cast<double>(mass[id[i]]);
      writing<float>(out)[i] = cell < 0 ? -__builtin_inff() : static_cast<float>(total);
    }
  });
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

// Whether all ids are rows of a table of this size.
bool within(uintptr_t ids, int64_t n, int64_t size, int threads) {
  std::atomic<bool> fine{true};
  share(n, 1, threads, [&](int64_t a, int64_t b) {
    if (!tables->within(reading<int64_t>(ids) + a, b - a, size)) fine = false;
  });
  return fine;
}

// The ids of a row: a block of `each`, then those between two offsets. Of all, so many rows.
struct Picks {
  const int64_t *ids, *more, *offset;
  int64_t each, rows;
  const int64_t *block(int64_t row) const { return ids + row * each; }
  int64_t after_block(int64_t row) const { return (rows - row - 1) * each; }
  int64_t first(int64_t row) const { return offset[row]; }
  int64_t count(int64_t row) const { return offset[row + 1] - offset[row]; }
  int64_t after(int64_t row) const { return offset[rows] - offset[row + 1]; }
};

// False if an id is out of range.
template <class T>
bool dots(uintptr_t queries, uintptr_t table_, int64_t size, int64_t d, int64_t rows, uintptr_t ids, int64_t each,
          uintptr_t more, uintptr_t offset, uintptr_t scores, uintptr_t more_scores, int threads) {
  const Picks p{reading<int64_t>(ids), reading<int64_t>(more), reading<int64_t>(offset), each, rows};
  if (!within(ids, rows * each, size, threads) || !within(more, p.offset[rows], size, threads)) return false;
  share(rows, 2 * each * d, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      const T *query = reading<T>(queries) + r * d;
      const int64_t at = p.first(r);
      table<T>().picked_dots(query, reading<T>(table_), d, p.block(r), each, p.after_block(r),
                             writing<T>(scores) + r * each);
      table<T>().picked_dots(query, reading<T>(table_), d, p.more + at, p.count(r), p.after(r),
                             writing<T>(more_scores) + at);
    }
  });
  return true;
}

// Gradients of those scores: `pull` to the queries, `values` to the rows of the table, block by block, then the others.
// `scale`, a number per row, multiplies those of the block; null: 1. The ids have been through the above.
template <class T>
void pulls(uintptr_t queries, uintptr_t table_, int64_t d, int64_t rows, uintptr_t ids, int64_t each, uintptr_t more,
           uintptr_t offset, uintptr_t by, uintptr_t scale, uintptr_t more_by, uintptr_t pull, uintptr_t values,
           int threads) {
  const Picks p{reading<int64_t>(ids), reading<int64_t>(more), reading<int64_t>(offset), each, rows};
  share(rows, 2 * each * d, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      const T *query = reading<T>(queries) + r * d;
      T *to = pull ? writing<T>(pull) + r * d : nullptr;
      T *block = values ? writing<T>(values) + r * each * d : nullptr;
      T *rest = values ? writing<T>(values) + (rows * each + p.first(r)) * d : nullptr;
      table<T>().picked_pulls(query, reading<T>(table_), d, p.block(r), each, p.after_block(r), reading<T>(by) + r * each,
                              scale ? reading<T>(scale)[r] : T(1), to, block);
      table<T>().picked_pulls(query, reading<T>(table_), d, p.more + p.first(r), p.count(r), p.after(r),
                              reading<T>(more_by) + p.first(r), T(1), to, rest);
    }
  });
}

// Rows of scores, less `shift` (a row for each, or one for all: stride 0), to their softmax; and its log normaliser.
template <class T>
void soften(uintptr_t scores, int64_t rows, int64_t n, uintptr_t shift, int64_t stride, uintptr_t log_sum, int threads) {
  share(rows, 4 * n, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r)
      writing<T>(log_sum)[r] = table<T>().soften(writing<T>(scores) + r * n, reading<T>(shift) + r * stride, n);
  });
}

// Sums of rows of a table times `by`, a number per bag; false if an id is out of range.
template <class T>
bool bags(uintptr_t table_, int64_t size, int64_t d, uintptr_t ids, uintptr_t offset_, int64_t rows, uintptr_t by,
          uintptr_t out, int threads) {
  const int64_t *offset = reading<int64_t>(offset_), *id = reading<int64_t>(ids);
  if (!within(ids, offset[rows], size, threads)) return false;
  share(rows, 16 * d, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r)
      table<T>().bag(reading<T>(table_), d, id + offset[r], offset[r + 1] - offset[r], offset[rows] - offset[r + 1],
                     reading<T>(by)[r], writing<T>(out) + r * d);
  });
  return true;
}

template <class T>
void unbags(uintptr_t grad, int64_t d, uintptr_t offset_, int64_t rows, uintptr_t by, uintptr_t values, int threads) {
  const int64_t *offset = reading<int64_t>(offset_);
  share(rows, 16 * d, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r)
      table<T>().unbag(reading<T>(grad) + r * d, d, offset[r + 1] - offset[r], reading<T>(by)[r],
                       writing<T>(values) + offset[r] * d);
  });
}

// Each entry of the bags stays with chance `keep`. Returns how many do.
int64_t thin(uintptr_t ids_, uintptr_t offset_, int64_t rows, double keep, uint64_t seed, uintptr_t out_, uintptr_t start_) {
  const int64_t *ids = reading<int64_t>(ids_), *offset = reading<int64_t>(offset_);
  int64_t *out = writing<int64_t>(out_), *start = writing<int64_t>(start_), kept = 0;
  Random random(seed, 0);
  for (int64_t r = 0; r < rows; ++r) {
    start[r] = kept;
    for (int64_t i = offset[r]; i < offset[r + 1]; ++i) {
      out[kept] = ids[i];
      kept += random.unit() < keep;
    }
  }
  start[rows] = kept;
  return kept;
}

template <class T> void bind(nb::module_ &m, const std::string &suffix) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def(("picked_dots_" + suffix).c_str(), &dots<T>, release());
  m.def(("picked_pulls_" + suffix).c_str(), &pulls<T>, release());
  m.def(("soften_" + suffix).c_str(), &soften<T>, release());
  m.def(("bags_" + suffix).c_str(), &bags<T>, release());
  m.def(("unbags_" + suffix).c_str(), &unbags<T>, release());
}

}  // namespace

void bind_sampling(nb::module_ &m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def("draw", &draw, release());
  m.def("mixture", &mixture, release());
  m.def("log_prob", &log_prob, release());
  m.def("nearest", &nearest, release());
  m.def("thin", &thin, release());
  m.def("alias_tables", &alias_tables, release());
  bind<float>(m, "f32");
  bind<double>(m, "f64");
}
