// Tables whose rows are mixed from a few anchors, for Python.
#include "bind.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

constexpr int64_t AHEAD = 24;         // rows of the tables asked for before they are needed
constexpr int64_t TILE = 64;          // rows of the table in a tile of scores
constexpr int64_t BLOCK = 16 * TILE;  // rows scored by one slab of queries before the next, which takes its place in cache
constexpr int64_t LINE = 16;          // queries are shared out this many at a time
constexpr int64_t BAD_SLOTS = -2;     // what is returned where a slot names no anchor

template <class T> const T *reading(uintptr_t address) { return reinterpret_cast<const T *>(address); }
template <class T> T *writing(uintptr_t address) { return reinterpret_cast<T *>(address); }

// The slots, whatever they are stored in.
struct Slots {
  uintptr_t first;
  int64_t bytes;
  template <class F> auto as(F use) const {
    if (bytes == 1) return use(reading<uint8_t>(first));
    if (bytes == 2) return use(reading<int16_t>(first));
    return use(reading<int32_t>(first));
  }
};

// n slots as int32; whether all of them are below k.
template <class S> bool widen(const S *from, int64_t n, int32_t k, int32_t *to) {
  int32_t bad = 0;
  for (int64_t j = 0; j < n; ++j) {
    const int32_t slot = from[j];
    to[j] = slot;
    bad |= (slot < 0) | (slot >= k);
  }
  return !bad;
}

// A table of weights and slots.
template <class T> struct Rows {
  const T *weight;
  Slots slots;
  int64_t size, s;
  int32_t anchors;

  // The rows of n ids, one after the other. Returns the position of an id that is none, BAD_SLOTS, or -1.
  int64_t take(const int64_t *id, int64_t n, T *weights, int32_t *slot, int threads) const {
    for (int64_t i = 0; i < n; ++i)
      if (static_cast<uint64_t>(id[i]) >= static_cast<uint64_t>(size)) return i;
    std::atomic<bool> fine{true};
    slots.as([&](const auto *from) {
      share(n, 8 * s, threads, [&](int64_t a, int64_t b) {
        bool mine = true;
        for (int64_t i = a; i < b; ++i) {
          if (i + AHEAD < b) {
            const int64_t next = id[i + AHEAD] * s;
            for (int64_t j = 0; j < s; j += 64 / int64_t(sizeof(T))) __builtin_prefetch(weight + next + j);
            __builtin_prefetch(weight + next + s - 1);
            for (int64_t j = 0; j < s; j += 64 / int64_t(sizeof(*from))) __builtin_prefetch(from + next + j);
            __builtin_prefetch(from + next + s - 1);
          }
          for (int64_t j = 0; j < s; ++j) weights[i * s + j] = weight[id[i] * s + j];
          mine &= widen(from + id[i] * s, s, anchors, slot + i * s);
        }
        if (!mine) fine = false;
      });
    });
    return fine ? -1 : BAD_SLOTS;
  }
};

// Rows of ids, or sums of them where offsets are given; what they were made of is left in `terms` and `slot`.
template <class T>
int64_t mix(uintptr_t anchors, int64_t k, int64_t d, uintptr_t weight, uintptr_t slots, int64_t slot_bytes, int64_t size,
            int64_t s, uintptr_t ids, int64_t n, uintptr_t offset, uintptr_t by, int64_t bags, uintptr_t terms,
            uintptr_t slot, uintptr_t out, int threads) {
  const Rows<T> rows{reading<T>(weight), {slots, slot_bytes}, size, s, static_cast<int32_t>(k)};
  const int64_t bad = rows.take(reading<int64_t>(ids), n, writing<T>(terms), writing<int32_t>(slot), threads);
  if (bad != -1) return bad;
  const Terms<T> t{reading<T>(terms), reading<int32_t>(slot), s, reading<int64_t>(offset), reading<T>(by)};
  share(bags, s * d, threads, [&](int64_t a, int64_t b) {
    table<T>().mix(reading<T>(anchors), d, t, a, b, writing<T>(out));
  });
  return -1;
}

// Sums of rows of a table, bag after bag: the terms are given as they are.
template <class T>
void blend(uintptr_t rows, int64_t d, uintptr_t weight, uintptr_t slot, uintptr_t offset, int64_t bags, uintptr_t out,
           int threads) {
  const Terms<T> t{reading<T>(weight), reading<int32_t>(slot), 1, reading<int64_t>(offset), nullptr};
  const int64_t each = bags ? reading<int64_t>(offset)[bags] / bags + 1 : 1;
  share(bags, each * d, threads, [&](int64_t a, int64_t b) {
    table<T>().mix(reading<T>(rows), d, t, a, b, writing<T>(out));
  });
}

// Gradients: `values`, of each term, and `pull`, of the anchors, which starts at zero. Either may be left out.
template <class T>
void unmix(uintptr_t anchors, int64_t d, uintptr_t terms, uintptr_t slot, int64_t s, uintptr_t offset, uintptr_t by,
           int64_t bags, uintptr_t grad, uintptr_t values, uintptr_t pull, int threads) {
  const Terms<T> t{reading<T>(terms), reading<int32_t>(slot), s, reading<int64_t>(offset), reading<T>(by)};
  const T *g = reading<T>(grad);
  if (values)
    share(bags, s * d, threads, [&](int64_t a, int64_t b) {
      table<T>().mix_dots(reading<T>(anchors), d, t, g, a, b, writing<T>(values));
    });
  if (pull)
    share((d + LINE - 1) / LINE, bags * s * LINE, threads, [&](int64_t a, int64_t b) {
      const int64_t first = a * LINE, last = std::min(b * LINE, d);
      table<T>().mix_pull(g + first, d, t, 0, bags, writing<T>(pull) + first, d, last - first);
    });
}

// ---- the scores of every row --------------------------------------------------------------------------------------------

// Queries in slabs: the scores of the anchors lie as (slabs, anchors, width), the last slab filled up with zeros.
struct Slabs {
  int64_t queries, width, anchors;
  int64_t count() const { return (queries + width - 1) / width; }
  int64_t across(int64_t slab) const { return std::min(width, queries - slab * width); }
};

// Where the first line of the cache begins, in room for one more.
template <class T> T *on_line(T *room) {
  return reinterpret_cast<T *>((reinterpret_cast<uintptr_t>(room) + 63) / 64 * 64);
}

// Every thread takes the next piece that nobody has, until there is none: one that is held up holds up no other.
template <class F> void take_turns(int64_t pieces, int64_t work, int threads, F use) {
  std::atomic<int64_t> next{0};
  const auto piece = [&] {
    const int64_t mine = next.fetch_add(1, std::memory_order_relaxed);
    return mine < pieces ? mine : -1;
  };
  share(std::min<int64_t>(threads, pieces), work, threads, [&](int64_t, int64_t) { use(piece); });
}

// A large page is made by whoever meets it first: two that meet the same new page would both clear it.
template <class T> void make_pages(T *first, int64_t n, int threads) {
  constexpr int64_t PAGE = (1 << 21) / sizeof(T);
  take_turns(n / PAGE, n, threads, [&](auto piece) {
    for (int64_t page; (page = piece()) >= 0;) first[page * PAGE + PAGE - 1] = T(0);
  });
}

template <class T>
bool tied(uintptr_t turned, int64_t queries, int64_t width, int64_t k, uintptr_t weight, uintptr_t slots,
          int64_t slot_bytes, int64_t size, int64_t s, uintptr_t out, int threads) {
  const Slabs slabs{queries, width, k};
  std::atomic<bool> fine{true};
  make_pages(writing<T>(out), queries * size, threads);
  Slots{slots, slot_bytes}.as([&](const auto *from) {
    take_turns((size + BLOCK - 1) / BLOCK, size * s * width, threads, [&](auto piece) {
      std::vector<int32_t> slot(static_cast<size_t>(BLOCK * s));
      std::vector<T> room(static_cast<size_t>(TILE * width + LINE));
      T *tile = on_line(room.data());
      for (int64_t block; (block = piece()) >= 0;) {
        const int64_t first = block * BLOCK, last = std::min(first + BLOCK, size);
        if (!widen(from + first * s, (last - first) * s, static_cast<int32_t>(k), slot.data())) fine = false;
        if (!fine) return;
        for (int64_t slab = 0; slab < slabs.count(); ++slab)
          for (int64_t v = first; v < last; v += TILE) {
            const int64_t rows = std::min(TILE, last - v);
            const Terms<T> t{reading<T>(weight) + v * s, slot.data() + (v - first) * s, s, nullptr, nullptr};
            table<T>().mix(reading<T>(turned) + slab * k * width, width, t, 0, rows, tile);
            table<T>().tile_out(tile, width, rows, slabs.across(slab), writing<T>(out) + slab * width * size + v, size);
          }
      }
    });
  });
  return fine;
}

// The rows that have a gradient beyond the bar, ascending, in `rows`, and the gradients of their weights, one after the
// other, in `values`; without `rows` every gradient lies at its own row, and what is there must be zero before.
// `marks` (size,), zero before, says which rows they were. Returns how many. `values` may be left out.
template <class T>
int64_t untied(uintptr_t turned, int64_t queries, int64_t width, int64_t k, uintptr_t slots, int64_t slot_bytes,
               int64_t size, int64_t s, uintptr_t grad, double bar, uintptr_t marks, uintptr_t rows_, uintptr_t values,
               int threads) {
  const Slabs slabs{queries, width, k};
  std::mutex lock;
  std::vector<std::pair<int64_t, int64_t>> parts;  // where a thread began to write, how many rows
  Slots{slots, slot_bytes}.as([&](const auto *from) {
    share((size + TILE - 1) / TILE, TILE * s * width, threads, [&](int64_t a, int64_t b) {
      std::vector<int32_t> slot(static_cast<size_t>(TILE * s));
      std::vector<T> tile(static_cast<size_t>(TILE * width)), dots(static_cast<size_t>(TILE * s)), sums(dots.size());
      int64_t to = a * TILE;
      for (int64_t v = a * TILE; v < std::min(b * TILE, size); v += TILE) {
        const int64_t rows = std::min(TILE, size - v);
        uint8_t *mark = writing<uint8_t>(marks) + v;
        std::fill(sums.begin(), sums.end(), T(0));
        for (int64_t slab = 0; slab < slabs.count(); ++slab) {
          const T *g = reading<T>(grad) + slab * width * size + v;
          uint8_t own[TILE] = {};
          if (!table<T>().tile_marks(g, size, slabs.across(slab), rows, static_cast<T>(bar), own)) continue;
          for (int64_t r = 0; r < rows; ++r) mark[r] |= own[r];
          if (!values) continue;
          widen(from + v * s, rows * s, 0, slot.data());
          table<T>().tile_in(g, size, rows, slabs.across(slab), static_cast<T>(bar), tile.data(), width);
          const Terms<T> t{nullptr, slot.data(), s, nullptr, nullptr};
          for (int64_t r = 0; r < rows; ++r) {
            if (!own[r]) continue;
            table<T>().mix_dots(reading<T>(turned) + slab * k * width, width, t, tile.data(), r, r + 1, dots.data());
            for (int64_t j = r * s; j < (r + 1) * s; ++j) sums[j] += dots[j];
          }
        }
        for (int64_t r = 0; r < rows; ++r) {
          if (!mark[r]) continue;
          const int64_t at = rows_ ? to : v + r;
          if (rows_) writing<int64_t>(rows_)[at] = v + r;
          if (values) std::copy_n(sums.data() + r * s, s, writing<T>(values) + at * s);
          ++to;
        }
      }
      const std::lock_guard<std::mutex> guard(lock);
      parts.emplace_back(a * TILE, to - a * TILE);
    });
  });
  std::sort(parts.begin(), parts.end());
  int64_t total = 0;
  for (const auto &[first, count] : parts) {
    if (rows_ && first != total) {
      int64_t *rows = writing<int64_t>(rows_);
      std::memmove(rows + total, rows + first, static_cast<size_t>(count) * sizeof(int64_t));
      T *own = writing<T>(values);
      if (own) std::memmove(own + total * s, own + first * s, static_cast<size_t>(count * s) * sizeof(T));
    }
    total += count;
  }
  return total;
}

// The gradient of the scores of the anchors, in slabs as they are, zero before. Threads share out the queries.
template <class T>
void untied_pull(int64_t queries, int64_t width, int64_t k, uintptr_t weight, uintptr_t slots, int64_t slot_bytes,
                 int64_t size, int64_t s, uintptr_t grad, double bar, uintptr_t marks, uintptr_t pull, int threads) {
  const Slabs slabs{queries, width, k};
  const int64_t lines = width / LINE;  // of a slab
  Slots{slots, slot_bytes}.as([&](const auto *from) {
    share(slabs.count() * lines, size * s * LINE, threads, [&](int64_t a, int64_t b) {
      std::vector<int32_t> slot(static_cast<size_t>(TILE * s));
      std::vector<T> tile(static_cast<size_t>(TILE * width));
      for (int64_t next; a < b; a = next) {
        const int64_t slab = a / lines, first = a % lines * LINE;
        next = std::min(b, (slab + 1) * lines);
        const int64_t own = (next - a) * LINE, across = std::min(own, slabs.across(slab) - first);
        if (across <= 0) continue;
        for (int64_t v = 0; v < size; v += TILE) {
          const int64_t rows = std::min(TILE, size - v);
          const uint8_t *mark = reading<uint8_t>(marks) + v;
          if (std::none_of(mark, mark + rows, [](uint8_t m) { return m; })) continue;
          widen(from + v * s, rows * s, 0, slot.data());
          const T *g = reading<T>(grad) + (slab * width + first) * size + v;
          table<T>().tile_in(g, size, rows, across, static_cast<T>(bar), tile.data(), own);
          const Terms<T> t{reading<T>(weight) + v * s, slot.data(), s, nullptr, nullptr};
          for (int64_t r = 0, end; r < rows; r = end + 1) {
            for (end = r; end < rows && mark[end];) ++end;
            if (r < end)
              table<T>().mix_pull(tile.data(), own, t, r, end, writing<T>(pull) + slab * k * width + first, width, own);
          }
        }
      }
    });
  });
}

// ---- the scores of a few rows -------------------------------------------------------------------------------------------

// Takes the rows of the ids each query has of its own, (queries, each), then of the further ones; scores of both.
template <class T>
int64_t mixed_dots(uintptr_t projected, int64_t k, int64_t queries, uintptr_t weight, uintptr_t slots, int64_t slot_bytes,
                   int64_t size, int64_t s, uintptr_t ids, int64_t each, int64_t n, uintptr_t offset_, uintptr_t terms,
                   uintptr_t slot, uintptr_t scores, uintptr_t more_scores, int threads) {
  const Rows<T> rows{reading<T>(weight), {slots, slot_bytes}, size, s, static_cast<int32_t>(k)};
  const int64_t bad = rows.take(reading<int64_t>(ids), n, writing<T>(terms), writing<int32_t>(slot), threads);
  if (bad != -1) return bad;
  const int64_t *offset = reading<int64_t>(offset_);
  share(queries, 4 * each * s, threads, [&](int64_t a, int64_t b) {
    for (int64_t q = a; q < b; ++q) {
      const auto part = [&](int64_t first, int64_t count, T *to) {
        table<T>().mix_scores(reading<T>(projected) + q * k, reading<T>(terms) + first * s,
                              reading<int32_t>(slot) + first * s, s, count, to);
      };
      part(q * each, each, writing<T>(scores) + q * each);
      part(queries * each + offset[q], offset[q + 1] - offset[q], writing<T>(more_scores) + offset[q]);
    }
  });
  return -1;
}

// Their gradients, `by` in the order of the scores; `scale`, a number per query, multiplies those of its own ids.
template <class T>
void mixed_pulls(uintptr_t projected, int64_t k, int64_t queries, int64_t s, int64_t each, uintptr_t offset_,
                 uintptr_t terms, uintptr_t slot, uintptr_t by, uintptr_t scale, uintptr_t more_by, uintptr_t pull,
                 uintptr_t values, int threads) {
  const int64_t *offset = reading<int64_t>(offset_);
  share(queries, 4 * each * s, threads, [&](int64_t a, int64_t b) {
    for (int64_t q = a; q < b; ++q) {
      const auto part = [&](int64_t first, int64_t count, const T *own, T times) {
        table<T>().mix_score_pulls(reading<T>(projected) + q * k, reading<T>(terms) + first * s,
                                   reading<int32_t>(slot) + first * s, s, count, own, times,
                                   pull ? writing<T>(pull) + q * k : nullptr,
                                   values ? writing<T>(values) + first * s : nullptr);
      };
      part(q * each, each, reading<T>(by) + q * each, scale ? reading<T>(scale)[q] : T(1));
      part(queries * each + offset[q], offset[q + 1] - offset[q], reading<T>(more_by) + offset[q], T(1));
    }
  });
}

template <class T> void bind(nb::module_ &m, const std::string &suffix) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def(("mix_" + suffix).c_str(), &mix<T>, release());
  m.def(("unmix_" + suffix).c_str(), &unmix<T>, release());
  m.def(("blend_" + suffix).c_str(), &blend<T>, release());
  m.def(("tied_" + suffix).c_str(), &tied<T>, release());
  m.def(("untied_" + suffix).c_str(), &untied<T>, release());
  m.def(("untied_pull_" + suffix).c_str(), &untied_pull<T>, release());
  m.def(("mixed_dots_" + suffix).c_str(), &mixed_dots<T>, release());
  m.def(("mixed_pulls_" + suffix).c_str(), &mixed_pulls<T>, release());
}

}  // namespace

void bind_anchors(nb::module_ &m) {
  bind<float>(m, "f32");
  bind<double>(m, "f64");
}
