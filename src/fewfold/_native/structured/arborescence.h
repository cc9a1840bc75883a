// The best arborescence over words, dense, in O(n^2): grow a path along the best heads, contract the cycles it closes.
// Compiled per instruction set: see simd.h.
//
// scores[h * n + m] is for word h to be the head of m, [m * n + m] for the root. A contracted node keeps one column of
// scores, by head; heads are never contracted, those inside a node are only struck out.
#pragma once
#include "simd.h"
#include "structured.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// The best head of every word, two vectors of words at a time; -1 if it has none. False if there is a NaN. With `apart`
// the root does not count.
inline bool best_heads(const double *scores, int64_t n, bool apart, double *value, int32_t *head) {
  using V = Vec<double>;
  double strike[2 * V::N - 1];  // zeros around one -inf: read at an offset it strikes one lane out
  for (int i = 0; i < 2 * V::N - 1; ++i) strike[i] = i == V::N - 1 ? -INF<double> : 0.0;
  bool sound = true;
  for (int64_t m = 0; m < n; m += 2 * V::N) {
    const int first = static_cast<int>(n - m < V::N ? n - m : V::N);
    const int second = static_cast<int>(n - m - first < V::N ? n - m - first : V::N);
    V best[2] = {V::of(-INF<double>), V::of(-INF<double>)}, which[2] = {V::of(-1), V::of(-1)};
    unsigned bad = 0;
    for (int64_t h = 0; h < n; ++h) {
      const double *row = scores + h * n + m;
      V x[2] = {V::load(row, first, -INF<double>), best[1]};
      if (second) x[1] = V::load(row + V::N, second, -INF<double>);
      bad |= V::bits(V::nan(x[0], x[1]));
      const int64_t lane = h - m;
      if (apart && lane >= 0 && lane < 2 * V::N) {
        const int64_t half = lane / V::N;
        x[half] = x[half] + V::load(strike + V::N - 1 - (lane - half * V::N));
      }
      const V index = V::of(static_cast<double>(h));
      for (int k = 0; k < 2; ++k) {
        const auto more = V::gt(x[k], best[k]);
        best[k] = V::pick(more, x[k], best[k]);
        which[k] = V::pick(more, index, which[k]);
      }
    }
    sound = sound && !bad;
    double found[2 * V::N];
    for (int k = 0; k < 2; ++k) which[k].store(found + k * V::N);
    best[0].store(value + m, first);
    if (second) best[1].store(value + m + V::N, second);
    for (int i = 0; i < first + second; ++i) head[m + i] = static_cast<int32_t>(found[i]);
  }
  return sound;
}

// The workspace of one instance, by node: words, then contracted ones. Columns are by contracted node.
struct Contraction {
  int64_t n, wide;  // a column: n heads, the root, and padding to a whole vector
  double *value;
  double *column, *through;  // scores by head, and the word inside that the head would be the head of
  int32_t *head, *word, *parent, *state, *top, *first, *last, *next, *path;
};

inline Contraction lay_out(int64_t n, double *real, int32_t *whole) {
  const int64_t wide = tree_column(n);
  Contraction c{};
  c.n = n, c.wide = wide, c.value = real, c.head = whole;
  c.column = real + 2 * n, c.through = c.column + n * wide;
  int32_t **const rest[] = {&c.word, &c.parent, &c.state, &c.top, &c.first, &c.last, &c.next, &c.path};
  for (int32_t **each : rest) whole += 2 * n, *each = whole;
  return c;
}

// Takes the column of node x into that of `to`, relative to the best of x.
inline void take_in(const Contraction &c, const double *scores, int32_t x, int32_t to, bool begin) {
  using V = Vec<double>;
  double *column = c.column + (to - c.n) * c.wide, *through = c.through + (to - c.n) * c.wide;
  const V less = V::of(c.value[x]), own = V::of(static_cast<double>(x));
  const bool word = x < c.n;
  const double *from = column, *which = through;
  if (word) {
    double *spare = c.column + (c.n - 1) * c.wide;  // the last one is never used: n - 1 nodes at most
    for (int64_t h = 0; h < c.n; ++h) spare[h] = scores[h * c.n + x];
    spare[c.n] = scores[x * c.n + x];
    from = spare;
  } else {
    from = c.column + (x - c.n) * c.wide;
    which = c.through + (x - c.n) * c.wide;
  }
  for (int64_t h = 0; h <= c.n; h += V::N) {
    const V here = V::load(from + h) - less, by = word ? own : V::load(which + h);
    if (begin) {
      here.store(column + h);
      by.store(through + h);
    } else {
      const V have = V::load(column + h);
      const auto more = V::gt(here, have);
      V::pick(more, here, have).store(column + h);
      V::pick(more, by, V::load(through + h)).store(through + h);
    }
  }
}

// The best head of contracted node x; false if none is allowed.
inline bool choose(const Contraction &c, int32_t x, bool apart) {
  using V = Vec<double>;
  const double *column = c.column + (x - c.n) * c.wide;
  V best = V::of(-INF<double>), which = V::of(-1);
  double lane[V::N], at[V::N];
  for (int i = 0; i < V::N; ++i) lane[i] = i;
  V index = V::load(lane);
  const V step = V::of(V::N);
  for (int64_t h = 0; h < c.n; h += V::N, index = index + step) {
    const V here = V::load(column + h, static_cast<int>(c.n - h < V::N ? c.n - h : V::N), -INF<double>);
    const auto more = V::gt(here, best);
    best = V::pick(more, here, best);
    which = V::pick(more, index, which);
  }
  best.store(lane);
  which.store(at);
  double value = -INF<double>;
  int64_t head = -1;
  for (int i = 0; i < V::N; ++i)
    if (lane[i] > value) value = lane[i], head = static_cast<int64_t>(at[i]);
  if (apart ? head < 0 : column[c.n] >= value) value = column[c.n], head = c.n;
  if (!(value > -INF<double>)) return false;
  c.value[x] = value;
  c.head[x] = static_cast<int32_t>(head);
  c.word[x] = static_cast<int32_t>(c.through[(x - c.n) * c.wide + head]);
  return true;
}

// Makes one node of the cycle path[from .. to).
inline void contract(const Contraction &c, const double *scores, int64_t from, int64_t to, int32_t node) {
  for (int64_t i = from; i < to; ++i) {
    const int32_t x = c.path[i];
    take_in(c, scores, x, node, i == from);
    c.parent[x] = node;
    if (i == from) c.first[node] = c.first[x];
    else c.next[c.last[c.path[i - 1]]] = c.first[x];
  }
  c.last[node] = c.last[c.path[to - 1]];
  c.parent[node] = -1;
  double *column = c.column + (node - c.n) * c.wide;
  for (int32_t w = c.first[node];; w = c.next[w]) {
    c.top[w] = node;
    column[w] = -INF<double>;
    if (w == c.last[node]) break;
  }
}

// Every word as a node with its best head; false if one has none.
inline bool begin(const Contraction &c, const double *scores) {
  const int32_t n = static_cast<int32_t>(c.n);
  for (int32_t m = 0; m < n; ++m) {
    if (c.head[m] < 0) c.head[m] = m, c.value[m] = scores[m * c.n + m];
    if (!(c.value[m] > -INF<double>)) return false;
    if (c.head[m] == m) c.head[m] = n;
    c.word[m] = c.top[m] = c.first[m] = c.last[m] = m;
    c.state[m] = 0;
    c.parent[m] = -1;
  }
  return true;
}

// Follows heads from node v to the root or to nodes that are done, and contracts cycles on the way. False if one
// of them cannot be entered.
inline bool follow(const Contraction &c, const double *scores, bool single, int32_t v, int32_t &nodes) {
  enum { unseen, on_path, done };
  if (c.state[v] == done) return true;
  int64_t length = 0;
  for (;;) {
    c.state[v] = on_path;
    c.path[length++] = v;
    const int32_t u = c.head[v] == c.n ? -1 : c.top[c.head[v]];
    if (u < 0 || c.state[u] == done) break;
    if (c.state[u] == unseen) {
      v = u;
      continue;
    }
    int64_t from = length - 1;
    while (c.path[from] != u) --from;
    v = nodes++;
    contract(c, scores, from, length, v);
    if (!choose(c, v, single)) return false;
    length = from;
  }
  for (int64_t i = 0; i < length; ++i) c.state[c.path[i]] = done;
  return true;
}

// heads[m] = the head of m in the best arborescence, m itself for the root. Returns its score; -inf if there is none,
// NaN if a score is one. With `single` exactly one word hangs from the root: as if the root cost infinitely much, so
// that a node takes it only if it has no other head. A node that takes the root is never contracted, so the infinite
// part of a score needs no place.
inline double arborescence(const double *scores, int64_t n, bool single, double *real, int32_t *whole, int32_t *heads) {
  const Contraction c = lay_out(n, real, whole);
  if (!best_heads(scores, n, single, c.value, c.head)) return INF<double> - INF<double>;
  if (!begin(c, scores)) return -INF<double>;
  int32_t nodes = static_cast<int32_t>(n);
  for (int32_t m = 0; m < n; ++m)
    if (c.value[m] == INF<double>) return INF<double>;
  for (int32_t m = 0; m < n; ++m)
    if (!follow(c, scores, single, c.top[m], nodes)) return -INF<double>;
  for (int32_t node = nodes - 1; node >= n; --node) {  // the arc into a node replaces that of the one it leads to
    int32_t x = c.word[node];
    while (c.parent[x] != node) x = c.parent[x];
    c.head[x] = c.head[node];
    c.word[x] = c.word[node];
  }
  double value = 0;
  int64_t roots = 0;
  for (int32_t m = 0; m < n; ++m) {
    const bool root = c.head[m] == n;
    heads[m] = root ? m : c.head[m];
    roots += root;
    value += scores[heads[m] * n + m];
  }
  return single && roots > 1 ? -INF<double> : value;
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
