// The Python side of the kernels: raw addresses in, rows shared out over threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "bind.h"
#include "prox.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

const Tables *choose() {
  const char *wish = std::getenv("FEWFOLD_ISA");
  const std::string limit = wish ? wish : "";
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (avx512 && limit != "avx2" && limit != "generic") return &avx512_tables;
  if (avx2 && limit != "generic") return &avx2_tables;
#endif
  return &generic_tables;
}

Kept kept_from(uintptr_t places, int64_t room, int64_t row) {
  return {places ? reinterpret_cast<int32_t *>(places) + row * room : nullptr, room};
}

struct FamilyArgument {
  double alpha;
  const double *per_row;
  bool norm;
  Family at(int64_t first) const {
    return per_row ? Family{per_row + first, true, norm} : Family{&alpha, false, norm};
  }
};

// Whether some row had infinite scores.
template <class T>
bool forward(uintptr_t x, uintptr_t p, int64_t rows, int64_t k, double alpha, uintptr_t alphas, bool norm,
             uintptr_t places, int64_t room, int threads) {
  const FamilyArgument f{alpha, reinterpret_cast<const double *>(alphas), norm};
  std::atomic<bool> infinite{false};
  share(rows, k, threads, [&](int64_t a, int64_t b) {
    if (table<T>().forward(reinterpret_cast<const T *>(x) + a * k, reinterpret_cast<T *>(p) + a * k, b - a, k,
                           f.at(a), kept_from(places, room, a)))
      infinite = true;
  });
  return infinite;
}

template <class T>
void backward(uintptr_t p, uintptr_t g, uintptr_t out, int64_t rows, int64_t k, double alpha, uintptr_t alphas,
              bool norm, uintptr_t places, int64_t room, int threads) {
  const FamilyArgument f{alpha, reinterpret_cast<const double *>(alphas), norm};
  share(rows, k, threads, [&](int64_t a, int64_t b) {
    table<T>().backward(reinterpret_cast<const T *>(p) + a * k, reinterpret_cast<const T *>(g) + a * k,
                        reinterpret_cast<T *>(out) + a * k, b - a, k, f.at(a), kept_from(places, room, a));
  });
}

// False if some row needs the caller's care; the output is then unfinished.
template <class T>
bool budget(uintptr_t x, uintptr_t p, int64_t rows, int64_t n, double k, uintptr_t ks, int threads) {
  std::atomic<bool> fine{true};
  const auto *each = reinterpret_cast<const double *>(ks);
  share(rows, n, threads, [&](int64_t a, int64_t b) {
    if (!table<T>().budget(reinterpret_cast<const T *>(x) + a * n, reinterpret_cast<T *>(p) + a * n, b - a, n,
                           each ? each + a : &k, each != nullptr))
      fine = false;
  });
  return fine;
}

template <class T>
void budget_backward(uintptr_t p, uintptr_t g, uintptr_t out, int64_t rows, int64_t n, int threads) {
  share(rows, n, threads, [&](int64_t a, int64_t b) {
    table<T>().budget_backward(reinterpret_cast<const T *>(p) + a * n, reinterpret_cast<const T *>(g) + a * n,
                               reinterpret_cast<T *>(out) + a * n, b - a, n);
  });
}

// Groups and pulls of fusedmax (chain) or oscarmax (ranks).
template <class T, bool Chain>
void groups(uintptr_t z, uintptr_t group, uintptr_t pull, int64_t rows, int64_t k, uintptr_t strength, int threads) {
  (Chain ? tv_groups_rows<T> : oscar_groups_rows<T>)(reinterpret_cast<const T *>(z), reinterpret_cast<int64_t *>(group),
                                                     reinterpret_cast<T *>(pull), rows, k,
                                                     reinterpret_cast<const T *>(strength), threads);
}

template <class T> using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// An array Python owns from here on.
template <class T> Array<T> hand_over(T *data, int64_t n) {
  nb::capsule owner(data, [](void *p) noexcept { std::free(p); });
  return Array<T>(data, {static_cast<size_t>(n)}, owner);
}
template <class T> T *room_for(int64_t n) {
  void *p = std::malloc(static_cast<size_t>(std::max<int64_t>(n, 1)) * sizeof(T));
  if (!p) throw std::bad_alloc();
  return static_cast<T *>(p);
}

// (indices, weights, atoms per row) of all rows.
template <class T>
nb::tuple support(uintptr_t x, int64_t rows, int64_t k, double alpha, uintptr_t alphas, bool norm, int threads) {
  const FamilyArgument f{alpha, reinterpret_cast<const double *>(alphas), norm};
  int64_t *count = room_for<int64_t>(rows);
  std::vector<std::pair<int64_t, Ragged<T>>> parts;
  {
    nb::gil_scoped_release release;
    share(rows, k, threads, [&](int64_t a, int64_t b) {
      Ragged<T> out;
      table<T>().support(reinterpret_cast<const T *>(x) + a * k, b - a, k, f.at(a), out, count + a);
#pragma omp critical
      parts.emplace_back(a, out);
    });
    std::sort(parts.begin(), parts.end(), [](const auto &l, const auto &r) { return l.first < r.first; });
  }
  int64_t n = 0;
  for (const auto &part : parts) n += part.second.n;
  int64_t *index = room_for<int64_t>(n);
  T *weight = room_for<T>(n);
  int64_t at = 0;
  for (auto &part : parts) {
    const Ragged<T> &p = part.second;
    if (p.n) {
      std::memcpy(index + at, p.index, static_cast<size_t>(p.n) * sizeof(int64_t));
      std::memcpy(weight + at, p.weight, static_cast<size_t>(p.n) * sizeof(T));
    }
    at += p.n;
    std::free(p.index);
    std::free(p.weight);
  }
  return nb::make_tuple(hand_over(index, n), hand_over(weight, n), hand_over(count, rows));
}

// Rows of scores that arrive in chunks of columns, reduced to their candidates.
template <class T> class Streams {
 public:
  Streams(int64_t rows, double alpha, int64_t most)
      : rows_(rows), alpha_(alpha), most_(most), streams_(table<T>().streams_new(rows)) {}
  ~Streams() { table<T>().streams_free(streams_, rows_); }
  Streams(const Streams &) = delete;
  Streams &operator=(const Streams &) = delete;

  void push(uintptr_t x, int64_t size, int64_t stride, int64_t base, int threads) {
    share(rows_, size, threads, [&](int64_t a, int64_t b) {
      table<T>().streams_push(streams_, reinterpret_cast<const T *>(x), a, b, size, stride, base, alpha_, most_);
    });
  }
  // (columns, scores, candidates per row; -1 for rows with too many)
  nb::tuple take() {
    int64_t *count = room_for<int64_t>(rows_), n = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      count[r] = table<T>().streams_take(streams_, r, alpha_, nullptr, nullptr);
      n += std::max<int64_t>(count[r], 0);
    }
    int64_t *column = room_for<int64_t>(n), at = 0;
    T *score = room_for<T>(n);
    for (int64_t r = 0; r < rows_; ++r)
      if (count[r] > 0) at += table<T>().streams_take(streams_, r, alpha_, column + at, score + at);
    return nb::make_tuple(hand_over(column, n), hand_over(score, n), hand_over(count, rows_));
  }

 private:
  int64_t rows_;
  double alpha_;
  int64_t most_;
  void *streams_;
};

// Zeros, then value[i] at column index[i] of the row that owns i.
template <class T>
void scatter(uintptr_t index, uintptr_t value, uintptr_t first, uintptr_t out, int64_t rows, int64_t k, int threads) {
  const auto *at = reinterpret_cast<const int64_t *>(index), *from = reinterpret_cast<const int64_t *>(first);
  const auto *v = reinterpret_cast<const T *>(value);
  share(rows, k, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      T *row = reinterpret_cast<T *>(out) + r * k;
      std::memset(row, 0, static_cast<size_t>(k) * sizeof(T));
      for (int64_t i = from[r]; i < from[r + 1]; ++i) row[at[i]] += v[i];
    }
  });
}

template <class T> void bind(nb::module_ &m, const std::string &suffix) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def(("forward_" + suffix).c_str(), &forward<T>, release());
  m.def(("backward_" + suffix).c_str(), &backward<T>, release());
  m.def(("support_" + suffix).c_str(), &support<T>);
  m.def(("budget_" + suffix).c_str(), &budget<T>, release());
  m.def(("budget_backward_" + suffix).c_str(), &budget_backward<T>, release());
  m.def(("tv_groups_" + suffix).c_str(), &groups<T, true>, release());
  m.def(("oscar_groups_" + suffix).c_str(), &groups<T, false>, release());
  m.def(("scatter_" + suffix).c_str(), &scatter<T>, release());
  nb::class_<Streams<T>>(m, ("Streams_" + suffix).c_str())
      .def(nb::init<int64_t, double, int64_t>())
      .def("push", &Streams<T>::push, release())
      .def("take", &Streams<T>::take);
}

}  // namespace

const Tables *fewfold::tables = choose();

NB_MODULE(kernels, m) {
  m.def("instruction_set", [] { return std::string(tables->name); });
  m.def("threaded", [] {
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
  });
  bind<float>(m, "f32");
  bind<double>(m, "f64");
  bind_anchors(m);
  bind_best(m);
  bind_assignments(m);
  bind_expected(m);
  bind_graphs(m);
  bind_sampling(m);
  bind_sequences(m);
  bind_structured(m);
  bind_touch(m);
  bind_trees(m);
}
