// Negative log-likelihoods of grey images whose pixels are categorical with logits W h + b, and
// their slopes. `pixels.py` compiles this, calls it and has the same in torch.
//
// With E = exp(W h + b) the log sums are log E 1, their slopes in h are E W / E 1, and those in W
// and b are E' (h, 1) / E 1. A few pixels at a time, E stays in the first cache: one loop writes
// it, one multiplies it by W, one by h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int rank = 5, values = 256, channels = rank + 1;  // the bias is one weight more
constexpr int block = 16;                                   // pixels at a time
constexpr float log2_e = 1.44269504088896341f, log_2 = 0.693147180559945309f;

#if defined(__AVX512F__)
constexpr int lanes = 16;
#else
constexpr int lanes = 8;
#endif
constexpr int vectors = values / lanes;
typedef float Vector __attribute__((vector_size(4 * lanes)));
typedef std::int32_t Bits __attribute__((vector_size(4 * lanes)));
typedef float Quad __attribute__((vector_size(16)));

// Weights and bias in units of log 2, by channel, and the least and the most of every channel.
struct Table {
    Vector columns[channels][vectors];
    float least[channels], most[channels];

    Table(const float* weight, const float* bias) {
        for (int c = 0; c < channels; ++c) {
            auto* column = reinterpret_cast<float*>(columns[c]);
            for (int v = 0; v < values; ++v)
                column[v] = log2_e * (c < rank ? weight[v * rank + c] : bias[v]);
            least[c] = *std::min_element(column, column + values);
            most[c] = *std::max_element(column, column + values);
        }
    }

    const float* column(int c) const { return reinterpret_cast<const float*>(columns[c]); }

    // Whether powers of two of all logits can be summed and divided by: none is above 2^100 and
    // none below 2^-83. Not if any is no number.
    bool tame(const float* h) const {
        float low = least[rank], high = most[rank];
        for (int c = 0; c < rank; ++c) {
            const float one = h[c] * least[c], other = h[c] * most[c];
            low += std::min(one, other);
            high += std::max(one, other);
        }
        return low > -83 && high < 100;
    }

    Vector logits(const float* h, int v) const {
        Vector one = columns[rank][v] + h[0] * columns[0][v];
        Vector other = h[1] * columns[1][v] + h[2] * columns[2][v];
        one = one + h[3] * columns[3][v];
        other = other + h[4] * columns[4][v];
        return one + other;
    }
};

// Powers of two, for |x| < 126: a polynomial of what is left of the nearest integer, which is then
// added to the exponent. The relative error is below 2e-7.
inline Vector power(Vector x) {
    constexpr float shift = 12582912;  // 1.5 * 2^23: its last bit is worth one
    const Vector shifted = x + shift;
    const Vector f = x - (shifted - shift);
    Vector p = 9.675541385e-3f + f * 1.327647205e-3f;  // of least relative error on [-1/2, 1/2]
    p = 5.550713274e-2f + f * p;
    p = 2.402211972e-1f + f * p;
    p = 6.931469671e-1f + f * p;
    p = 1.000000072f + f * p;
    Bits exponent, result;
    std::memcpy(&exponent, &shifted, sizeof exponent);
    std::memcpy(&result, &p, sizeof result);
    result += exponent << 23;
    std::memcpy(&p, &result, sizeof p);
    return p;
}

inline Vector greater(Vector a, Vector b) { return a > b ? a : b; }

inline Quad quarter(Vector a) {  // four numbers with the sum of all lanes
    Quad parts[lanes / 4];
    std::memcpy(parts, &a, sizeof a);
    if constexpr (lanes == 16) return (parts[0] + parts[1]) + (parts[2] + parts[3]);
    return parts[0] + parts[1];
}

// The sums of the lanes of four vectors.
inline Quad sums(Vector a, Vector b, Vector c, Vector d) {
    const Quad p = quarter(a), q = quarter(b), r = quarter(c), s = quarter(d);
    const Quad low = __builtin_shufflevector(p, q, 0, 4, 1, 5) +
                     __builtin_shufflevector(p, q, 2, 6, 3, 7);  // p q p q
    const Quad high = __builtin_shufflevector(r, s, 0, 4, 1, 5) +
                      __builtin_shufflevector(r, s, 2, 6, 3, 7);
    return __builtin_shufflevector(low, high, 0, 1, 4, 5) +
           __builtin_shufflevector(low, high, 2, 3, 6, 7);
}

// E of one pixel and the sum of it; returns what was taken off the logits, in units of log 2.
template <bool keep>
inline float powers(const Table& table, const float* h, Vector* kept, Vector& sum) {
    Vector total = {};
    if (table.tame(h)) {
        const float own[rank] = {h[0], h[1], h[2], h[3], h[4]};
        for (int v = 0; v < vectors; ++v) {
            const Vector e = power(table.logits(own, v));
            if constexpr (keep) kept[v] = e;
            total += e;
        }
        sum = total;
        return 0;
    }
    Vector most = table.logits(h, 0);
    for (int v = 1; v < vectors; ++v) most = greater(most, table.logits(h, v));
    float top = most[0];
    for (int lane = 1; lane < lanes; ++lane) top = std::max(top, most[lane]);
    for (int v = 0; v < vectors; ++v) {
        const Vector e = power(greater(table.logits(h, v) - top, Vector{} - 125));
        if constexpr (keep) kept[v] = e;
        total += e;
    }
    sum = total;
    return top;
}

// E W of several pixels, which share what is read of W.
template <int count>
inline void products(const Table& table, const Vector (*kept)[vectors], float (*found)[channels]) {
    Vector total[count][rank] = {};
    for (int v = 0; v < vectors; ++v)
        for (int c = 0; c < rank; ++c) {
            const Vector column = table.columns[c][v];
            for (int p = 0; p < count; ++p) total[p][c] += kept[p][v] * column;
        }
    for (int p = 0; p < count; ++p) {
        const Quad four = sums(total[p][0], total[p][1], total[p][2], total[p][3]);
        std::memcpy(found[p], &four, sizeof four);
        const Quad last = sums(total[p][4], Vector{}, Vector{}, Vector{});
        found[p][4] = last[0];
    }
}

// outer += (h, 1) / sum x E, for `count` pixels.
inline void spread(const Vector (*kept)[vectors], const float (*share)[channels], int count,
                   Vector (*outer)[vectors]) {
    constexpr int wide = 2;  // vectors at a time: with six channels what sixteen registers hold
    for (int v = 0; v < vectors; v += wide) {
        Vector total[channels][wide];
        for (int c = 0; c < channels; ++c)
            for (int w = 0; w < wide; ++w) total[c][w] = outer[c][v + w];
        for (int p = 0; p < count; ++p)
            for (int c = 0; c < channels; ++c)
                for (int w = 0; w < wide; ++w) total[c][w] += share[p][c] * kept[p][v + w];
        for (int c = 0; c < channels; ++c)
            for (int w = 0; w < wide; ++w) outer[c][v + w] = total[c][w];
    }
}

// The logarithm of a product of sums, taken as seldom as doubles allow.
struct LogProduct {
    double product = 1, logs = 0;

    void times(float sum) {
        product *= sum;
        if (!(product > 1e-250 && product < 1e250)) take();
    }
    double take() {
        logs += std::log(product);
        product = 1;
        return logs;
    }
};

// One pair. `slope` may be `features`, which are read before it is written.
template <bool differentiate>
double pair(const Table& table, const float* features, const std::uint8_t* pixels, int size,
            float* slope, float* outer) {
    Vector kept[differentiate ? block : 1][vectors], sum[block] = {};
    Vector total[channels][vectors] = {};
    float h[block][channels], share[block][channels], found[block][channels];
    LogProduct product;
    double linear = 0;  // in units of log 2
    for (int first = 0; first < size; first += block) {
        const int count = std::min(block, size - first);
        for (int p = 0; p < count; ++p) {
            for (int c = 0; c < rank; ++c) h[p][c] = features[c * size + first + p];
            h[p][rank] = 1;
            linear += powers<differentiate>(table, h[p], kept[differentiate ? p : 0], sum[p]);
            float logit = table.column(rank)[pixels[first + p]];
            for (int c = 0; c < rank; ++c) logit += h[p][c] * table.column(c)[pixels[first + p]];
            linear -= logit;
        }
        for (int p = 0; p < count; p += 4) {
            const Quad four = sums(sum[p], sum[p + 1], sum[p + 2], sum[p + 3]), inverse = 1 / four;
            for (int q = p; q < std::min(p + 4, count); ++q) {
                product.times(four[q - p]);
                for (int c = 0; c < channels; ++c) share[q][c] = h[q][c] * inverse[q - p];
            }
        }
        if constexpr (differentiate) {
            int p = 0;
            for (; p + 2 <= count; p += 2) products<2>(table, kept + p, found + p);
            if (p < count) products<1>(table, kept + p, found + p);
            spread(kept, share, count, total);
            for (int c = 0; c < rank; ++c)
                for (int q = 0; q < count; ++q)
                    slope[c * size + first + q] =
                        log_2 * (found[q][c] * share[q][rank] - table.column(c)[pixels[first + q]]);
            for (int q = 0; q < count; ++q)
                for (int c = 0; c < channels; ++c)
                    reinterpret_cast<float*>(total[c])[pixels[first + q]] -= h[q][c];
        }
    }
    if constexpr (differentiate) std::memcpy(outer, total, sizeof total);
    return product.take() + double(log_2) * linear;
}

}  // namespace

// For every pair i of features `(pairs, rank, size)` and of the image `row[i]`: the negative
// log-likelihood, and unless `slope` is null the slopes in the features, of their shape, and in
// weights and bias, `outer` `(pairs, rank + 1, values)`. Returns a pair whose image is not there,
// or -1.
extern "C" std::int64_t pixel_nll(const float* features, const float* weight, const float* bias,
                                  const std::uint8_t* pixels, const std::int64_t* row,
                                  std::int64_t pairs, std::int64_t rows, std::int64_t size,
                                  float* nll, float* slope, float* outer) {
    const Table table(weight, bias);
    for (std::int64_t i = 0; i < pairs; ++i) {
        if (row[i] < 0 || row[i] >= rows) return i;
        const float* own = features + i * rank * size;
        const std::uint8_t* image = pixels + row[i] * size;
        nll[i] = static_cast<float>(
            slope ? pair<true>(table, own, image, size, slope + i * rank * size,
                               outer + i * channels * values)
                  : pair<false>(table, own, image, size, nullptr, nullptr));
    }
    return -1;
}
