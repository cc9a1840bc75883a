// Assignments: the best, the k best, SparseMAP with and without its structures.
#include "bind.h"
#include "birkhoff.h"
#include "decompose.h"
#include "murty.h"
#include "solve.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

constexpr int64_t NEWTON_TURNS = 200;  // about ten are typical
constexpr int64_t MOST_COLUMNS_WITHOUT_ROWS = 4096;  // bounds memory where no scores bound it

struct Shape {
  int64_t instances, rows, columns;
  bool alone;
  int threads;
  Shape(int64_t instances_, int64_t rows_, int64_t columns_, bool alone_, int threads_)
      : instances(instances_), rows(rows_), columns(columns_), alone(alone_), threads(lanes_for(instances_, threads_)) {
    if (count_of(rows, columns) > std::numeric_limits<int32_t>::max()) refuse("there must be fewer than 2^31 pairs");
    if (rows == 0 && columns > MOST_COLUMNS_WITHOUT_ROWS)
      refuse("there must be rows for " + std::to_string(columns) + " columns");
    count_of(columns, columns, instances);
    count_of(rows, columns, instances);
  }
  int64_t parts() const { return rows * columns; }
  int64_t all() const { return instances * rows * columns; }
};

// One worker per thread, constructed on first use.
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

void best(const Shape &s, const Buffer &scores_, const Buffer &codes_, const Buffer &values_) {
  const double *scores = scores_.numbers<double>("scores", s.all());
  int32_t *codes = codes_.numbers<int32_t>("codes", count_of(s.instances, s.rows));
  double *values = values_.numbers<double>("values", s.instances);
  Workers<AssignmentOracle> workers(s.threads);
  each_row(s.instances, s.threads, [&](int64_t r, int lane) {
    auto &oracle = workers.of(lane, [&] { return new AssignmentOracle(s.rows, s.columns, s.alone); });
    int32_t *code = codes + r * s.rows;
    const double value = oracle.best(scores + r * s.parts(), code);
    if (!(value > -INFINITY)) std::fill_n(code, s.rows, -1);
    values[r] = value;
  });
}

void best_k(const Shape &s, const Buffer &scores_, int64_t k, const Buffer &codes_, const Buffer &values_) {
  check_positive(k, "k");
  const double *scores = scores_.numbers<double>("scores", s.all());
  int32_t *codes = codes_.numbers<int32_t>("codes", count_of(s.instances, k, s.rows));
  double *values = values_.numbers<double>("values", count_of(s.instances, k));
  Workers<Murty> workers(s.threads);
  each_row(s.instances, s.threads, [&](int64_t r, int lane) {
    workers.of(lane, [&] { return new Murty(s.rows, s.columns, s.alone); })
        .run(scores + r * s.parts(), k, codes + r * k * s.rows,
             values + r * k);
  });
}

void project(const Shape &s, const Buffer &scores_, const Buffer &marginals_, const Buffer &gaps_, const Buffer &took_,
             const Buffer &outcomes_) {
  const double *scores = scores_.numbers<double>("scores", s.all());
  double *marginals = marginals_.numbers<double>("marginals", s.all()), *gaps = gaps_.numbers<double>("gaps", s.instances);
  int64_t *took = took_.numbers<int64_t>("turns", s.instances);
  int32_t *outcomes = outcomes_.numbers<int32_t>("outcomes", s.instances);
  Workers<Projector> workers(s.threads);
  each_row(s.instances, s.threads, [&](int64_t r, int lane) {
    double *mu = marginals + r * s.parts();
    const Result result = workers.of(lane, [&] { return new Projector(s); })
                          .projection.run(scores + r * s.parts(), mu, NEWTON_TURNS);
    if (result.outcome == Outcome::no_numbers) std::fill_n(mu, s.parts(), NAN);
    gaps[r] = result.gap;
    took[r] = result.turns;
    outcomes[r] = static_cast<int32_t>(result.outcome);
  });
}

void face(const Shape &s, const Buffer &marginals_, const Buffer &change_, const Buffer &to_) {
  const double *marginals = marginals_.numbers<double>("marginals", s.all());
  const double *change = change_.numbers<double>("change", s.all());
  double *to = to_.numbers<double>("to", s.all());
  Workers<BirkhoffFace> workers(s.threads);
  each_row(s.instances, s.threads, [&](int64_t r, int lane) {
    const int64_t at = r * s.parts();
    workers.of(lane, [&] { return new BirkhoffFace(s.rows, s.columns); })
        .apply(marginals + at, change + at, to + at);
  });
}

// Warm start of the active set from the decomposed projection: mostly it has only to compute the gap.
nb::tuple sparsemap_assignments(Request q, const Shape &s) {
  q.expect(s.parts(), s.rows);
  if (q.rows != s.instances) refuse("the request has " + std::to_string(q.rows) + " instances, the shape " + std::to_string(s.instances));
  std::vector<std::vector<int32_t>> found(static_cast<size_t>(q.rows));
  std::vector<int32_t> codes;
  std::vector<int64_t> offsets{0};
  if (!q.warm_offsets) {
    nb::gil_scoped_release release;
    Workers<Projector> workers(s.threads);
    Workers<Decomposition> decompositions(s.threads);
    each_row(s.instances, s.threads, [&](int64_t r, int lane) {
      double *mu = q.marginals + r * s.parts();
      const Result result = workers.of(lane, [&] { return new Projector(s); })
                            .projection.run(q.scores + r * s.parts(), mu, NEWTON_TURNS);
      if (result.outcome != Outcome::converged) return;
      auto &own = found[static_cast<size_t>(r)];
      decompositions.of(lane, [&] { return new Decomposition(); })
          .run(mu, s.rows, s.columns, [&](const int32_t *code, double) { own.insert(own.end(), code, code + s.rows); });
    });
    for (const auto &own : found) {
      codes.insert(codes.end(), own.begin(), own.end());
      offsets.push_back(static_cast<int64_t>(codes.size()) / std::max<int64_t>(1, s.rows));
    }
    q.warm_codes = codes.data();
    q.warm_offsets = offsets.data();
  }
  return solve_rows(q, [&](int64_t, int) { return AssignmentOracle(s.rows, s.columns, s.alone); });
}

}  // namespace

void bind_assignments(nb::module_ &m) {
  nb::class_<Shape>(m, "AssignmentShape")
      .def(nb::init<int64_t, int64_t, int64_t, bool, int>());
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  m.def("best_assignments", &best, unlocked);
  m.def("best_assignments_k", &best_k, unlocked);
  m.def("project_assignments", &project, unlocked);
  m.def("face_assignments", &face, unlocked);
  m.def("sparsemap_assignments", &sparsemap_assignments);
}
