// Assignments: the best, the k best, SparseMAP with and without its structures.
#include "bind.h"
#include "birkhoff.h"
#include "decompose.h"
#include "murty.h"
#include "solve.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

constexpr int64_t NEWTON_TURNS = 200;  // ten or so are usual

struct Shape {
  int64_t instances, rows, columns;
  bool alone;
  int threads;
  int64_t parts() const { return rows * columns; }
};

// One worker for each thread, made when it has something to do.
template <class Worker> class Workers {
 public:
  explicit Workers(int threads) : all_(static_cast<size_t>(std::max(1, threads))) {}
  template <class Make> Worker &of(int lane, Make make) {
    auto &mine = all_[static_cast<size_t>(lane)];
    if (!mine) mine.reset(make());
    return *mine;
  }

 private:
  std::vector<std::unique_ptr<Worker>> all_;
};

struct Projector {
  AssignmentOracle oracle;
  BirkhoffProjection projection;
  explicit Projector(const Shape &s) : oracle(s.rows, s.columns, s.alone), projection(oracle) {}
};

void best(const Shape &s, uintptr_t scores, uintptr_t codes, uintptr_t values) {
  Workers<AssignmentOracle> workers(s.threads);
  each_row(s.instances, s.threads, [&](int64_t r, int lane) {
    auto &oracle = workers.of(lane, [&] { return new AssignmentOracle(s.rows, s.columns, s.alone); });
    int32_t *code = address<int32_t>(codes) + r * s.rows;
    const double value = oracle.best(address<const double>(scores) + r * s.parts(), code);
    if (!(value > -INFINITY)) std::fill_n(code, s.rows, -1);
    address<double>(values)[r] = value;
  });
}

void best_k(const Shape &s, uintptr_t scores, int64_t k, uintptr_t codes, uintptr_t values) {
  Workers<Murty> workers(s.threads);
  each_row(s.instances, s.threads, [&](int64_t r, int lane) {
    workers.of(lane, [&] { return new Murty(s.rows, s.columns, s.alone); })
        .run(address<const double>(scores) + r * s.parts(), k, address<int32_t>(codes) + r * k * s.rows,
             address<double>(values) + r * k);
  });
}

void project(const Shape &s, uintptr_t scores, uintptr_t marginals, uintptr_t gaps, uintptr_t took,
             uintptr_t outcomes) {
  Workers<Projector> workers(s.threads);
  each_row(s.instances, s.threads, [&](int64_t r, int lane) {
    double *mu = address<double>(marginals) + r * s.parts();
    const Told told = workers.of(lane, [&] { return new Projector(s); })
                          .projection.run(address<const double>(scores) + r * s.parts(), mu, NEWTON_TURNS);
    if (told.outcome == Outcome::no_numbers) std::fill_n(mu, s.parts(), NAN);
    address<double>(gaps)[r] = told.gap;
    address<int64_t>(took)[r] = told.turns;
    address<int32_t>(outcomes)[r] = static_cast<int32_t>(told.outcome);
  });
}

void face(const Shape &s, uintptr_t marginals, uintptr_t change, uintptr_t to) {
  Workers<BirkhoffFace> workers(s.threads);
  each_row(s.instances, s.threads, [&](int64_t r, int lane) {
    const int64_t at = r * s.parts();
    workers.of(lane, [&] { return new BirkhoffFace(s.rows, s.columns); })
        .apply(address<const double>(marginals) + at, address<const double>(change) + at, address<double>(to) + at);
  });
}

// The projection, taken apart, is where the active set starts from: it has little to do but to say how good that is.
nb::tuple sparsemap_assignments(Request q, const Shape &s) {
  std::vector<std::vector<int32_t>> found(static_cast<size_t>(q.rows));
  std::vector<int32_t> codes;
  std::vector<int64_t> offsets{0};
  if (!q.warm_offsets) {
    nb::gil_scoped_release release;
    Workers<Projector> workers(s.threads);
    Workers<Decomposition> decompositions(s.threads);
    each_row(s.instances, s.threads, [&](int64_t r, int lane) {
      double *mu = address<double>(q.marginals) + r * s.parts();
      const Told told = workers.of(lane, [&] { return new Projector(s); })
                            .projection.run(address<const double>(q.scores) + r * s.parts(), mu, NEWTON_TURNS);
      if (told.outcome != Outcome::converged) return;
      auto &own = found[static_cast<size_t>(r)];
      decompositions.of(lane, [&] { return new Decomposition(); })
          .run(mu, s.rows, s.columns, [&](const int32_t *code, double) { own.insert(own.end(), code, code + s.rows); });
    });
    for (const auto &own : found) {
      codes.insert(codes.end(), own.begin(), own.end());
      offsets.push_back(static_cast<int64_t>(codes.size()) / std::max<int64_t>(1, s.rows));
    }
    q.warm_codes = reinterpret_cast<uintptr_t>(codes.data());
    q.warm_offsets = reinterpret_cast<uintptr_t>(offsets.data());
  }
  return solve_rows(q, [&](int64_t, int) { return AssignmentOracle(s.rows, s.columns, s.alone); });
}

}  // namespace

void bind_assignments(nb::module_ &m) {
  nb::class_<Shape>(m, "AssignmentShape")
      .def("__init__", [](Shape *at, int64_t instances, int64_t rows, int64_t columns, bool alone, int threads) {
        new (at) Shape{instances, rows, columns, alone, threads};
      });
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  m.def("best_assignments", &best, unlocked);
  m.def("best_assignments_k", &best_k, unlocked);
  m.def("project_assignments", &project, unlocked);
  m.def("face_assignments", &face, unlocked);
  m.def("sparsemap_assignments", &sparsemap_assignments);
}
