// Products of bfloat16.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace wellhead {

// c[rows, columns] (+)= a[rows, k] b[k / 2, columns, 2], k even and at least one row; ldb counts pairs. `next` is null or what
// will be asked for after it, as large as b.
void product16(int64_t rows, int64_t columns, int64_t k, const c10::BFloat16* a, int64_t lda, const c10::BFloat16* b, int64_t ldb,
               float* c, int64_t ldc, bool add, const c10::BFloat16* next);

}  // namespace wellhead
