// The k best structures, by partition (Lawler, Murty): the best of a subset is known, and the others in it are
// those that lack its first part, those that have it and lack the second, and so on.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace fewfold {

struct Ranked {
  double value;
  std::vector<int32_t> code, forced, forbidden;
};

// solve(forced, forbidden, code) returns the value of the best structure with these parts and without those; -inf if
// there is none. Returns at most k >= 1, best first.
template <class Solve> std::vector<Ranked> ranked(int64_t slots, int64_t k, Solve solve) {
  const auto worse = [](const Ranked &a, const Ranked &b) { return a.value < b.value; };
  std::vector<Ranked> waiting, found;
  const auto consider = [&](std::vector<int32_t> forced, std::vector<int32_t> forbidden) {
    Ranked one{0, std::vector<int32_t>(static_cast<size_t>(slots), -1), std::move(forced), std::move(forbidden)};
    one.value = solve(one.forced, one.forbidden, one.code.data());
    if (!std::isfinite(one.value)) return;
    waiting.push_back(std::move(one));
    std::push_heap(waiting.begin(), waiting.end(), worse);
  };
  consider({}, {});
  while (!waiting.empty()) {
    std::pop_heap(waiting.begin(), waiting.end(), worse);
    found.push_back(std::move(waiting.back()));
    waiting.pop_back();
    if (static_cast<int64_t>(found.size()) == k) break;
    const Ranked best = found.back();
    std::vector<int32_t> forced = best.forced;
    for (int32_t part : best.code) {
      if (part < 0 || std::find(best.forced.begin(), best.forced.end(), part) != best.forced.end()) continue;
      std::vector<int32_t> forbidden = best.forbidden;
      forbidden.push_back(part);
      consider(forced, std::move(forbidden));
      forced.push_back(part);
    }
  }
  return found;
}

}  // namespace fewfold
