// Products of 8-bit integers: exact sums, whatever their order, so that every machine and every batch gives the same bits.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace wellhead {

// Rows of activations as bytes: round(x / scale) + kZero with scale = largest |x| of the row / 127. A row that is not finite
// has a NaN for its scale.
constexpr int kZero = 128;
void quantize(const void* x, c10::ScalarType type, int64_t rows, int64_t size, uint8_t* out, float* scales);

// c[rows, 32] = a[rows, k] b[k / 4, 32, 4], k a multiple of 4; `next` as for product16 in bfloat16.h.
void product8(int64_t rows, int64_t k, const uint8_t* a, const int8_t* b, int32_t* c, const int8_t* next);

// What does those of more than a few rows.
const char* unit8();

}  // namespace wellhead
