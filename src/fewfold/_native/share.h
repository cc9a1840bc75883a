// What every binding needs: the chosen instruction set, and rows shared out over torch's threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "table.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace fewfold {

// The functions of the instruction set that was chosen at import.
const Tables &chosen();

template <class T> const Table<T> &table();
template <> inline const Table<float> &table() { return chosen().f32; }
template <> inline const Table<double> &table() { return chosen().f64; }

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
