// The product of rows with one block of a packed bfloat16 weight.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace wellhead {

// c[rows, 32] = a[rows, k] b[k / 2, 32, 2], k even; `next` is the block that will be asked for after it, or null.
void product16(int64_t rows, int64_t k, const c10::BFloat16* a, const c10::BFloat16* b, float* c, const c10::BFloat16* next);

}  // namespace wellhead
