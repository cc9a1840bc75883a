// Rows shared out over torch's own threads.
#pragma once
#include <algorithm>
#include <cstdint>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace fewfold {

// Calls work(first, last) on contiguous ranges of rows. Small jobs are not worth waking a thread for.
template <class F> void share(int64_t rows, int64_t k, int threads, F work) {
#ifdef _OPENMP
  const int64_t worth = std::max<int64_t>(1, rows * k / 32768);
  const int n = static_cast<int>(std::min({static_cast<int64_t>(threads), rows, worth}));
  if (n > 1) {
#pragma omp parallel num_threads(n)
    {
      const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
      const int64_t first = rows * me / team, last = rows * (me + 1) / team;
      if (first < last) work(first, last);
    }
    return;
  }
#endif
  (void)k;
  (void)threads;
  if (rows > 0) work(int64_t(0), rows);
}

}  // namespace fewfold
