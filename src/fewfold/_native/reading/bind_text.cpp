// Checks of blocks of delimited text: recommender/reading/text_blocks.py. The loops are such as any compiler turns into
// vector instructions of the baseline; memory is the limit.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>

#include "bind.h"

namespace nb = nanobind;

namespace {

// How many bytes are `sign`. A counter of eight bits is emptied before it can overflow.
int64_t count_byte(const nb::bytes &data, uint8_t sign) {
  const uint8_t *p = static_cast<const uint8_t *>(data.data());
  const int64_t n = static_cast<int64_t>(data.size());
  constexpr int64_t WIDE = 64;
  const nb::gil_scoped_release release;
  int64_t total = 0, i = 0;
  while (i + WIDE <= n) {
    uint8_t found[WIDE] = {};
    const int64_t end = std::min(n - WIDE, i + 254 * WIDE);
    for (; i <= end; i += WIDE)
      for (int64_t j = 0; j < WIDE; ++j) found[j] = static_cast<uint8_t>(found[j] + (p[i + j] == sign));
    for (uint8_t one : found) total += one;
  }
  for (; i < n; ++i) total += p[i] == sign;
  return total;
}

// Whether a field that follows a separator or the end of a line begins with a zero and a further digit.
bool leading_zeros(const nb::bytes &data, uint8_t separator) {
  const uint8_t *p = static_cast<const uint8_t *>(data.data());
  const int64_t n = static_cast<int64_t>(data.size()) - 2;
  const nb::gil_scoped_release release;
  for (int64_t i = 0; i < n;) {
    uint8_t any = 0;
    for (const int64_t end = std::min<int64_t>(n, i + 4096); i < end; ++i)
      any |= static_cast<uint8_t>(((p[i] == separator) | (p[i] == '\n')) & (p[i + 1] == '0') &
                                  (static_cast<uint8_t>(p[i + 2] - '0') < 10));
    if (any) return true;
  }
  return false;
}

}  // namespace

void bind_text(nb::module_ &m) {
  m.def("count_byte", &count_byte);
  m.def("leading_zeros", &leading_zeros);
}
