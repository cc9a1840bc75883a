// Grouping the positions of a gradient by the row they belong to: a stable radix sort of (row, position).
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>

namespace fewfold {

inline int bit_length(uint64_t x) {
  int n = 0;
  for (; x; x >>= 1) ++n;
  return n;
}

// Rows ascending, and within a row positions ascending. Allocates 2n numbers, whatever the number of rows.
class Groups {
 public:
  // Check `bad` before anything else. bit_length(rows) + bit_length(n) must not exceed 64.
  Groups(const int64_t *index, int64_t n, int64_t rows)
      : n_(n), bits_(bit_length(static_cast<uint64_t>(n))), buffer_(new uint64_t[static_cast<size_t>(2 * n)]),
        order_(buffer_.get()) {
    bool sorted = true;
    uint64_t before = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t row = static_cast<uint64_t>(index[i]);
      if (row >= static_cast<uint64_t>(rows)) {  // negative indices wrap to huge values
        bad_ = i;
        return;
      }
      sorted &= before <= row;
      before = row;
      order_[i] = row << bits_ | static_cast<uint64_t>(i);
    }
    if (!sorted) sort(bit_length(static_cast<uint64_t>(rows - 1)));
  }

  int64_t bad() const { return bad_; }  // a position whose row does not exist, or -1
  const uint64_t *order() const { return order_; }
  int bits() const { return bits_; }
  // The first entry at or after i that starts a group.
  int64_t start(int64_t i) const {
    while (i > 0 && i < n_ && order_[i] >> bits_ == order_[i - 1] >> bits_) ++i;
    return i;
  }

 private:
  static constexpr int DIGIT = 11;  // 2048 counters fit into the L1 cache

  // Least digit of the row first; positions are ascending to begin with and every pass is stable.
  void sort(int row_bits) {
    const int passes = (row_bits + DIGIT - 1) / DIGIT, digit = (row_bits + passes - 1) / passes;
    const uint64_t mask = (uint64_t(1) << digit) - 1;
    uint64_t *from = order_, *to = order_ + n_;
    for (int p = 0; p < passes; ++p) {
      const int shift = bits_ + p * digit;
      int64_t at[1 << DIGIT] = {};
      for (int64_t i = 0; i < n_; ++i) ++at[from[i] >> shift & mask];
      int64_t total = 0;
      for (int64_t &count : at) {
        const int64_t here = count;
        count = total;
        total += here;
      }
      for (int64_t i = 0; i < n_; ++i) to[at[from[i] >> shift & mask]++] = from[i];
      std::swap(from, to);
    }
    order_ = from;
  }

  int64_t n_, bad_ = -1;
  int bits_;
  std::unique_ptr<uint64_t[]> buffer_;
  uint64_t *order_;
};

}  // namespace fewfold
