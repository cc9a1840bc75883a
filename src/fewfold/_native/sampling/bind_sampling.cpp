// Bindings of sampling, and of the scores of samples.
#include <nanobind/nanobind.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "alias.h"
#include "argument.h"
#include "bind.h"
#include "random.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

// The codewords of all cells, (codebooks, cells), each a place in scores of this width.
const int32_t *codes_of(const Buffer &code, int64_t codebooks, int64_t cells, int64_t width) {
  check_positive(cells, "cells");
  check_positive(codebooks, "codebooks");
  const int32_t *found = code.numbers<int32_t>("code", count_of(codebooks, cells));
  check_range(found, codebooks * cells, 0, width, "code");
  return found;
}

// Rows draw as rows `row`, `row` + 1, ... of a larger batch. Returns the first row with non-finite scores, or -1.
int64_t draw(int64_t cells, int64_t codebooks, const Buffer &code, const Buffer &log_mass, const Buffer &start_,
             const Buffer &item, const Buffer &accept, const Buffer &other, const Buffer &log_share,
             const Buffer &scores_, int64_t width, int64_t rows, int64_t n, uint64_t seed, int64_t row,
             const Buffer &ids_, const Buffer &log_q_, const Buffer &log_z_, int threads) {
  const int32_t *codes = codes_of(code, codebooks, cells, width);
  const int64_t *start = start_.numbers<int64_t>("start", cells + 1);
  const int64_t places = check_offsets(start, cells, item.count(), "start");
  for (int64_t c = 0; c < cells; ++c)
    if (start[c] == start[c + 1]) refuse("every cell must hold an item, cell " + std::to_string(c) + " does not");
  if (accept.given() != other.given()) refuse("accept and other are given together");
  const Cells at{cells,
                 codebooks,
                 codes,
                 log_mass.numbers<float>("log_mass", cells),
                 start,
                 item.numbers<int32_t>("item", places),
                 accept.maybe<float>("accept", places),
                 other.maybe<int32_t>("other", places),
                 log_share.maybe<float>("log_share", places),
                 places};
  const float *scores = scores_.numbers<float>("scores", count_of(rows, width));
  int64_t *ids = ids_.numbers<int64_t>("ids", count_of(rows, n));
  float *log_q = log_q_.numbers<float>("log_q", count_of(rows, n));
  double *log_z = log_z_.numbers<double>("log_z", rows);
  std::atomic<int64_t> bad{-1};
  share(rows, cells + 8 * n, threads, [&](int64_t a, int64_t b) {
    const int64_t wrong = tables->draw(at, scores, width, a, b, n, seed, row, ids, log_q, log_z);
    if (wrong >= 0) bad = wrong;
  });
  return bad;
}

// log q of the mixture over `rows` queries, cell by cell. Returns a row with non-finite scores, or -1.
int64_t mixture(int64_t cells, int64_t codebooks, const Buffer &code, const Buffer &log_mass, const Buffer &scores_,
                int64_t width, int64_t rows, const Buffer &out_, int threads) {
  const Cells at{cells, codebooks, codes_of(code, codebooks, cells, width), log_mass.numbers<float>("log_mass", cells),
                 nullptr, nullptr, nullptr, nullptr, nullptr, 0};
  const float *scores = scores_.numbers<float>("scores", count_of(rows, width));
  float *out = out_.numbers<float>("out", cells);
  std::vector<float> each(static_cast<size_t>(count_of(rows, cells)));
  std::atomic<int64_t> bad{-1};
  share(rows, 4 * cells, threads, [&](int64_t a, int64_t b) {
    const int64_t row = tables->cell_log_probs(at, scores, width, a, b, each.data());
    if (row >= 0) bad = row;
  });
  if (bad < 0)
    share(cells, 4 * rows, threads,
          [&](int64_t a, int64_t b) { tables->mix_cells(each.data(), rows, cells, a, b, out); });
  return bad;
}

// log q of pairs of an id and a row.
void log_prob(int64_t cells, int64_t codebooks, const Buffer &code_, const Buffer &cell_of_, int64_t items,
              const Buffer &mass_, const Buffer &scores_, int64_t width, int64_t rows, const Buffer &log_z_,
              const Buffer &ids, const Buffer &row_, int64_t n, const Buffer &out_, int threads) {
  const int32_t *code = code_.numbers<int32_t>("code", count_of(codebooks, cells));
  const int32_t *cell_of = cell_of_.numbers<int32_t>("cell_of", items);
  const float *mass = mass_.maybe<float>("mass", items), *scores = scores_.numbers<float>("scores", count_of(rows, width));
  const double *log_z = log_z_.numbers<double>("log_z", rows);
  const int64_t *id = ids.numbers<int64_t>("ids", n), *row = row_.numbers<int64_t>("row", n);
  float *out = out_.numbers<float>("out", n);
  check_ids(id, n, items, "ids", threads);
  check_ids(row, n, rows, "row", threads);
  constexpr int64_t AHEAD = 16;  // prefetch distance: most rows miss every cache
  share(n, 64, threads, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      if (i + AHEAD < b) {
        __builtin_prefetch(cell_of + id[i + AHEAD]);
        if (mass) __builtin_prefetch(mass + id[i + AHEAD]);
      }
      const int32_t cell = cell_of[id[i]];
      if (cell >= cells) refuse_id(cell, id[i], cells, "cells of items");
      double total = -log_z[row[i]];
      for (int64_t k = 0; k < codebooks && cell >= 0; ++k) {
        const int32_t word = code[k * cells + cell];
        if (word < 0 || word >= width) refuse_id(word, k * cells + cell, width, "code");
        total += static_cast<double>(scores[row[i] * width + word]);
      }
      if (mass) total += static_cast<double>(mass[id[i]]);
      out[i] = cell < 0 ? -__builtin_inff() : static_cast<float>(total);
    }
  });
}

void nearest(const Buffer &points_, int64_t stride, int64_t n, int64_t d, const Buffer &centres_, const Buffer &half_,
             int64_t k, const Buffer &code_, int threads) {
  check_positive(k, "k");
  if (k % 16) refuse("there must be a multiple of 16 centres, got " + std::to_string(k));
  const float *points = points_.apart<float>("points", reach_of(n, d, stride));
  const float *centres = centres_.numbers<float>("centres", count_of(d, k)), *half = half_.numbers<float>("half", k);
  int64_t *code = code_.numbers<int64_t>("code", n);
  share(n, d * k / 8, threads, [&](int64_t a, int64_t b) {
    tables->nearest(points + a * stride, stride, b - a, d, centres, half, k, code + a);
  });
}

void alias_tables(const Buffer &weight_, const Buffer &start_, int64_t cells, const Buffer &accept, const Buffer &other) {
  const int64_t *start = start_.numbers<int64_t>("start", count_of(cells) + 1);
  const int64_t n = check_offsets(start, cells, weight_.count(), "start");
  const double *weight = weight_.numbers<double>("weight", n);
  for (int64_t i = 0; i < n; ++i)
    if (!(weight[i] >= 0 && weight[i] < INFINITY))
      refuse("weights must be finite and not negative, got " + std::to_string(weight[i]) + " at " + std::to_string(i));
  alias(weight, start, cells, accept.numbers<float>("accept", n), other.numbers<int32_t>("other", n));
}

// The ids of a row: a block of `each`, then those between two offsets. `rows` counts all of them.
struct Picks {
  const int64_t *ids, *more, *offset;
  int64_t each, rows, others;  // others: the ids between offsets
  Picks(const Buffer &ids_, int64_t each_, const Buffer &more_, const Buffer &offset_, int64_t rows_, int64_t size,
        int threads)
      : ids(ids_.numbers<int64_t>("ids", count_of(rows_, each_))), more(nullptr),
        offset(offset_.numbers<int64_t>("offsets", rows_ + 1)), each(each_), rows(rows_),
        others(check_offsets(offset, rows, more_.count(), "offsets")) {
    more = more_.numbers<int64_t>("more", others);
    check_ids(ids, rows * each, size, "item ids", threads);
    check_ids(more, others, size, "item ids", threads);
  }
  const int64_t *block(int64_t row) const { return ids + row * each; }
  int64_t after_block(int64_t row) const { return (rows - row - 1) * each; }
  int64_t first(int64_t row) const { return offset[row]; }
  int64_t count(int64_t row) const { return offset[row + 1] - offset[row]; }
  int64_t after(int64_t row) const { return offset[rows] - offset[row + 1]; }
};

template <class T>
void dots(const Buffer &queries_, const Buffer &table_, int64_t size, int64_t d, int64_t rows, const Buffer &ids,
          int64_t each, const Buffer &more, const Buffer &offset, const Buffer &scores_, const Buffer &more_scores_,
          int threads) {
  const T *queries = queries_.table<T>("queries", rows, d), *weight = table_.table<T>("table", size, d);
  const Picks p(ids, each, more, offset, rows, size, threads);
  T *scores = scores_.numbers<T>("scores", rows * each), *more_scores = more_scores_.numbers<T>("more scores", p.others);
  share(rows, 2 * each * d, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      const T *query = queries + r * d;
      const int64_t at = p.first(r);
      table<T>().picked_dots(query, weight, d, p.block(r), each, p.after_block(r), scores + r * each);
      table<T>().picked_dots(query, weight, d, p.more + at, p.count(r), p.after(r), more_scores + at);
    }
  });
}

// Gradients of those scores: `pull` to the queries, `values` to the rows of the table, block by block, then the others.
// `scale`, a number per row, multiplies those of the block; null: 1.
template <class T>
void pulls(const Buffer &queries_, const Buffer &table_, int64_t size, int64_t d, int64_t rows, const Buffer &ids,
           int64_t each, const Buffer &more, const Buffer &offset, const Buffer &by_, const Buffer &scale_,
           const Buffer &more_by_, const Buffer &pull_, const Buffer &values_, int threads) {
  const T *queries = queries_.table<T>("queries", rows, d), *weight = table_.table<T>("table", size, d);
  const Picks p(ids, each, more, offset, rows, size, threads);
  const T *by = by_.numbers<T>("by", rows * each), *scale = scale_.maybe<T>("scale", rows);
  const T *more_by = more_by_.numbers<T>("more by", p.others);
  T *pull = pull_.maybe<T>("pull", rows * d), *values = values_.maybe<T>("values", count_of(rows * each + p.others, d));
  share(rows, 2 * each * d, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      const T *query = queries + r * d;
      T *to = pull ? pull + r * d : nullptr;
      T *block = values ? values + r * each * d : nullptr;
      T *rest = values ? values + (rows * each + p.first(r)) * d : nullptr;
      table<T>().picked_pulls(query, weight, d, p.block(r), each, p.after_block(r), by + r * each,
                              scale ? scale[r] : T(1), to, block);
      table<T>().picked_pulls(query, weight, d, p.more + p.first(r), p.count(r), p.after(r), more_by + p.first(r), T(1),
                              to, rest);
    }
  });
}

// Rows of scores, less `shift` (a row for each, or one for all: stride 0), to their softmax; and its log normaliser.
template <class T>
void soften(const Buffer &scores_, int64_t rows, int64_t n, const Buffer &shift_, int64_t stride, const Buffer &log_sum_,
            int threads) {
  T *scores = scores_.numbers<T>("scores", count_of(rows, n)), *log_sum = log_sum_.numbers<T>("log_sum", rows);
  const T *shift = shift_.numbers<T>("shift", reach_of(rows, n, stride));
  share(rows, 4 * n, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) log_sum[r] = table<T>().soften(scores + r * n, shift + r * stride, n);
  });
}

// Sums of rows of a table times `by`, a number per bag.
template <class T>
void bags(const Buffer &table_, int64_t size, int64_t d, const Buffer &ids, const Buffer &offset_, int64_t rows,
          const Buffer &by_, const Buffer &out_, int threads) {
  const T *weight = table_.table<T>("table", size, d), *by = by_.numbers<T>("by", count_of(rows));
  const int64_t *offset = offset_.numbers<int64_t>("offsets", rows + 1);
  const int64_t n = check_offsets(offset, rows, ids.count(), "offsets"), *id = ids.numbers<int64_t>("ids", n);
  T *out = out_.numbers<T>("out", count_of(rows, d));
  check_ids(id, n, size, "item ids", threads);
  share(rows, 16 * d, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r)
      table<T>().bag(weight, d, id + offset[r], offset[r + 1] - offset[r], n - offset[r + 1], by[r], out + r * d);
  });
}

template <class T>
void unbags(const Buffer &grad_, int64_t d, const Buffer &offset_, int64_t rows, const Buffer &by_,
            const Buffer &values_, int threads) {
  const T *grad = grad_.numbers<T>("grad", count_of(rows, d)), *by = by_.numbers<T>("by", rows);
  const int64_t *offset = offset_.numbers<int64_t>("offsets", rows + 1);
  const int64_t n = check_offsets(offset, rows, values_.count(), "offsets");
  T *values = values_.numbers<T>("values", count_of(n, d));
  share(rows, 16 * d, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r)
      table<T>().unbag(grad + r * d, d, offset[r + 1] - offset[r], by[r], values + offset[r] * d);
  });
}

// Retains each entry of the bags with probability `keep`. Returns their number. `out` has one more element.
int64_t thin(const Buffer &ids_, const Buffer &offset_, int64_t rows, double keep, uint64_t seed, const Buffer &out_,
             const Buffer &start_) {
  const int64_t *offset = offset_.numbers<int64_t>("offsets", count_of(rows) + 1);
  const int64_t n = check_offsets(offset, rows, ids_.count(), "offsets"), *ids = ids_.numbers<int64_t>("ids", n);
  int64_t *out = out_.numbers<int64_t>("out", n + 1), *start = start_.numbers<int64_t>("start", rows + 1), retained = 0;
  Random random(seed, 0);
  for (int64_t r = 0; r < rows; ++r) {
    start[r] = retained;
    for (int64_t i = offset[r]; i < offset[r + 1]; ++i) {
      out[retained] = ids[i];
      retained += random.unit() < keep;
    }
  }
  start[rows] = retained;
  return retained;
}

// Groups ids, a block of `each` per row and those between two offsets, by owner (id % world) and then by row. `order`:
// the place of each among all blocks and then all others; `local`: id / world; `counts`: (world, rows).
void by_owner(const Buffer &ids_, int64_t each, const Buffer &more_, const Buffer &offset_, int64_t rows, int64_t world,
              const Buffer &order_, const Buffer &local_, const Buffer &counts_) {
  check_positive(world, "world");
  const int64_t blocks = count_of(rows, each), *ids = ids_.numbers<int64_t>("ids", blocks);
  const int64_t *offset = offset_.numbers<int64_t>("offsets", count_of(rows) + 1);
  const int64_t others = check_offsets(offset, rows, more_.count(), "offsets"), n = blocks + others;
  const int64_t *more = more_.numbers<int64_t>("more", others);
  int64_t *order = order_.numbers<int64_t>("order", n), *local = local_.numbers<int64_t>("local", n);
  int64_t *counts = counts_.numbers<int64_t>("counts", count_of(world, rows));
  const uint64_t by = static_cast<uint64_t>(world);
  const bool power = (by & (by - 1)) == 0;
  const auto owner = [&](int64_t id) {
    const uint64_t x = static_cast<uint64_t>(id);
    if (power) return x & (by - 1);
    return x >> 32 ? x % by : static_cast<uint64_t>(static_cast<uint32_t>(x) % static_cast<uint32_t>(by));
  };
  const auto visit = [&](auto &&use) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = r * each; i < (r + 1) * each; ++i) use(r, i, ids[i]);
      for (int64_t i = offset[r]; i < offset[r + 1]; ++i) use(r, blocks + i, more[i]);
    }
  };
  if (by >> 32) refuse("there must be fewer than 2^32 processes, got " + std::to_string(world));
  std::vector<int64_t> place(static_cast<size_t>(count_of(world, rows)));
  visit([&](int64_t r, int64_t, int64_t id) {
    if (id < 0) refuse("ids must not be negative, got " + std::to_string(id));
    ++place[owner(id) * static_cast<uint64_t>(rows) + static_cast<uint64_t>(r)];
  });
  int64_t before = 0;
  for (size_t i = 0; i < place.size(); ++i) {
    counts[i] = place[i];
    place[i] = before;
    before += counts[i];
  }
  visit([&](int64_t r, int64_t i, int64_t id) {
    const uint64_t at = owner(id);
    int64_t &next = place[at * static_cast<uint64_t>(rows) + static_cast<uint64_t>(r)];
    order[next] = i;
    local[next++] = static_cast<int64_t>((static_cast<uint64_t>(id) - at) / by);
  });
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
  m.def("by_owner", &by_owner, release());
  m.def("alias_tables", &alias_tables, release());
  bind<float>(m, "f32");
  bind<double>(m, "f64");
}
