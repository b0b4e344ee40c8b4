// The kernels on bare pointers; library.cpp checks shapes and allocates.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace wellhead {

// A packed weight: [blocks, in, kCols], or with pairs [blocks, in / 2, kCols, 2]; columns beyond `out` are zero. `type` is that
// of its input too. With `scales`, the weight is int8 [blocks, in / 4, kCols, 4], and they are [2, blocks, kCols]: what one
// step of each column is worth, and the sum of the column's integers.
struct Weight {
  const void* data;
  c10::ScalarType type;
  bool pairs;
  int64_t blocks, in, out;
  const float* scales;
};

enum class Activation { silu, gelu_tanh };

void linear(const void* x, int64_t rows, const Weight& w, const float* bias, float* out);
void linear_add(const void* x, int64_t rows, const Weight& w, const float* bias, float* residual);
// Each block holds kCols / 2 gate columns, then their kCols / 2 up columns; out is [rows, w.out] with w.out of one half.
void glu(const void* x, int64_t rows, const Weight& w, Activation activation, void* out);

void embed(const int64_t* ids, int64_t count, const Weight& w, float scale, float* out);
void norm(const float* x, int64_t rows, int64_t size, const float* weight, float eps, c10::ScalarType type, void* out);
// Per row: the largest element, where it first stands, and whether all are finite (if not, the other two say nothing).
void peak(const float* x, int64_t rows, int64_t size, float* most, int64_t* at, bool* finite);
void norm_add(const float* x, int64_t rows, int64_t size, const float* weight, float eps, float* residual);

// Pages [pages, layers, heads, 2, size * dim], keys before values. Keys of a page and head: [dim, size], with pairs
// [dim / 2, size, 2]; values: [size, dim], with pairs [size / 2, dim, 2].
struct Pages {
  void* data;
  c10::ScalarType type;
  bool pairs;
  int64_t pages, layers, layer, heads, size, dim;

  int64_t offset(int64_t page, int64_t half, int64_t head) const {
    return (((page * layers + layer) * heads + head) * 2 + half) * size * dim;
  }
};

struct Rope {
  const float* cos_sin;  // [positions, dim] or null
  const float* q_norm;   // [dim] or null
  const float* k_norm;   // [dim] or null
  float eps;
};
void rope_store(const float* qkv, int64_t tokens, int64_t heads, const int64_t* positions, const int64_t* slots, const Rope& rope,
                const Pages& kv, void* q);

struct Sequences {
  const int32_t* starts;
  const int32_t* lens;
  const int32_t* table;
  int64_t count, width;
};
// window 0: none. q and out are [tokens, heads, dim].
void attend(const void* q, int64_t heads, const Pages& kv, const Sequences& sequences, float scale, int64_t window, void* out);

}  // namespace wellhead
