// Steps of matrix factorisation by Yogi with dense gradients and a proximal step, as published.
//
// A dense step moves every row: the first moment of a row that is not in the batch decays and still
// moves it, and the penalty shrinks it. Both have a closed form for n steps without a gradient, as
// the second moment does not change: with D = sqrt(v) + eps, step sizes s_t and the moment m at
// step t,
//
//     x <- max(x - (m sum_k s_{t+k} beta^k + l1 sum_k s_{t+k}) / D, 0),    m <- beta^n m.
//
// One maximum at the end is exact: the terms m beta^k + l1 have at most one sign change, from
// negative to positive, so x rises from x >= 0 and then falls, and stays at 0 once it is there.
// So a step costs the rows of its batch, and `flush` brings all rows up to date.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

#ifndef WIDTH
#define WIDTH 16
#endif
constexpr int width = WIDTH;  // of the vectors
typedef float Vector __attribute__((vector_size(4 * width)));

Vector load(const float* from) {
    Vector found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

void store(float* to, Vector what) { std::memcpy(to, &what, sizeof what); }

float total(Vector what) {
    float sum = 0;
    for (int d = 0; d < width; ++d) sum += what[d];
    return sum;
}

}  // namespace

extern "C" {

// Rows of several widths, by block; the vector of a row is x A, with the anchors A of its block.
struct Table {
    std::int64_t rows, blocks;
    float *x, *m, *v;              // the rows, one after the other
    std::int64_t* last;            // (rows,) the step up to which a row has been brought
    const std::int64_t* start;     // (rows,) where a row begins
    const std::int32_t* block;     // (rows,)
    const std::int32_t* widths;    // (blocks,)
    const std::int64_t* anchors;   // (blocks,) where the anchors of a block begin
    const std::int32_t* identity;  // (blocks,) whether the anchors are the axes, and not learnt
    float *a, *am, *av;            // anchors, (width of block, width) one after the other
    std::int64_t active, seen;     // columns in use, and the most that have ever been
    std::int64_t non_negative;
    std::int64_t plain;            // whether the penalty is that of SGD, l1 s_t, not l1 s_t / D
    double l1;
};

struct Schedule {
    const double* step;  // (steps + 1,) step size, from 1 on
    const double* sum;   // (steps + 1,) of the step sizes up to here
    const double* tail;  // (steps + 1,) sum over k >= 1 of step[t + k] beta^k
    double beta1, beta2, eps;
};
}

namespace {

// What n steps without a gradient do to the columns [first, until) of a row.
void advance(const Table& table, const Schedule& schedule, std::int64_t row, std::int64_t from,
             std::int64_t to, std::int64_t first, std::int64_t until) {
    const double decay = std::pow(schedule.beta1, double(to - from));
    const float moved = float(schedule.tail[from] - decay * schedule.tail[to]);
    const float shrunk = float(table.l1 * (schedule.sum[to] - schedule.sum[from]));
    const float less = float(decay), eps = float(schedule.eps);
    const float least = table.non_negative ? 0.0f : -INFINITY;
    const std::int64_t start = table.start[row];
    float *x = table.x + start, *m = table.m + start;
    const float* v = table.v + start;
    for (std::int64_t k = first; k < until; ++k) {
        const float root = __builtin_sqrtf(v[k]) + eps;
        const float next = x[k] - (m[k] * moved + (table.plain ? shrunk * root : shrunk)) / root;
        x[k] = next > least ? next : least;
        m[k] *= less;
    }
}

// One step of Yogi with gradients g, and the proximal step.
void update(float* x, float* m, float* v, const float* g, std::int64_t count, float step, float l1,
            bool plain, float least, const Schedule& schedule) {
    const float beta1 = float(schedule.beta1), rest1 = float(1 - schedule.beta1);
    const float rest2 = float(1 - schedule.beta2), eps = float(schedule.eps);
    for (std::int64_t k = 0; k < count; ++k) {
        const float square = g[k] * g[k];
        m[k] = beta1 * m[k] + rest1 * g[k];
        const float change = v[k] > square ? -square : v[k] < square ? square : 0.0f;
        v[k] += rest2 * change;
        const float root = __builtin_sqrtf(v[k]) + eps;
        const float next = x[k] - step * (m[k] + (plain ? l1 * root : l1)) / root;
        x[k] = next > least ? next : least;
    }
}

// The rows of one table that are in the batch, their gradients, and those of the anchors.
struct Batch {
    Table& table;
    std::vector<std::int32_t> slot;  // (rows,) of a row in this batch, or -1
    std::vector<std::int64_t> rows;
    std::vector<float> gradient, anchor_gradient, vectors;
    std::int64_t widest = 0, anchor_floats = 0;

    Batch(Table& given, std::int64_t batch) : table(given), slot(given.rows, -1) {
        for (std::int64_t b = 0; b < table.blocks; ++b) {
            if (table.widths[b] > widest) widest = table.widths[b];
            if (!table.identity[b]) anchor_floats += table.widths[b] * width;
        }
        rows.reserve(batch);
        gradient.resize(batch * widest);
        anchor_gradient.resize(anchor_floats);
        vectors.resize(batch * width);
    }

    std::int64_t columns(std::int64_t row) const {
        const std::int64_t wide = table.widths[table.block[row]];
        return table.blocks == 1 && table.seen < wide ? table.seen : wide;
    }

    // Bring a row up to date unless it is in the batch already; return its slot.
    std::int32_t enter(std::int64_t row, std::int64_t done, const Schedule& schedule) {
        if (slot[row] >= 0) return slot[row];
        const std::int64_t wide = columns(row);
        if (table.last[row] < done)
            advance(table, schedule, row, table.last[row], done, 0, wide);
        const auto place = std::int32_t(rows.size());
        slot[row] = place;
        rows.push_back(row);
        std::memset(gradient.data() + place * widest, 0, widest * sizeof(float));
        const std::int32_t block = table.block[row];
        const float* x = table.x + table.start[row];
        Vector sum = {};
        if (table.identity[block]) {
            sum = load(x);
        } else {
            const float* a = table.a + table.anchors[block];
            const std::int64_t used = wide < table.active ? wide : table.active;
            for (std::int64_t k = 0; k < used; ++k) sum += x[k] * load(a + k * width);
        }
        store(vectors.data() + place * width, sum);
        return place;
    }

    // Add the slope of the loss in the vector of a row to the gradients.
    void pull(std::int64_t row, Vector slope) {
        float* g = gradient.data() + slot[row] * widest;
        const std::int32_t block = table.block[row];
        if (table.identity[block]) {
            store(g, load(g) + slope);
            return;
        }
        const std::int64_t wide = columns(row), begin = table.anchors[block];
        const std::int64_t used = wide < table.active ? wide : table.active;
        const float* x = table.x + table.start[row];
        for (std::int64_t k = 0; k < used; ++k) {
            g[k] += total(load(table.a + begin + k * width) * slope);
            float* to = anchor_gradient.data() + begin + k * width;
            store(to, load(to) + x[k] * slope);
        }
    }

    void step(std::int64_t now, const Schedule& schedule) {
        const auto size = float(schedule.step[now]);
        const float least = table.non_negative ? 0.0f : -INFINITY;
        for (std::size_t place = 0; place < rows.size(); ++place) {
            const std::int64_t row = rows[place], start = table.start[row];
            update(table.x + start, table.m + start, table.v + start,
                   gradient.data() + place * widest, columns(row), size, float(table.l1),
                   table.plain, least, schedule);
            table.last[row] = now;
            slot[row] = -1;
        }
        rows.clear();
        const std::int64_t most = table.blocks == 1 ? table.seen * width : anchor_floats;
        const std::int64_t count = most < anchor_floats ? most : anchor_floats;
        update(table.a, table.am, table.av, anchor_gradient.data(), count, size, 0.0f, false,
               -INFINITY, schedule);
        std::memset(anchor_gradient.data(), 0, count * sizeof(float));
    }
};

}  // namespace

extern "C" {

// Bring all rows from their last step, and columns never in use from `begun`, to step `done`.
void flush(Table* table, const Schedule* schedule, std::int64_t begun, std::int64_t done) {
    for (std::int64_t row = 0; row < table->rows; ++row) {
        const std::int64_t wide = table->widths[table->block[row]];
        const std::int64_t seen = table->blocks == 1 && table->seen < wide ? table->seen : wide;
        if (table->last[row] < done) advance(*table, *schedule, row, table->last[row], done, 0, seen);
        if (seen < wide) advance(*table, *schedule, row, begun, done, seen, wide);
        table->last[row] = done;
    }
}

// Train on ratings in this order; `done` steps were taken before. Returns the sum of squared
// errors before each step; `bias` is the value, the moments, and whether it learns.
double train(Table* users, Table* items, const Schedule* schedule, const std::int64_t* user,
             const std::int64_t* item, const float* stars, const std::int64_t* order,
             std::int64_t count, std::int64_t batch, std::int64_t done, float* bias) {
    Batch left(*users, batch), right(*items, batch);
    const std::int64_t begun = done;
    double errors = 0;
    for (std::int64_t first = 0; first < count; first += batch) {
        const std::int64_t size = first + batch < count ? batch : count - first;
        float bias_gradient = 0;
        for (std::int64_t i = 0; i < size; ++i) {
            left.enter(user[order[first + i]], done, *schedule);
            right.enter(item[order[first + i]], done, *schedule);
        }
        for (std::int64_t i = 0; i < size; ++i) {
            const std::int64_t rating = order[first + i], u = user[rating], v = item[rating];
            const Vector mine = load(left.vectors.data() + left.slot[u] * width);
            const Vector its = load(right.vectors.data() + right.slot[v] * width);
            const float error = total(mine * its) + bias[0] - stars[rating];
            errors += double(error) * error;
            const float slope = 2 * error / float(size);
            bias_gradient += slope;
            left.pull(u, slope * its);
            right.pull(v, slope * mine);
        }
        ++done;
        left.step(done, *schedule);
        right.step(done, *schedule);
        if (bias[3] != 0)
            update(bias, bias + 1, bias + 2, &bias_gradient, 1, float(schedule->step[done]), 0.0f,
                   false, -INFINITY, *schedule);
    }
    flush(users, schedule, begun, done);
    flush(items, schedule, begun, done);
    return errors;
}
}
