// Products with packed weights, each with the step that follows it fused in.
#include "bfloat16.h"
#include "int8.h"
#include "kernels.h"
#include "numbers.h"
#include "team.h"

#include <algorithm>

namespace wellhead {
namespace {

// Up to so many rows, weights come at the rate of memory, which the processor's own prefetching serves better than ours.
constexpr int64_t kFew = 8;

// Calls piece(each) on several threads, where each(body) calls body(block, first_row, rows, ahead) for its tiles, of at most kRows
// rows. ahead: the block that lies behind this one comes next, and is worth asking for.
template <class Piece>
void share_tiles(int64_t rows, int64_t blocks, const Piece& piece) {
  const int64_t chunks = (rows + kRows - 1) / kRows;
  const int64_t step = chunks == 0 ? 0 : (rows + chunks - 1) / chunks;
  // Row chunks run innermost: a panel of weights is read from memory once and then from the core's own cache.
  share(blocks * chunks, 1, [&](int64_t begin, int64_t end) {
    piece([&](const auto& body) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % chunks * step, count = std::min(step, rows - first);
        if (count > 0) body(i / chunks, first, count, rows > kFew && i + 1 < end && (i + 1) % chunks == 0);
      }
    });
  });
}

// finish(tile, first_row, rows, block) takes float tile[rows][kCols] of one block of columns.
template <class S, class C, class Finish>
void multiply(const C* x, int64_t rows, const Weight& w, const Finish& finish) {
  const S* data = static_cast<const S*>(w.data);
  const int64_t panel_size = w.in * kCols;
  share_tiles(rows, w.blocks, [&](const auto& each) {
    ProductScope<C> scope;
    alignas(64) float tile[kRows * kCols];
    int64_t widened = -1;
    each([&](int64_t block, int64_t first, int64_t count, bool ahead) {
      const C* panel;
      if constexpr (std::is_same_v<S, C>) {
        panel = data + block * panel_size;
      } else {
        C* wide = scratch<C, 0>(panel_size);
        if (widened != block) convert(wide, data + block * panel_size, panel_size);
        widened = block;
        panel = wide;
      }
      product(count, kCols, w.in, x + first * w.in, w.in, panel, kCols, tile, kCols, false, ahead ? panel + panel_size : nullptr);
      finish(tile, first, count, block);
    });
  });
}

// The same for an int8 weight: exact sums, then one rounding to float and one for the scales.
template <class Finish>
void multiply8(const void* x, int64_t rows, const Weight& w, const Finish& finish) {
  uint8_t* bytes = scratch<uint8_t, 1>(rows * w.in);
  float* row_scales = scratch<float, 2>(rows);
  quantize(x, w.type, rows, w.in, bytes, row_scales);
  share_tiles(rows, w.blocks, [&](const auto& each) {
    ProductScope<BFloat16> scope;
    alignas(64) float tile[kRows * kCols];
    alignas(64) int32_t sums[kRows * kCols];
    each([&](int64_t block, int64_t first, int64_t count, bool ahead) {
      const int8_t* panel = static_cast<const int8_t*>(w.data) + block * w.in * kCols;
      product8(count, w.in, bytes + first * w.in, panel, sums, ahead ? panel + w.in * kCols : nullptr);
      const float* scales = w.scales + block * kCols;
      const float* column_sums = scales + w.blocks * kCols;
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t c = 0; c < kCols; ++c) {
          const int32_t sum = sums[r * kCols + c] - kZero * static_cast<int32_t>(column_sums[c]);
          tile[r * kCols + c] = static_cast<float>(sum) * (row_scales[first + r] * scales[c]);
        }
      }
      finish(tile, first, count, block);
    });
  });
}

template <class S, class C, class Finish>
void multiply_stored(const void* x, int64_t rows, const Weight& w, const Finish& finish) {
  if (w.scales) return multiply8(x, rows, w, finish);
  if constexpr (std::is_same_v<S, C>) {
    multiply<S, C>(static_cast<const C*>(x), rows, w, finish);
  } else {
    // Filled here and read by all threads; slot 1 so that the panels of this thread do not land on it.
    C* wide = scratch<C, 1>(rows * w.in);
    convert(wide, static_cast<const S*>(x), rows * w.in);
    multiply<S, C>(wide, rows, w, finish);
  }
}

Vec sigmoid_product(const Vec& x, const Vec& e) { return x / (Vec(1.f) + e); }

template <class S>
Vec activate(const Vec& x, Activation kind) {
  if (kind == Activation::silu) return sigmoid_product(x, exponential<S>(x.neg()));
  // 0.5 x (1 + tanh(z)) = x sigmoid(2 z)
  const Vec z2 = x * at::vec::fmadd(x * x, Vec(-1.5957691216f * 0.044715f), Vec(-1.5957691216f));
  return sigmoid_product(x, exponential<S>(z2));
}

}  // namespace

void linear(const void* x, int64_t rows, const Weight& w, const float* bias, float* out) {
  const auto finish = [&](const float* tile, int64_t first, int64_t count, int64_t block) {
    const int64_t column = block * kCols, n = std::min(kCols, w.out - column);
    for (int64_t r = 0; r < count; ++r) {
      float* to = out + (first + r) * w.out + column;
      if (bias) map(to, n, [](const Vec& a, const Vec& b) { return a + b; }, tile + r * kCols, bias + column);
      else convert(to, tile + r * kCols, n);
    }
  };
  by_type(w.type, w.pairs, [&](auto s, auto c) { multiply_stored<decltype(s), decltype(c)>(x, rows, w, finish); });
}

void linear_add(const void* x, int64_t rows, const Weight& w, const float* bias, float* residual) {
  const auto finish = [&](const float* tile, int64_t first, int64_t count, int64_t block) {
    const int64_t column = block * kCols, n = std::min(kCols, w.out - column);
    for (int64_t r = 0; r < count; ++r) {
      float* to = residual + (first + r) * w.out + column;
      const float* from = tile + r * kCols;
      if (bias) map(to, n, [](const Vec& t, const Vec& a, const Vec& b) { return t + (a + b); }, to, from, bias + column);
      else map(to, n, [](const Vec& t, const Vec& a) { return t + a; }, to, from);
    }
  };
  by_type(w.type, w.pairs, [&](auto s, auto c) { multiply_stored<decltype(s), decltype(c)>(x, rows, w, finish); });
}

void glu(const void* x, int64_t rows, const Weight& w, Activation activation, void* out) {
  constexpr int64_t half = kCols / 2;
  by_type(w.type, w.pairs, [&](auto s, auto c) {
    using S = decltype(s);
    const auto finish = [&](const float* tile, int64_t first, int64_t count, int64_t block) {
      const int64_t column = block * half, n = std::min(half, w.out - column);
      for (int64_t r = 0; r < count; ++r) {
        const float* gate = tile + r * kCols;
        map(static_cast<S*>(out) + (first + r) * w.out + column, n,
            [&](const Vec& g, const Vec& u) { return activate<S>(g, activation) * u; }, gate, gate + half);
      }
    };
    multiply_stored<S, decltype(c)>(x, rows, w, finish);
  });
}

}  // namespace wellhead
