// Everything that works on one row at a time: embedding, norms, rope and the writing of keys and values.
#include "kernels.h"
#include "numbers.h"
#include "team.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace wellhead {
namespace {

constexpr int64_t kGrain = 1 << 13;  // elements below which a second thread costs more than it saves

int64_t grain(int64_t row_size) { return row_size >= kGrain ? 1 : kGrain / row_size; }

// 1 / sqrt(mean(x^2) + eps): four running sums, their order fixed by n alone.
float inverse_rms(const float* x, int64_t n, float eps) {
  Vec total[4] = {Vec(0.f), Vec(0.f), Vec(0.f), Vec(0.f)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int64_t j = 0; j < 4; ++j) {
      const Vec v = load(x + i + j * kLanes);
      total[j] = at::vec::fmadd(v, v, total[j]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = load(x + i);
    total[0] = at::vec::fmadd(v, v, total[0]);
  }
  if (i < n) {
    const Vec v = load_tail(x + i, n - i);
    total[1] = at::vec::fmadd(v, v, total[1]);
  }
  return 1.f / std::sqrt(sum((total[0] + total[1]) + (total[2] + total[3])) / static_cast<float>(n) + eps);
}

template <class D>
void norm_row(const float* x, int64_t n, const float* weight, float eps, D* out) {
  const Vec inverse(inverse_rms(x, n, eps));
  map(out, n, [&](const Vec& v, const Vec& w) { return v * inverse * w; }, x, weight);
}

// Norm and rotate one head of dim elements from x into out (float).
void turn(const float* x, int64_t dim, const float* weight, float eps, const float* cos_sin, float* out) {
  if (weight) norm_row(x, dim, weight, eps, out);
  else convert(out, x, dim);
  if (!cos_sin) return;
  const int64_t half = dim / 2;
  float* left = out;
  float* right = out + half;
  int64_t i = 0;
  const auto rotate = [](Vec& a, Vec& b, const Vec& c, const Vec& s) {
    const Vec turned = a * c - b * s;
    b = b * c + a * s;
    a = turned;
  };
  for (; i + kLanes <= half; i += kLanes) {
    Vec a = load(left + i), b = load(right + i);
    rotate(a, b, load(cos_sin + i), load(cos_sin + half + i));
    store(left + i, a);
    store(right + i, b);
  }
  if (const int64_t n = half - i; n > 0) {
    Vec a = load_tail(left + i, n), b = load_tail(right + i, n);
    rotate(a, b, load_tail(cos_sin + i, n), load_tail(cos_sin + half + i, n));
    store_tail(left + i, a, n);
    store_tail(right + i, b, n);
  }
}

template <class S, bool pairs>
void write_key(const S* x, S* page, int64_t slot, int64_t size, int64_t dim) {
  if constexpr (pairs) {
    for (int64_t i = 0; i < dim; i += 2) {
      S* to = page + (i / 2 * size + slot) * 2;
      to[0] = x[i];
      to[1] = x[i + 1];
    }
  } else {
    for (int64_t i = 0; i < dim; ++i) page[i * size + slot] = x[i];
  }
}

template <class S, bool pairs>
void write_value(const S* x, S* page, int64_t slot, int64_t dim) {
  if constexpr (pairs) {
    S* to = page + slot / 2 * dim * 2 + slot % 2;
    for (int64_t i = 0; i < dim; ++i) to[i * 2] = x[i];
  } else {
    for (int64_t i = 0; i < dim; ++i) page[slot * dim + i] = x[i];
  }
}

// Tokens are taken a few at a time, head by head: neighbours in a page share cache lines of its keys.
constexpr int64_t kTogether = 16;

template <class S, bool pairs>
void rope_store_tokens(const float* qkv, int64_t begin, int64_t end, int64_t heads, const int64_t* positions, const int64_t* slots,
                       const Rope& rope, const Pages& kv, S* q) {
  const int64_t dim = kv.dim, width = (heads + 2 * kv.heads) * dim;
  float* turned = scratch<float, 0>(dim);
  S* rounded = scratch<S, 1>(dim);
  S* pages = static_cast<S*>(kv.data);
  for (int64_t h = 0; h < heads + 2 * kv.heads; ++h) {
    const bool query = h < heads, key = !query && h < heads + kv.heads;
    for (int64_t t = begin; t < end; ++t) {
      const float* x = qkv + t * width + h * dim;
      const float* cos_sin = rope.cos_sin ? rope.cos_sin + positions[t] * dim : nullptr;
      const int64_t page = slots[t] / kv.size, slot = slots[t] % kv.size;
      if (query) {
        turn(x, dim, rope.q_norm, rope.eps, cos_sin, turned);
        convert(q + (t * heads + h) * dim, turned, dim);
      } else if (key) {
        turn(x, dim, rope.k_norm, rope.eps, cos_sin, turned);
        convert(rounded, turned, dim);
        write_key<S, pairs>(rounded, pages + kv.offset(page, 0, h - heads), slot, kv.size, dim);
      } else {
        convert(rounded, x, dim);
        write_value<S, pairs>(rounded, pages + kv.offset(page, 1, h - heads - kv.heads), slot, dim);
      }
    }
  }
}

}  // namespace

void embed(const int64_t* ids, int64_t count, const Weight& w, float scale, float* out) {
  by_type(w.type, w.pairs, [&](auto s, auto c) {
    using S = decltype(s);
    constexpr bool pairs = kPairs<decltype(c)>;
    share(count, 4, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const S* block = static_cast<const S*>(w.data) + ids[t] / kCols * w.in * kCols;
        const int64_t column = ids[t] % kCols;
        for (int64_t i = 0; i < w.in; ++i) {
          const int64_t at = pairs ? (i / 2 * kCols + column) * 2 + i % 2 : i * kCols + column;
          out[t * w.in + i] = static_cast<float>(static_cast<S>(static_cast<float>(block[at]) * scale));
        }
      }
    });
  });
}

void norm(const float* x, int64_t rows, int64_t size, const float* weight, float eps, c10::ScalarType type, void* out) {
  by_type(type, false, [&](auto s, auto) {
    using S = decltype(s);
    share(rows, grain(size), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) norm_row(x + r * size, size, weight, eps, static_cast<S*>(out) + r * size);
    });
  });
}

void peak(const float* x, int64_t rows, int64_t size, float* most, int64_t* at, bool* finite) {
  share(rows, grain(size), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = x + r * size;
      Vec high(-std::numeric_limits<float>::infinity()), zero(0.f);  // v - v is 0, or NaN where v is not finite
      const int64_t whole = size / kLanes * kLanes;
      for (int64_t i = 0; i < whole; i += kLanes) {
        const Vec v = load(row + i);
        high = at::vec::maximum(high, v);
        zero = zero + (v - v);
      }
      float top = largest(high), none = sum(zero);
      for (int64_t i = whole; i < size; ++i) {
        top = std::max(top, row[i]);
        none += row[i] - row[i];
      }
      most[r] = top;
      at[r] = std::find(row, row + size, top) - row;
      finite[r] = none == 0.f;
    }
  });
}

void norm_add(const float* x, int64_t rows, int64_t size, const float* weight, float eps, float* residual) {
  share(rows, grain(size), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const Vec inverse(inverse_rms(x + r * size, size, eps));
      map(residual + r * size, size, [&](const Vec& t, const Vec& v, const Vec& w) { return t + v * inverse * w; },
          residual + r * size, x + r * size, weight);
    }
  });
}

void rope_store(const float* qkv, int64_t tokens, int64_t heads, const int64_t* positions, const int64_t* slots, const Rope& rope,
                const Pages& kv, void* q) {
  by_type(kv.type, kv.pairs, [&](auto s, auto c) {
    using S = decltype(s);
    share(tokens, grain((heads + 2 * kv.heads) * kv.dim), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t += kTogether) {
        rope_store_tokens<S, kPairs<decltype(c)>>(qkv, t, std::min(t + kTogether, end), heads, positions, slots, rope, kv,
                                                  static_cast<S*>(q));
      }
    });
  });
}

}  // namespace wellhead
