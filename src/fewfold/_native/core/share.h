// Division of rows among torch's own threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace fewfold {

// The first exception of a team of threads: exceptions must not leave a parallel region.
class Caught {
 public:
  template <class F> void run(F work) {
    try {
      work();
    } catch (...) {
      if (!any_.exchange(true)) first_ = std::current_exception();
    }
  }
  bool any() const { return any_; }
  void rethrow() const {
    if (any_) std::rethrow_exception(first_);
  }

 private:
  std::atomic<bool> any_{false};
  std::exception_ptr first_;
};

constexpr int MOST_THREADS = 1024;

// The number of threads for this number of pieces.
inline int lanes_for(int64_t pieces, int threads) {
  return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(std::min(threads, MOST_THREADS), pieces)));
}

constexpr int64_t GRAIN_SIZE = 32768;  // least count of numbers per thread, as in at::parallel_for

// How many threads share `rows` rows of `k` numbers each.
inline int team_for(int64_t rows, int64_t k, int threads) {
  int64_t all;
  if (__builtin_mul_overflow(rows, k, &all)) all = std::numeric_limits<int64_t>::max();
  return lanes_for(std::min(rows, all / GRAIN_SIZE), threads);
}

// Where part `me` of `team` begins.
inline int64_t part_of(int64_t rows, int64_t me, int64_t team) {
  return rows / team * me + rows % team * me / team;
}

// Calls work(first, last) on contiguous ranges of rows. Small jobs run on one thread.
template <class F> void share(int64_t rows, int64_t k, int threads, F work) {
#ifdef _OPENMP
  const int n = team_for(rows, k, threads);
  if (n > 1) {
    Caught caught;
#pragma omp parallel num_threads(n)
    {
      const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
      const int64_t first = part_of(rows, me, team), last = part_of(rows, me + 1, team);
      if (first < last) caught.run([&] { work(first, last); });
    }
    caught.rethrow();
    return;
  }
#endif
  (void)k;
  (void)threads;
  if (rows > 0) work(int64_t(0), rows);
}

// Calls work(row, lane) for every row; `lane` identifies the thread. Dynamic scheduling, as the cost of rows differs.
template <class F> void each_row(int64_t rows, int threads, F work) {
#ifdef _OPENMP
  const int n = lanes_for(rows, threads);
  if (n > 1) {
    Caught caught;
#pragma omp parallel num_threads(n)
    {
      const int lane = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
      for (int64_t r = 0; r < rows; ++r)
        if (!caught.any()) caught.run([&] { work(r, lane); });
    }
    caught.rethrow();
    return;
  }
#endif
  (void)threads;
  for (int64_t r = 0; r < rows; ++r) work(r, 0);
}

}  // namespace fewfold
